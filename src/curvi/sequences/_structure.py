r"""Latent processes: their precision as a sum of given matrices with coefficients of theta.

.. math:: P(\theta) = \sum_g c_g(\theta)\, K_g

Every matrix is block-tridiagonal once as many consecutive times as the longest lag are put into one
block. The processes are causal, so times beyond the last observation change nothing before them:
they fill the last block, and they are the forecast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from curvi._core.errors import InputError

_LONGEST_SEASON = 104

Entry = tuple[int, int, float]  # lag, component, coefficient


class Innovation(NamedTuple):
    """Rows ``sum coefficient u[t - lag, component]``, independent N(0, sd^2), for a range of t."""

    sd: str | float  # the name of a hyperparameter, or a known number
    entries: tuple[Entry, ...]
    first: int
    last: int | None = None


@dataclass(frozen=True)
class Components:
    """Which processes add up to the predictor.

    Attributes
    ----------
    level : {"walk", "ar", None}
        A random walk, or a stationary autoregression of order one around a mean.
    trend : bool
        Whether the level has a slope, which is a random walk itself.
    season : int
        Number of steps of a period; zero for none.
    scale : float
        The unit of the predictor, in which the priors are stated.
    """

    level: str | None = "walk"
    trend: bool = False
    season: int = 0
    scale: float = 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """The components of the state at one time."""
        present = (self.level, self.trend, self.season)
        return tuple(n for n, on in zip(("level", "slope", "season"), present, strict=True) if on)

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Standard deviations of innovations, and the autocorrelation."""
        found = ["level"] if self.level else []
        found += ["trend"] * bool(self.trend) + ["season"] * bool(self.season)
        return (*found, *(["correlation"] if self.level == "ar" else []))

    @property
    def group(self) -> int:
        """Times per block."""
        return max(1, self.season - 1)

    def innovations(self) -> list[Innovation]:
        """All processes but the autoregression, first values with wide priors included."""
        place = {name: index for index, name in enumerate(self.names)}
        found: list[Innovation] = []
        if self.level == "walk":
            level = place["level"]
            moved: tuple[Entry, ...] = ((0, level, 1.0), (1, level, -1.0))
            if self.trend:
                slope = place["slope"]
                moved = (*moved, (1, slope, -1.0))
                found.append(Innovation("trend", ((0, slope, 1.0), (1, slope, -1.0)), 1))
                found.append(Innovation(self.scale, ((0, slope, 1.0),), 0, 1))
            found.append(Innovation("level", moved, 1))
            found.append(Innovation(10 * self.scale, ((0, level, 1.0),), 0, 1))
        if self.season:
            season, period = place["season"], self.season
            whole = tuple((lag, season, 1.0) for lag in range(period))
            found.append(Innovation("season", whole, period - 1))
            found.append(Innovation(3 * self.scale, ((0, season, 1.0),), 0, period - 1))
        return found


class Blocks(NamedTuple):
    """A block-tridiagonal matrix."""

    diagonal: np.ndarray
    below: np.ndarray


