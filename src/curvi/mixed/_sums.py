"""RowSums over rows: all that the posterior of a Gaussian model takes from its table.

RowSums of two blocks of rows add up, so that a table may come in parts, of which none is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from curvi.latent import RowSums
from curvi.mixed._design import Design
from curvi.mixed._system import Statistics, remaining_columns, statistics


@dataclass(frozen=True)
class DenseSums:
    """Of a design with few effects beside those of its first factor.

    RowSums of products of columns and responses, of squared responses, and the number of rows.
    """

    stats: Statistics
    rows: float
    square: float

    def __add__(self, other: DenseSums) -> DenseSums:
        """Of the rows of both."""
        parts = [mine + theirs for mine, theirs in zip(self.stats, other.stats, strict=True)]
        return DenseSums(Statistics(*parts), self.rows + other.rows, self.square + other.square)

    def arrays(self) -> list[np.ndarray]:
        """Every number, as plain arrays: what a checkpoint compares."""
        return [np.asarray([self.rows, self.square]), *self.stats]


def moved(
    sums: RowSums | DenseSums, turns: list[np.ndarray], levels: list[int], unit: float
) -> RowSums | DenseSums:
    """Those of other columns, ``X @ turns[0]`` and so on by factor, and of responses in a unit.

    ``levels`` are those of every factor.
    """
    many = [sparse.kron(sparse.identity(n), t) for n, t in zip(levels, turns[1:], strict=True)]
    if isinstance(sums, RowSums):
        return sums.turned(sparse.csr_array(sparse.block_diag([turns[0], *many])), unit)
    first, rest = turns[1], sparse.block_diag([turns[0], *many[1:]], format="csr")
    within, cross, outer, within_target, outer_target = sums.stats
    stats = Statistics(
        first.T @ within @ first, first.T @ cross @ rest.toarray(), rest.T @ (outer @ rest),
        within_target @ first / unit, rest.T @ outer_target / unit,
    )  # fmt: skip
    return DenseSums(stats, sums.rows, sums.square / unit**2)


def gram_of_fixed(sums: RowSums | DenseSums, count: int) -> np.ndarray:
    """Products of the first columns with each other: of the fixed effects."""
    some: Any = sums.gram if isinstance(sums, RowSums) else sums.stats.outer
    some = some[:count, :count]
    return np.asarray(some.toarray() if sparse.issparse(some) else some)


@dataclass(frozen=True)
class Summed:
    """The sums of a model, and the few other things that a fit asks of its rows."""

    sums: RowSums | DenseSums
    shift: np.ndarray  # of the fixed effects: what was taken off the responses
    response: np.ndarray  # the responses, or two numbers with their mean and sd
    rows: Design | None = None  # those on which a large model finds where to begin

    @property
    def part(self) -> Design:
        """Rows of a large model."""
        assert self.rows is not None  # noqa: S101  for type checkers
        return self.rows

    @property
    def whole(self) -> RowSums:
        """RowSums of a large model."""
        assert isinstance(self.sums, RowSums)  # noqa: S101
        return self.sums

    @property
    def dense(self) -> DenseSums:
        """RowSums of a small one."""
        assert isinstance(self.sums, DenseSums)  # noqa: S101
        return self.sums


def dense_sums(design: Design) -> DenseSums:
    """Of a design with few remaining effects."""
    y = design.y - design.offset
    stats = statistics(design, remaining_columns(design), np.ones(design.rows), y)
    return DenseSums(stats, float(design.weights.sum()), float(design.weights @ y**2))
