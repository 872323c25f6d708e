"""A moment at which work on the host ends, wherever in a step it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_end: ContextVar[float] = ContextVar("curvi_deadline", default=float("inf"))


class OutOfTime(Exception):  # noqa: N818  it is no error
    """The time is up while steps are under way; the state before them stays."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Let ``check_deadline`` raise from so many seconds on, inside a ``with`` block."""
    token = _end.set(time.perf_counter() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


def check_deadline() -> None:
    """Raise OutOfTime where the time is up; called before each expensive evaluation."""
    if time.perf_counter() > _end.get():
        raise OutOfTime
