r"""Independent groups with correlated effects: :math:`u_g \sim N(0, \Sigma(\theta))`.

A level has the effects of one or several *bars*, which are independent of each other. In a bar

.. math:: \Sigma = \Lambda \Lambda^\top, \qquad \Lambda = \mathrm{diag}(\sigma)\, L,

where L is the Cholesky factor of a correlation matrix. The unconstrained :math:`\theta` holds log
sds and the inverse hyperbolic tangents of the canonical partial correlations, which are independent
beta variables under the LKJ prior. Nested and crossed factors are several components side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import sparse

from curvi._core.errors import InputError
from curvi.latent._component import Component, Natural, Precision
from curvi.latent._priors import half_normal, lkj


@dataclass(frozen=True)
class Covariance:
    """Effects of a level that may be correlated with each other.

    Attributes
    ----------
    columns : tuple of str
        Names of the effects.
    scales : tuple of float
        Of the half-normal priors of their sds.
    correlated : bool
        Whether they have correlations, with an LKJ prior, or none.
    """

    columns: tuple[str, ...]
    scales: tuple[float, ...]
    correlated: bool = True

    @property
    def size(self) -> int:
        """Number of effects."""
        return len(self.columns)

    @property
    def correlations(self) -> int:
        """Number of correlations."""
        return self.size * (self.size - 1) // 2 if self.correlated else 0

    @property
    def parameters(self) -> int:
        """Number of entries of theta: sds, then correlations."""
        return self.size + self.correlations

    def start(self) -> np.ndarray:
        """Sds at a tenth of their prior scales, no correlation."""
        return np.concatenate([np.log(0.1 * np.asarray(self.scales)), np.zeros(self.correlations)])

    def root(self, theta: np.ndarray) -> np.ndarray:
        """``Lambda``, lower triangular, for theta of shape (..., parameters)."""
        sds = np.exp(theta[..., : self.size])
        return sds[..., None] * _cholesky(np.tanh(theta[..., self.size :]), self.size)

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Log density of theta, with the Jacobians of its logarithms and tangents."""
        total = half_normal(theta[..., : self.size], np.asarray(self.scales)).sum(axis=-1)
        return total + lkj(theta[..., self.size :], self.size) if self.correlations else total


def _cholesky(partial: np.ndarray, size: int) -> np.ndarray:
    """Cholesky factor of the correlation matrix with these canonical partial correlations."""
    root = np.zeros((*partial.shape[:-1], size, size))
    root[..., 0, 0] = 1
    if not partial.shape[-1]:  # uncorrelated, or a single column
        root[..., np.arange(size), np.arange(size)] = 1
        return root
    at = 0
    for row in range(1, size):
        left = np.ones(partial.shape[:-1])
        for column in range(row):
            root[..., row, column] = partial[..., at] * np.sqrt(left)
            left = left - root[..., row, column] ** 2
            at += 1
        root[..., row, row] = np.sqrt(np.maximum(left, 0.0))
    return root


def block_root(bars: Sequence[tuple[Covariance, np.ndarray]]) -> np.ndarray:
    """``Lambda`` of a level, block diagonal over bars that are given with their theta."""
    width, at = sum(bar.size for bar, _ in bars), 0
    out = np.zeros((*bars[0][1].shape[:-1], width, width))
    for bar, theta in bars:
        out[..., at : at + bar.size, at : at + bar.size] = bar.root(theta)
        at += bar.size
    return out


def level_columns(codes: np.ndarray, columns: np.ndarray, levels: int) -> sparse.csr_array:
    """Columns of rows that see the effects of their level; a code below zero sees none."""
    known, width = codes >= 0, columns.shape[1]
    index = (codes[known, None] * width + np.arange(width)).ravel()
    starts = np.concatenate([[0], np.cumsum(known)]) * width
    shape = (len(codes), levels * width)
    return sparse.csr_array((columns[known].ravel(), index, starts), shape=shape)