class Structure:
    """The matrices K_g for a number of times, and the map from states to predictors.

    Parameters
    ----------
    components : Components
        The processes.
    length : int
        Times with a predictor.
    """

    def __init__(self, components: Components, length: int) -> None:
        self.components, self.length = components, length
        self.states, group = len(components.names), components.group
        self.num_blocks = -(-length // group)
        self.times = self.num_blocks * group
        self.width = group * self.states
        self.read = self._reading()
        self.parts: list[Blocks] = []
        self.coefficients: list[tuple[str, ...]] = []  # names whose product multiplies the part
        self.counts: dict[str, int] = {}
        self.constant = 0.0  # of log det P
        for innovation in components.innovations():
            self._add(innovation)
        if components.level == "ar":
            self._add_autoregression()

    def _reading(self) -> np.ndarray:
        """(group, width): the predictor of each time of a block; slopes do not enter it."""
        names, group = self.components.names, self.components.group
        row = np.asarray([0.0 if name == "slope" else 1.0 for name in names])
        return np.kron(np.eye(group), row[None])

    def _blocks(self, matrix: sparse.csr_array) -> Blocks:
        shape = (self.num_blocks, self.width, self.width)
        diagonal, below = np.zeros(shape), np.zeros((shape[0] - 1, *shape[1:]))
        entries = matrix.tocoo()
        row, column = entries.row // self.width, entries.col // self.width
        inside = (entries.row % self.width, entries.col % self.width)
        for offset, target in ((0, diagonal), (1, below)):
            chosen = row - column == offset
            np.add.at(
                target,
                (column[chosen], inside[0][chosen], inside[1][chosen]),
                entries.data[chosen],
            )
        return Blocks(diagonal, below)

    def _add(self, innovation: Innovation) -> None:
        last = self.times if innovation.last is None else min(innovation.last, self.times)
        times = np.arange(innovation.first, last)
        known = 1.0 if isinstance(innovation.sd, str) else float(innovation.sd)
        rows, columns, values = [], [], []
        for lag, component, coefficient in innovation.entries:
            rows.append(np.arange(len(times)))
            columns.append((times - lag) * self.states + component)
            values.append(np.full(len(times), coefficient / known))
        shape = (len(times), self.times * self.states)
        data = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        matrix = sparse.csr_array(data, shape=shape)
        self.parts.append(self._blocks(sparse.csr_array(matrix.T @ matrix)))
        # C is square and triangular with ones on its diagonal, but for known scales.
        if isinstance(innovation.sd, str):
            self.coefficients.append((innovation.sd,))
            self.counts[innovation.sd] = len(times)
        else:
            self.coefficients.append(())
            self.constant -= 2 * len(times) * math.log(known)

    def _add_autoregression(self) -> None:
        """``tau (I + phi K_1 + phi^2 K_2)`` for x_1 stationary, x_t - phi x_{t-1} ~ N(0, sd^2)."""
        size = self.times * self.states
        at = np.arange(self.times) * self.states  # the level stands first
        ones = np.ones(self.times)

        def square(values: np.ndarray, row: np.ndarray, column: np.ndarray) -> Blocks:
            return self._blocks(sparse.csr_array((values, (row, column)), shape=(size, size)))

        self.parts.append(square(ones, at, at))
        below, above = (at[1:], at[:-1]), (at[:-1], at[1:])
        both = [np.concatenate(pair) for pair in zip(below, above, strict=True)]
        self.parts.append(square(-np.ones(len(both[0])), *both))
        inner = ones.copy()
        inner[[0, -1]] = 0 if self.times > 1 else -1
        self.parts.append(square(inner, at, at))
        self.coefficients += [("level",), ("level", "phi"), ("level", "phi", "phi")]
        self.counts["level"] = self.times

    def precision(self, theta: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Blocks of P and its log determinant for several theta side by side.

        Parameters
        ----------
        theta : dict of arrays, shape (points,)
            Standard deviations by name, and ``phi``.

        Returns
        -------
        diagonal, below, log_det : array
            Of shapes (points, N, w, w), (points, N - 1, w, w) and (points,).
        """
        points = len(next(iter(theta.values())))
        table = np.ones((points, len(self.parts)))
        for index, names in enumerate(self.coefficients):
            for name in names:
                table[:, index] *= theta["phi"] if name == "phi" else theta[name] ** -2.0
        diagonal = np.einsum("kg,gnij->knij", table, np.stack([p.diagonal for p in self.parts]))
        below = np.einsum("kg,gnij->knij", table, np.stack([p.below for p in self.parts]))
        log_det = np.full(points, self.constant)
        for name, count in self.counts.items():
            log_det -= 2 * count * np.log(theta[name])
        if "phi" in theta:
            log_det += np.log1p(-(theta["phi"] ** 2))
        return diagonal, below, log_det


def check_season(season: int, steps: int) -> None:
    """Refuse a period that was not seen twice, and a fit that would take many minutes."""
    if 2 * season > steps:
        raise InputError(
            f"season is {season} but y has {steps} step(s), and two whole periods are needed to "
            "tell a season from the level; use a longer series or season=None"
        )
    if season > _LONGEST_SEASON or steps * season**2 > 10**7:
        raise InputError(
            f"season is {season} and y has {steps} steps: the time of a fit grows with the steps "
            f"and the square of the season, which has at most {_LONGEST_SEASON}; give sines and "
            "cosines of the period as columns of X, or add the series up to fewer steps"
        )
