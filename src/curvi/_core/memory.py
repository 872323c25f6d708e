"""The memory budget: what an allocation would take is compared with it before it is made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from curvi._core.errors import InputError, MemoryBudgetError
from curvi._core.run import current_run, within

_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


@contextmanager
def memory_budget(limit: int | str) -> Iterator[None]:
    """Set the memory that one array of curvi may take, for the calls inside a ``with`` block.

    Without it, the budget is the environment variable ``CURVI_MEMORY_BUDGET``, or the memory of
    the machine.

    Parameters
    ----------
    limit : int or str
        Bytes, or a number with a unit: ``"8 GiB"``, ``"500 MiB"``.

    Yields
    ------
    None
        The block runs under the new budget.

    Raises
    ------
    InputError
        If ``limit`` is not a positive amount of memory.

    Examples
    --------
    >>> import curvi
    >>> with curvi.memory_budget("2 GiB"):
    ...     pass
    """
    with within(memory=_parsed(limit, "limit")):
        yield


def _parsed(limit: int | str, name: str) -> int:
    number, unit = limit, "b"
    if isinstance(limit, str):
        text = limit.strip().lower()
        unit = next((u for u in ("kib", "mib", "gib", "tib", "b") if text.endswith(u)), "b")
        number = text.removesuffix(unit).strip()
    try:
        amount = float(number) * _UNITS[unit]
    except (TypeError, ValueError):
        amount = 0.0
    if isinstance(limit, bool) or not 1 <= amount < 2**63:
        raise InputError(
            f"{name} is {limit!r}, which is not a positive amount of memory; pass bytes or a text "
            'such as "8 GiB"'
        )
    return int(amount)


def budget_bytes() -> int:
    """The memory budget in bytes: set by ``memory_budget``, the environment, or the machine."""
    if (inside := current_run().memory) is not None:
        return inside
    if named := os.environ.get("CURVI_MEMORY_BUDGET"):
        return _parsed(named, "CURVI_MEMORY_BUDGET")
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 2**34


def readable(size: float) -> str:
    """``size`` bytes in the largest unit that keeps the number at or above one."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= (scale := _UNITS[unit.lower()]):
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def require_memory(size: float, what: str, remedy: str) -> None:
    """Raise ``MemoryBudgetError`` where ``what`` would take more than the budget.

    ``remedy`` completes the sentence "either ... or raise the budget".
    """
    if size > (budget := budget_bytes()):
        raise MemoryBudgetError(
            f"{what} would take {readable(size)}, more than the memory budget of "
            f"{readable(budget)}; {remedy}, or raise the budget with curvi.memory_budget(...)"
        )


def require_matrix(dimension: int, dtype: Any) -> None:
    """Raise ``MemoryBudgetError`` where a dense covariance and its factor do not fit."""
    require_memory(
        2 * dimension**2 * np.dtype(dtype).itemsize,
        f"a dense covariance of {dimension} coordinates",
        "use sd, or linear_response(fn) of the functions that you need",
    )


def require_draws(count: int, width: int) -> None:
    """Raise ``MemoryBudgetError`` where so many draws of ``width`` numbers do not fit.

    They are made in double precision, and up to four arrays of them exist at once.
    """
    require_memory(4 * 8 * count * width, f"{count} draws of {width} numbers", "ask for fewer")


def row_slices(count: int, size: int = 2048) -> Iterator[slice]:
    """Consecutive rows, so many at a time that factors or quadrature nodes stay in the cache."""
    return (slice(start, start + size) for start in range(0, count, size))
