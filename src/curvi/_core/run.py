"""The run: what one call of an entry point may use, and how it ends.

All that belongs to a call and not to its model is one object in one context variable: its clock and
budget of time, the devices that share its rows, the memory that it may take, its checkpoint, and
where it shows what it is doing. Ctrl-C is handled in one place, by a :class:`Phase`.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from types import TracebackType
from typing import Any, TypeVar

from curvi._core.errors import Outcome
from curvi._core.processes import agreed

Result = TypeVar("Result")


class OutOfTime(Exception):  # noqa: N818  it is no error
    """The time is up while work is under way; the state before it stays."""


@dataclass(eq=False)
class Clock:
    """The time of a call: seconds since it began, without compilation of its steps.

    A budget is meant for work, and what a first call compiles a second one finds.

    Parameters
    ----------
    time_budget : float, optional
        Seconds; no limit by default.
    outer : Clock, optional
        Of the call that this one is a part of, whose budget holds too.
    began : float
        Time of ``time.perf_counter`` from which the seconds count; now by default.
    compiling : float
        Seconds of compilation so far.
    """

    time_budget: float | None = None
    outer: Clock | None = None
    began: float = field(default_factory=lambda: time.perf_counter())  # noqa: PLW0108  looked up late
    compiling: float = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since it began, with all compilation."""
        return time.perf_counter() - self.began

    def compiled(self, seconds: float) -> None:
        """Leave compilation out of account."""
        self.compiling += seconds
        if self.outer is not None:
            self.outer.compiled(seconds)

    def left(self) -> float:
        """Seconds that are left, the same in all processes; infinite without a budget."""
        seconds = float("inf") if self.outer is None else self.outer.left()
        if self.time_budget is None:
            return seconds
        return min(seconds, agreed(self.time_budget - self.elapsed + self.compiling))


def _silent(doing: str) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Run:
    """What the call that is under way may use.

    Parameters
    ----------
    clock : Clock, optional
        Its time; None outside of an entry point.
    until : float
        Moment at which the step that is under way is left, by ``time.perf_counter``.
    mesh : jax.sharding.Mesh, optional
        Devices that share its rows.
    memory : int, optional
        Bytes that one array may take.
    session : Session, optional
        Its checkpoint.
    show : callable
        Told what is being done, for a progress bar.
    """

    clock: Clock | None = None
    until: float = float("inf")
    mesh: Any = None
    memory: int | None = None
    session: Any = None
    show: Callable[[str], None] = _silent

    def left(self) -> float:
        """Seconds that are left of its budget."""
        return float("inf") if self.clock is None else self.clock.left()

    def check(self) -> None:
        """Raise OutOfTime where the budget is spent; all processes do at the same point."""
        if self.left() <= 0:
            raise OutOfTime

    def returned(self, result: Result) -> Result:
        """What the call returns, which SIGTERM in its last moment must not lose."""
        if self.session is not None:
            self.session.result = result
        return result


_run: ContextVar[Run] = ContextVar("curvi_run", default=Run())  # noqa: B039  it is frozen


def current_run() -> Run:
    """The run that is under way; one without limits outside of any."""
    return _run.get()


@contextmanager
def within(**changes: Any) -> Iterator[Run]:
    """Change the run inside a ``with`` block."""
    token = _run.set(replace(_run.get(), **changes))
    try:
        yield _run.get()
    finally:
        _run.reset(token)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Let ``check_deadline`` raise from so many seconds on, inside a ``with`` block."""
    with within(until=time.perf_counter() + seconds):
        yield


def check_deadline() -> None:
    """Raise OutOfTime where the step has to end; called before each expensive evaluation."""
    if time.perf_counter() > _run.get().until:
        raise OutOfTime


class Phase:
    """A part of a run that may be left: at Ctrl-C, and where the budget of time is spent.

    What stands below the block is then what the call does with what there is::

        with Phase("replicates"):
            return everything()
        return what_there_is()

    Parameters
    ----------
    doing : str
        What is being done, for a progress bar.

    Attributes
    ----------
    interrupted, out_of_time : bool
        Why it was left, if it was.
    """

    def __init__(self, doing: str) -> None:
        self.doing = doing
        self.interrupted = self.out_of_time = False

    @property
    def left(self) -> bool:
        """Whether it ended before its end."""
        return self.interrupted or self.out_of_time

    @property
    def outcome(self) -> Outcome:
        """How a run ends that was left."""
        return Outcome.INTERRUPTED if self.interrupted else Outcome.BUDGET

    def __enter__(self) -> Phase:
        """Say what is being done."""
        current_run().show(self.doing)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Keep the reason to itself."""
        self.interrupted = is_ctrl_c(error)
        self.out_of_time = isinstance(error, OutOfTime)
        return self.left


def is_ctrl_c(error: BaseException | None) -> bool:
    """Whether Ctrl-C ended something; then the process ends when its compilations have."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    _idle_at_exit()
    return True


@cache
def _idle_at_exit() -> None:
    """Wait at the end of the process for what Ctrl-C has left.

    Ctrl-C ends the wait for a compilation but not the compilation, which JAX does in threads of
    its own, and there is no handle to wait for. If it is still under way when JAX frees its
    client at exit, the process crashes. Handlers are called last in, first out: this one is
    before that of JAX.
    """
    atexit.register(_wait_until_idle)


def _wait_until_idle(*, look: float = 0.2, busy: float = 0.01, longest: float = 600.0) -> None:
    """Wait until the threads of this process are idle; Ctrl-C ends this wait too.

    ``look``: seconds between two looks at the time that the threads have computed.
    ``busy``: share of a core from which they are not idle.
    ``longest``: seconds; threads of others may never be idle.
    """
    end = time.perf_counter() + longest
    while time.perf_counter() < end:
        spent = time.process_time()
        time.sleep(look)
        if time.process_time() - spent < busy * look:
            return
