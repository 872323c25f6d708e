"""Sums over rows: all that the posterior of a Gaussian model takes from its table.

Sums of two blocks of rows add up, so that a table may come in parts, of which none is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from curvi.mixed._design import Design
from curvi.mixed._sparse import SparseRows, SparseStatistics, sparse_statistics
from curvi.mixed._system import Statistics, remaining_columns, statistics


@dataclass(frozen=True)
class Sums:
    """Sums of products of columns and responses, of squared responses, and the number of rows."""

    stats: Statistics | SparseStatistics
    rows: float
    square: float

    def __add__(self, other: Sums) -> Sums:
        """Of the rows of both."""
        parts = [mine + theirs for mine, theirs in zip(self.stats, other.stats, strict=True)]
        stats = type(self.stats)(*parts)
        return Sums(stats, self.rows + other.rows, self.square + other.square)

    def moved(self, turns: list[np.ndarray], levels: list[int], unit: float) -> Sums:
        """Those of other columns, ``X @ turns[0]`` and so on by factor, and of responses in a unit.

        ``levels`` are those of every factor.
        """
        first = turns[1]
        many = [sparse.kron(sparse.identity(n), t) for n, t in zip(levels, turns[1:], strict=True)]
        rest = sparse.block_diag([turns[0], *many[1:]], format="csr")
        within, cross, outer, within_target, outer_target = self.stats
        if isinstance(self.stats, Statistics):
            cross = first.T @ cross @ rest.toarray()
            outer = rest.T @ (outer @ rest)
        else:
            cross, outer = (many[0].T @ cross @ rest).tocsr(), (rest.T @ outer @ rest).tocsr()
        stats = type(self.stats)(
            first.T @ within @ first, cross, outer,
            within_target @ first / unit, rest.T @ outer_target / unit,
        )  # fmt: skip
        return Sums(stats, self.rows, self.square / unit**2)

    def gram(self, count: int) -> np.ndarray:
        """Products of the first columns with each other: of the fixed effects."""
        some: Any = self.stats.outer[:count, :count]
        return np.asarray(some.toarray() if sparse.issparse(some) else some)

    @property
    def dense(self) -> Statistics:
        """Those of a model with few remaining effects."""
        assert isinstance(self.stats, Statistics)  # noqa: S101  for type checkers
        return self.stats

    @property
    def sparse(self) -> SparseStatistics:
        """Those of a model with many."""
        assert isinstance(self.stats, SparseStatistics)  # noqa: S101
        return self.stats

    def arrays(self) -> list[Any]:
        """Every number, as plain arrays: what a checkpoint compares."""
        out: list[Any] = [np.asarray([self.rows, self.square])]
        for part in self.stats:
            names = ("data", "indices", "indptr") if sparse.issparse(part) else ("real",)
            out += [getattr(part, name) for name in names]
        return out


@dataclass(frozen=True)
class Summed:
    """The sums of a model, and the few other things that a fit asks of its rows."""

    sums: Sums
    shift: np.ndarray  # of the fixed effects: what was taken off the responses
    response: np.ndarray  # the responses, or two numbers with their mean and sd
    rows: Design | None = None  # those on which a large model finds where to begin

    @property
    def part(self) -> Design:
        """Rows of a large model."""
        assert self.rows is not None  # noqa: S101  for type checkers
        return self.rows


def dense_sums(design: Design) -> Sums:
    """Of a design with few remaining effects."""
    y = design.y - design.offset
    stats = statistics(design, remaining_columns(design), np.ones(design.rows), y)
    return Sums(stats, float(design.weights.sum()), float(design.weights @ y**2))


def sparse_sums(rows: SparseRows) -> Sums:
    """Of a design with many."""
    y = rows.design.y - rows.design.offset
    stats = sparse_statistics(rows, np.ones(len(y)), y)
    return Sums(stats, float(len(y)), float(y @ y))
