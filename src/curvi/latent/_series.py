r"""Effects in time: walks, trends, autoregressions, seasons.

Their precision is a sum of given matrices with coefficients of theta,

.. math:: Q(\theta) = \sum_g c_g(\theta)\, K_g,

mostly because rows :math:`\sum_k c_k u_{t - k}` are independent :math:`N(0, \sigma^2)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.latent._component import Component, Natural, Precision
from curvi.latent._priors import beta_of_tangent, half_normal
from curvi.linalg import Pattern

Steps = Sequence[int] | np.ndarray


class Increment(NamedTuple):
    """Rows ``sum coefficient u[t - lag, part]``, independent N(0, sd^2), for a range of t.

    The sd is the place of a hyperparameter, or a known number.
    """

    sd: int | float
    entries: tuple[tuple[int, int, float], ...]  # lag, part of the state, coefficient
    first: int
    last: int | None = None


class SeriesComponent(Component):
    """A process over steps 0, 1, ..., with one part of the state or several.

    Parameters
    ----------
    given : sequence of int
        The step that each row sees.
    name : str
        Of the component.
    steps : int, optional
        Number of steps; with more than the rows see, the others are forecast.
    """

    parts: tuple[str, ...] = ("",)  # of the state at one step; the first is what rows see

    def __init__(self, given: Steps, name: str, steps: int | None) -> None:
        self.name = name
        index = np.asarray(given)
        if index.ndim != 1 or index.dtype.kind not in "iu" or (index < 0).any():
            raise InputError(f"index of {name!r} holds the step of each row, whole numbers from 0")
        self.steps = int(index.max(initial=-1)) + 1 if steps is None else int(steps)
        self.A = self.columns_for(index)
        self._terms: list[np.ndarray] = []

    def columns_for(self, data: Any) -> sparse.csr_array:
        """Columns of rows that see these steps."""
        index = np.asarray(data)
        if len(index) and not 0 <= index.min() <= index.max() < self.steps:
            raise InputError(
                f"{self.name!r} has steps 0 to {self.steps - 1}; to see later ones, give it more "
                "with steps="
            )
        shape = (len(index), self.steps * len(self.parts))
        at = (np.arange(len(index)), index * len(self.parts))
        return sparse.csr_array((np.ones(len(index)), at), shape=shape)

    @property
    def coordinates(self) -> np.ndarray:
        """Times."""
        return np.repeat(np.arange(float(self.steps)), len(self.parts))[:, None]

    def labels(self) -> list[str]:
        """Steps of each part of the state."""
        names = [f"{self.name} {part}".strip() for part in self.parts]
        return [f"{name}[{step}]" for step in range(self.steps) for name in names]

    def _of(self, matrices: Sequence[sparse.csr_array]) -> None:
        """The pattern, and the entries of each K_g on it."""
        size = self.steps * len(self.parts)
        found = [sparse.tril(matrix).tocoo() for matrix in matrices]
        keys = np.unique(np.concatenate([m.col.astype(np.int64) * size + m.row for m in found]))
        self.columns, self.rows = np.divmod(keys, max(size, 1))
        self._terms = []
        for m in found:
            at = np.searchsorted(keys, m.col.astype(np.int64) * size + m.row)
            self._terms.append(np.bincount(at, m.data, len(keys)))

    def _squares(self, innovations: Sequence[Increment]) -> None:
        """K_g, and what log det Q says of each."""
        matrices: list[sparse.csr_array] = []
        self._sds: list[int | None] = []
        self._counts = np.zeros(len(self.names))
        self._constant = 0.0
        for innovation in innovations:
            last = self.steps if innovation.last is None else min(innovation.last, self.steps)
            times = np.arange(innovation.first, last)
            known = 1.0 if isinstance(innovation.sd, int) else innovation.sd
            at = [
                np.concatenate([np.arange(len(times)) for _ in innovation.entries]),
                np.concatenate(
                    [(times - lag) * len(self.parts) + part for lag, part, _ in innovation.entries]
                ),
            ]
            data = np.concatenate(
                [np.full(len(times), value / known) for *_, value in innovation.entries]
            )
            shape = (len(times), self.steps * len(self.parts))
            matrix = sparse.csr_array((data, at), shape=shape)
            matrices.append(sparse.csr_array(matrix.T @ matrix))
            # The rows of all innovations are square and triangular but for known scales.
            if isinstance(innovation.sd, int):
                self._sds.append(innovation.sd)
                self._counts[innovation.sd] += len(times)
            else:
                self._sds.append(None)
                self._constant -= 2 * len(times) * math.log(known)
        self._of(matrices)

    def precision(self, theta: np.ndarray) -> Precision:
        """RowSums of squared innovations over their variances."""
        theta = np.asarray(theta, np.float64)
        weights = np.stack(
            [np.ones(len(theta)) if j is None else np.exp(-2 * theta[:, j]) for j in self._sds],
            axis=1,
        )
        return Precision(weights @ np.stack(self._terms), self._constant - 2 * theta @ self._counts)


class _Walking(SeriesComponent):
    """Processes whose hyperparameters are the sds of innovations."""

    prior_scales: tuple[float, ...]

    def start(self) -> np.ndarray:
        """Sds at three tenths of their prior scales."""
        return np.log(0.3 * np.asarray(self.prior_scales))

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Half-normal standard deviations."""
        pairs = zip(theta.T, self.prior_scales, strict=True)
        return sum((half_normal(log, scale) for log, scale in pairs), np.zeros(len(theta)))


