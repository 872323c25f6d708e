"""The memory budget: what it reads, and what it refuses."""

from __future__ import annotations

import pytest

import curvi
from curvi._core.memory import budget_bytes, readable, require_memory


@pytest.mark.parametrize(
    ("limit", "size"), [(1000, 1000), ("8 GiB", 2**33), ("1.5MiB", 3 * 2**19), ("7 b", 7)]
)
def test_a_budget_is_read_in_bytes_or_with_a_unit(limit, size):
    before = budget_bytes()
    with curvi.memory_budget(limit):
        assert budget_bytes() == size
    assert budget_bytes() == before


@pytest.mark.parametrize("limit", [0, -1, True, "much", "GiB", "nan", "inf", "1e30 TiB"])
def test_what_is_no_amount_of_memory_is_refused(limit):
    with pytest.raises(curvi.InputError, match="not a positive amount"), curvi.memory_budget(limit):
        pass


def test_the_environment_sets_the_budget(monkeypatch):
    monkeypatch.setenv("CURVI_MEMORY_BUDGET", "3 MiB")
    assert budget_bytes() == 3 * 2**20
    monkeypatch.setenv("CURVI_MEMORY_BUDGET", "plenty")
    with pytest.raises(curvi.InputError, match="CURVI_MEMORY_BUDGET is 'plenty'"):
        budget_bytes()


def test_what_does_not_fit_is_refused_with_size_budget_and_remedy():
    with curvi.memory_budget("1 MiB"):
        require_memory(2**20, "this", "do that")
        with pytest.raises(curvi.MemoryBudgetError, match=r"2 MiB.* of 1 MiB; do that, or raise"):
            require_memory(2**21, "this", "do that")


def test_sizes_are_readable():
    assert [readable(size) for size in (12, 2048, 3 * 2**29)] == ["12 B", "2 KiB", "1.5 GiB"]
