"""A process that was interrupted ends only when nothing is under way in its background."""

from __future__ import annotations

import atexit
import sys
import time
from functools import cache
from types import TracebackType

_LOOK = 0.2  # seconds between two looks at the time that the threads have computed
_BUSY = 0.01  # share of a core from which they are not idle
_INTERRUPTED = 130  # code of a process
_LONGEST = 600.0  # seconds; threads of others may never be idle


@cache
def settle_at_exit() -> None:
    """Wait at the end of the process for what Ctrl-C has left; to be called where it is caught.

    Ctrl-C ends the wait for a compilation but not the compilation, which JAX does in threads of
    its own, and there is no handle to wait for. If it is still under way when JAX frees its
    client at exit, the process crashes. Handlers are called last in, first out: this one is
    before that of JAX.
    """
    atexit.register(_settle)


@cache
def exit_with_130() -> None:
    """Let a script that Ctrl-C has ended say so by its code.

    Python itself does that for ``KeyboardInterrupt``, but not for exceptions derived from it.
    """
    before = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        before(kind, error, traceback)
        if isinstance(error, KeyboardInterrupt):
            sys.exit(_INTERRUPTED)

    sys.excepthook = hook


def _settle() -> None:
    """Wait until the threads of this process are idle; Ctrl-C ends this wait too."""
    end = time.perf_counter() + _LONGEST
    while time.perf_counter() < end:
        spent = time.process_time()
        time.sleep(_LOOK)
        if time.process_time() - spent < _BUSY * _LOOK:
            return