class RandomWalk(_Walking):
    r"""A random walk, whose first or second differences are independent :math:`N(0, \sigma^2)`.

    Parameters
    ----------
    index : sequence of int
        The step that each row sees.
    name : str
        Of the component, and of its sd.
    order : {1, 2}
        Of the differences.
    prior_scale : float
        Of the half-normal prior of the sd.
    first_sd : float, optional
        Prior sd of the first value, and of the second where the order is 2. By default they have
        no prior, and the values sum to zero; with order 2 their slope is then free.
    steps : int, optional
        Number of steps; with more than the rows see, the others are forecast.
    """

    def __init__(
        self, index: Steps, name: str = "walk", *, order: int = 1,
        prior_scale: float = 1.0, first_sd: float | None = None, steps: int | None = None,
    ) -> None:  # fmt: skip
        if order not in (1, 2):
            raise InputError(f"order is {order!r}; choose 1 or 2")
        self.prior_scales = (validation.positive_number(prior_scale, "prior_scale"),)
        self.names, self.order, self.first_sd = (name,), order, first_sd
        super().__init__(index, name, steps)
        if self.steps <= order:
            raise InputError(f"{name!r} has {self.steps} step(s); order {order} needs more")
        signed = (1.0, -1.0) if order == 1 else (1.0, -2.0, 1.0)
        moves = [Increment(0, tuple((lag, 0, c) for lag, c in enumerate(signed)), order)]
        if first_sd is not None:
            sd = validation.positive_number(first_sd, "first_sd")
            moves.append(Increment(sd, ((0, 0, 1.0),), 0, order))
        self._squares(moves)
        if first_sd is None:  # a constant, and with order 2 a slope, are in the null space
            basis = np.vander(np.linspace(-1, 1, self.steps), order, increasing=True)
            pattern = Pattern(self.rows, self.columns, self.steps)
            self._constant = float(pattern.log_pseudo_determinant(self._terms[0], basis))

    @property
    def constraints(self) -> np.ndarray | None:
        """The sum, where first values have no prior."""
        return None if self.first_sd is not None else np.ones((1, self.size))


class LocalTrend(_Walking):
    """A walk with a slope that is a walk itself: a local linear trend.

    Parameters
    ----------
    index : sequence of int
        The step that each row sees.
    name : str
        Of the component, and of the sd of a step of its level.
    slope_name : str
        Of the sd of a step of the slope.
    prior_scales : pair of float
        Of the half-normal priors of both sds.
    first_sds : pair of float
        Prior sds of the first level and the first slope.
    steps : int, optional
        Number of steps; with more than the rows see, the others are forecast.
    """

    parts = ("", "slope")

    def __init__(
        self, index: Steps, name: str = "level", slope_name: str = "trend", *,
        prior_scales: tuple[float, float] = (1.0, 0.1),
        first_sds: tuple[float, float] = (10.0, 1.0), steps: int | None = None,
    ) -> None:  # fmt: skip
        scales = [validation.positive_number(scale, "prior_scales") for scale in prior_scales]
        self.prior_scales, self.names = tuple(scales), (name, slope_name)
        super().__init__(index, name, steps)
        first = [validation.positive_number(sd, "first_sds") for sd in first_sds]
        self._squares(
            [
                Increment(0, ((0, 0, 1.0), (1, 0, -1.0), (1, 1, -1.0)), 1),
                Increment(1, ((0, 1, 1.0), (1, 1, -1.0)), 1),
                Increment(first[0], ((0, 0, 1.0),), 0, 1),
                Increment(first[1], ((0, 1, 1.0),), 0, 1),
            ]
        )


