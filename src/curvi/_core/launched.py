"""The place of this process among those of ``curvi launch``; without JAX, which is dear."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


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
