"""Sums over rows on several threads, with the same bits on any number of them.

NumPy lets go of the interpreter's lock inside its loops and products, so plain threads keep all
cores busy on blocks that fit into their caches. Blocks are gathered in a fixed number of groups
and added in a fixed order: how many threads there are changes the time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

_GROUPS = 16

Block = TypeVar("Block")
Terms = list[np.ndarray]


def available_threads() -> int:
    """As many as the BLAS would take, which is what users and job schedulers limit."""
    return max((int(pool["num_threads"]) for pool in ThreadpoolController().info()), default=1)


def summed(function: Callable[[Block], Terms], blocks: Sequence[Block], threads: int) -> Terms:
    """The sum of the terms of all blocks."""
    size = -(-len(blocks) // _GROUPS)
    groups = [blocks[start : start + size] for start in range(0, len(blocks), size)]

    def of_group(group: Sequence[Block]) -> Terms:
        with np.errstate(all="ignore"):  # what is not finite is refused by the caller
            return added([function(block) for block in group])

    # One thread of the BLAS for each of ours: its own would wait for each other.
    with _controller().limit(limits=1, user_api="blas"):
        if threads == 1 or len(groups) == 1:
            return added([of_group(group) for group in groups])
        with ThreadPoolExecutor(threads) as pool:
            return added(list(pool.map(of_group, groups)))


def added(parts: Sequence[Terms]) -> Terms:
    """Term by term, in order."""
    total = [np.array(term) for term in parts[0]]
    for part in parts[1:]:
        for place, term in enumerate(part):
            total[place] += term
    return total


@cache
def _controller() -> ThreadpoolController:
    """Scans the loaded libraries, once."""
    return ThreadpoolController()