class Season(_Walking):
    """Effects that sum to about zero over every period: sums are N(0, sd^2).

    Parameters
    ----------
    index : sequence of int
        The step that each row sees.
    period : int
        Number of steps of a period.
    name : str
        Of the component, and of its sd.
    prior_scale : float
        Of the half-normal prior of the sd.
    first_sd : float
        Prior sd of the effects of the first period.
    steps : int, optional
        Number of steps; with more than the rows see, the others are forecast.
    """

    def __init__(
        self, index: Steps, period: int, name: str = "season", *,
        prior_scale: float = 0.5, first_sd: float = 3.0, steps: int | None = None,
    ) -> None:  # fmt: skip
        self.period = validation.positive_integer(period, "period")
        if period < 2:
            raise InputError("period is 1; a period has at least 2 steps")
        self.prior_scales, self.names = (validation.positive_number(prior_scale, "scale"),), (name,)
        super().__init__(index, name, steps)
        sd = validation.positive_number(first_sd, "first_sd")
        whole = tuple((lag, 0, 1.0) for lag in range(period))
        self._squares(
            [Increment(0, whole, period - 1), Increment(sd, ((0, 0, 1.0),), 0, period - 1)]
        )


class Autoregression(SeriesComponent):
    r"""A stationary autoregression: :math:`u_t = \phi u_{t-1} + N(0, \sigma^2)`.

    Parameters
    ----------
    index : sequence of int
        The step that each row sees.
    name : str
        Of the component, and of the sd of a step.
    prior_scale : float
        Of the half-normal prior of the sd of a step.
    beta : pair of float
        Of the beta prior of (1 + phi) / 2.
    steps : int, optional
        Number of steps; with more than the rows see, the others are forecast.
    """

    def __init__(
        self, index: Steps, name: str = "level", *, prior_scale: float = 1.0,
        beta: tuple[float, float] = (20.0, 1.5), steps: int | None = None,
    ) -> None:  # fmt: skip
        self.prior_scale = validation.positive_number(prior_scale, "prior_scale")
        self.beta = (float(beta[0]), float(beta[1]))
        self.names = (name, "phi")
        super().__init__(index, name, steps)
        size, at = self.steps, np.arange(self.steps)
        one = np.ones(size)
        inner = one.copy()
        inner[[0, -1]] = 0.0 if size > 1 else -1.0
        # Q sd^2 = I - phi (neighbours) + phi^2 (inner steps)
        beside = sparse.csr_array((-np.ones(size - 1), (at[1:], at[:-1])), shape=(size, size))
        self._of([sparse.csr_array(sparse.diags_array(d)) for d in (one, inner)] + [beside])

    def precision(self, theta: np.ndarray) -> Precision:
        """Tridiagonal; the first value is stationary."""
        theta = np.asarray(theta, np.float64)
        phi = np.tanh(theta[:, 1])
        weights = np.exp(-2 * theta[:, :1]) * np.stack([np.ones_like(phi), phi**2, phi], axis=1)
        log_gap = 2 * (math.log(2) - np.logaddexp(theta[:, 1], -theta[:, 1]))  # log(1 - phi^2)
        return Precision(weights @ np.stack(self._terms), log_gap - 2 * self.steps * theta[:, 0])

    def start(self) -> np.ndarray:
        """A small sd, and long memory."""
        return np.asarray([math.log(0.3 * self.prior_scale), 1.5])

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """A half-normal sd, a beta autocorrelation."""
        return half_normal(theta[:, 0], self.prior_scale) + beta_of_tangent(theta[:, 1], *self.beta)

    def natural(self, theta: np.ndarray) -> Natural:
        """The sd and the autocorrelation."""
        return {self.names[0]: np.exp(theta[:, 0]), self.names[1]: np.tanh(theta[:, 1])}
