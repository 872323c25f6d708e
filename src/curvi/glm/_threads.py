"""Sums over rows on several threads, with the same bits on any number of them.

NumPy lets go of the interpreter's lock inside its loops and products, so plain threads keep all
cores busy on blocks that fit into their caches. Blocks are gathered in a fixed number of groups
and added in a fixed order: how many threads there are changes the time alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

_GROUPS = 16
_LOCK = threading.Lock()
_HOLDERS: list[None] = []
_LIMITS: list[Any] = []

Block = TypeVar("Block")
Terms = list[np.ndarray]


def available_threads() -> int:
    """As many as the BLAS would take, which is what users and job schedulers limit."""
    pools = (pool for pool in _controller().info() if pool["user_api"] == "blas")
    return max((int(pool["num_threads"]) for pool in pools), default=1)


def summed(function: Callable[[Block], Terms], blocks: Sequence[Block], threads: int) -> Terms:
    """The sum of the terms of all blocks."""
    size = max(1, -(-len(blocks) // _GROUPS))
    groups = [blocks[start : start + size] for start in range(0, len(blocks), size)]

    def of_group(group: Sequence[Block]) -> Terms:
        with np.errstate(all="ignore"):  # what is not finite is refused by the caller
            return added(function(block) for block in group)

    # One thread of the BLAS for each of ours: its own would wait for each other.
    with one_blas_thread():
        if threads == 1 or len(groups) == 1:
            return added(of_group(group) for group in groups)
        with ThreadPoolExecutor(threads) as pool:
            return added(pool.map(of_group, groups))


def added(parts: Iterable[Terms]) -> Terms:
    """Term by term, in order, without keeping the parts."""
    total: Terms = []
    for part in parts:
        if not total:
            total = [np.array(term) for term in part]
            continue
        for place, term in enumerate(part):
            total[place] += term
    return total


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold the BLAS of the process to one thread until the last user of this is done.

    Its limit belongs to the process: fits in several threads that each restored what they found
    would leave the limit of another behind.
    """
    with _LOCK:
        if not _HOLDERS:
            _LIMITS.append(_controller().limit(limits=1, user_api="blas"))
        _HOLDERS.append(None)
    try:
        yield
    finally:
        with _LOCK:
            _HOLDERS.pop()
            if not _HOLDERS:
                _LIMITS.pop().restore_original_limits()


@cache
def _controller() -> ThreadpoolController:
    """Scans the loaded libraries, once."""
    return ThreadpoolController()