class Groups(Component):
    """Effects of the levels of a grouping factor, level by level.

    Parameters
    ----------
    codes : array of int, shape (rows,)
        The level of each row.
    columns : array, shape (rows, effects), optional
        What the effects of a level are multiplied by; ones for an effect alone.
    name : str
        Of the factor.
    bars : sequence of Covariance, optional
        Of the columns, in order; an intercept by default.
    levels : int, optional
        Number of levels; by default those that rows have.
    level_names : sequence of str, optional
        Names of the levels.
    """

    def __init__(
        self, codes: np.ndarray, columns: np.ndarray | None = None, name: str = "group", *,
        bars: Sequence[Covariance] = (Covariance(("Intercept",), (1.0,)),),
        levels: int | None = None, level_names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        codes = np.asarray(codes, np.int64)
        self.name, self.bars = name, tuple(bars)
        self.levels = int(codes.max(initial=-1)) + 1 if levels is None else int(levels)
        self.width = sum(bar.size for bar in bars)
        self._level_names = level_names
        self.names = tuple(text for bar in bars for text in _names(bar, name))
        self.A = self.columns_for((codes, columns))
        # Entries of one level within its bars, then those of all levels.
        ends = np.cumsum([0, *(bar.size for bar in bars)])
        inside = [np.tril_indices(bar.size) for bar in bars]
        pairs = list(zip(inside, ends, strict=False))
        self._row = np.concatenate([row + at for (row, _), at in pairs])
        self._column = np.concatenate([column + at for (_, column), at in pairs])
        first = np.arange(self.levels)[:, None] * self.width
        self.rows, self.columns = ((first + k).ravel() for k in (self._row, self._column))

    def columns_for(self, data: Any) -> sparse.csr_array:
        """Columns of rows, given as codes and columns; levels below zero are none of these.

        Parameters
        ----------
        data : pair of arrays
            Codes (rows,), and columns (rows, effects) or None for ones.
        """
        codes, columns = data
        codes = np.asarray(codes, np.int64)
        if codes.max(initial=-1) >= self.levels:
            raise InputError(f"{self.name!r} has levels 0 to {self.levels - 1}, not {codes.max()}")
        columns = np.ones((len(codes), 1)) if columns is None else np.asarray(columns, np.float64)
        if columns.shape != (len(codes), self.width):
            raise InputError(
                f"columns of {self.name!r} have shape {columns.shape}, not one row for each of "
                f"{len(codes)} codes and one column for each of {self.width} effects"
            )
        return level_columns(codes, columns, self.levels)

    def _parts(self, theta: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([0, *(bar.parameters for bar in self.bars)])
        pairs = zip(self.bars, ends, strict=False)
        return [theta[..., start : start + bar.parameters] for bar, start in pairs]

    def root(self, theta: np.ndarray) -> np.ndarray:
        """``Lambda`` of a level: (..., effects, effects)."""
        return block_root(list(zip(self.bars, self._parts(theta), strict=True)))

    def precision(self, theta: np.ndarray) -> Precision:
        """The inverse of Sigma for every level."""
        root = self.root(np.asarray(theta, np.float64))
        place = np.arange(self.width)
        # An sd that underflows has the largest precision that there is.
        root[..., place, place] = np.maximum(root[..., place, place], np.finfo(float).tiny)
        log_det = -2 * self.levels * np.log(root[..., place, place]).sum(axis=-1)
        inverse = 1 / root if self.width == 1 else np.linalg.inv(root)
        block = np.swapaxes(inverse, -1, -2) @ inverse
        return Precision(np.tile(block[:, self._row, self._column], (1, self.levels)), log_det)

    def start(self) -> np.ndarray:
        """Sds at a tenth of their prior scales, no correlation."""
        return np.concatenate([bar.start() for bar in self.bars])

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Half-normal sds, LKJ correlations."""
        pairs = zip(self.bars, self._parts(theta), strict=True)
        return sum((bar.log_prior(part) for bar, part in pairs), np.zeros(len(theta)))

    def natural(self, theta: np.ndarray) -> Natural:
        """Sds and correlations."""
        out: Natural = {}
        for bar, part in zip(self.bars, self._parts(theta), strict=True):
            unit = bar.root(part) * np.exp(-part[..., : bar.size, None])
            correlation = unit @ np.swapaxes(unit, -1, -2)
            sds, names = np.exp(part[..., : bar.size]), _names(bar, self.name)
            out |= {name: sds[..., k] for k, name in enumerate(names[: bar.size])}
            pairs = zip(names[bar.size :], _pairs(bar), strict=True)
            out |= {name: correlation[..., i, j] for name, (j, i) in pairs}
        return out

    def labels(self) -> list[str]:
        """Effects of the levels."""
        levels = self._level_names or [str(level) for level in range(self.levels)]
        effects = [effect for bar in self.bars for effect in bar.columns]
        return [f"{effect}|{self.name}[{level}]" for level in levels for effect in effects]


def _pairs(bar: Covariance) -> list[tuple[int, int]]:
    """Places of correlated effects, in the order of theta."""
    if not bar.correlated:
        return []
    return sorted(combinations(range(bar.size), 2), key=lambda pair: (pair[1], pair[0]))


def _names(bar: Covariance, factor: str) -> list[str]:
    """Of the entries of theta."""
    sds = [f"sd {column}|{factor}" for column in bar.columns]
    names = [(bar.columns[j], bar.columns[i]) for j, i in _pairs(bar)]
    return sds + [f"correlation {one}, {other}|{factor}" for one, other in names]
