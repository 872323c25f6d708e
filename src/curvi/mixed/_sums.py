"""Sums over rows: all that the posterior of a Gaussian model takes from its table.

Sums of two blocks of rows add up, so that a table may come in parts, of which none is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from curvi.latent import RowSums, level_columns
from curvi.mixed._design import Design


@dataclass(frozen=True)
class Summed:
    """The sums of a model, and the few other things that a fit asks of its rows."""

    sums: RowSums
    shift: np.ndarray  # of the fixed effects: what was taken off the responses
    response: np.ndarray  # the responses, or two numbers with their mean and sd
    rows: Design | None = None  # those on which a large model finds where to begin

    @property
    def part(self) -> Design:
        """Rows of a large model."""
        assert self.rows is not None  # noqa: S101  for type checkers
        return self.rows


def sums_of(design: Design) -> RowSums:
    """Of fixed effects, then those of every factor."""
    parts = [level_columns(f.codes, f.columns, f.levels) for f in design.factors]
    A = sparse.csr_array(sparse.hstack([sparse.csr_array(design.X), *parts]))
    return RowSums.of(A, design.y - design.offset)


def moved(sums: RowSums, turns: list[np.ndarray], levels: list[int], unit: float) -> RowSums:
    """Those of other columns, ``X @ turns[0]`` and so on by factor, and of responses in a unit.

    ``levels`` are those of every factor.
    """
    many = [sparse.kron(sparse.identity(n), t) for n, t in zip(levels, turns[1:], strict=True)]
    return sums.turned(sparse.csr_array(sparse.block_diag([turns[0], *many])), unit)
