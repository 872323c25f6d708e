"""Exceptions out of a call back to the host, which JAX replaces by one of its own.

What was raised is kept under a number, the report that JAX passes on names the number, and whoever
called the compiled code raises the exception itself.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Iterator

from curvi._core.errors import keep_result

_numbers = itertools.count()
_kept: dict[int, BaseException] = {}
_NAMED = re.compile(r"\(failure (\d+) of a call back\)")


class CallbackError(RuntimeError):
    """What JAX is told of an exception, in its place."""


def _is_ours(record: logging.LogRecord) -> bool:
    return bool(record.exc_info and isinstance(record.exc_info[1], CallbackError))


# JAX logs the traceback, too; the exception itself arrives with a better one.
logging.getLogger("jax._src.callback").addFilter(lambda record: not _is_ours(record))


@contextlib.contextmanager
def reported(doing: str) -> Iterator[None]:
    """Keep an exception of the host, and tell JAX its number."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"curvi: raised while {doing}")
        number = next(_numbers)
        _kept[number] = error
        while len(_kept) > 16:  # of calls that nobody waited for
            _kept.pop(next(iter(_kept)))
        raise CallbackError(
            f"{type(error).__name__}: {error} (failure {number} of a call back)"
        ) from error


@contextlib.contextmanager
def own_exceptions() -> Iterator[None]:
    """Raise the exception of a call back itself, with the result that its report carries."""
    try:
        yield
    except Exception as report:
        found = _NAMED.search(str(report))
        own = _kept.pop(int(found[1]), None) if found else None
        if own is None:
            raise
        if (result := getattr(report, "curvi_result", None)) is not None:
            keep_result(own, result)
        raise own from None
