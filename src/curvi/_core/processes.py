"""The processes of one job: the place of this one among them, and what they agree on.

What depends on a clock or a signal is decided by all processes together: two of them that take
different numbers of steps would wait for each other for ever. JAX, which is dear, is imported by
the first of them that has to ask.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Launched(NamedTuple):
    """A place among the processes of a launch."""

    rank: int
    pulse: Path  # touched whenever the process is about to take steps
    process: int


_own: list[Launched] = []


def join(rank: int, pulse: Path) -> None:
    """Take a place; what this process starts, forks included, does not have it."""
    _own[:] = [Launched(rank, pulse, os.getpid())]


def launched() -> Launched | None:
    """The place of this process; None where no launcher has started it."""
    return next((own for own in _own if own.process == os.getpid()), None)


def beat() -> None:
    """Tell a launcher that watches this process that it is about to take steps."""
    if (own := launched()) is not None:
        own.pulse.touch()


def agreed(value: float) -> float:
    """The value of the first process, in all of them; called by all at the same point."""
    import jax

    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    bits = np.frombuffer(np.float64(value).tobytes(), np.uint32)  # whatever JAX's precision is
    return float(np.asarray(multihost_utils.broadcast_one_to_all(bits)).view(np.float64)[0])


def of_all_processes(own: bytes) -> bytes:
    """Bytes of every process, one after another; all give as many, at the same point."""
    import jax

    if jax.process_count() == 1:
        return own
    from jax.experimental import multihost_utils

    return bytes(np.asarray(multihost_utils.process_allgather(np.frombuffer(own, np.uint8))))


def largest(value: int) -> int:
    """The largest value of any process, in all of them; called by all at the same point."""
    import jax

    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.asarray(value, np.int32))))
