"""Predictors and responses of rows under the posterior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from curvi.latent import quantile
from curvi.likelihoods import Likelihood
from curvi.mixed._posterior import MixedPosterior, weighted_quantile

_NUMBERS_AT_ONCE = 2**22
_DRAWS = 4000  # of new responses per row


@dataclass(frozen=True)
class NewRows:
    """Rows as the fitted formula sees them."""

    X: np.ndarray
    offset: np.ndarray
    trials: np.ndarray
    codes: tuple[np.ndarray, ...]  # by factor
    columns: tuple[np.ndarray, ...]

    def blocks(self, points: int) -> Iterator[slice]:
        """Rows a few at a time."""
        size = max(1, _NUMBERS_AT_ONCE // (8 * points))
        return (slice(start, start + size) for start in range(0, len(self.X), size))


def predictor(
    posterior: MixedPosterior, rows: NewRows, part: slice, points: slice = slice(None)
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the linear predictor per component and row."""
    mean = posterior.fixed()[points] @ rows.X[part].T + rows.offset[part]
    variance = np.zeros_like(mean)
    for index, (codes, columns) in enumerate(zip(rows.codes, rows.columns, strict=True)):
        m, v = posterior.conditional(index, codes[part], columns[part], points)
        mean, variance = mean + m, variance + v
    return mean, variance


def expected_response(
    posterior: MixedPosterior, likelihood: Likelihood, rows: NewRows
) -> np.ndarray:
    """``E[y]`` of every row."""
    out, shift = np.empty(len(rows.X)), _mean_shift(posterior, likelihood)
    for part in rows.blocks(len(posterior.weights)):
        mean, variance = predictor(posterior, rows, part)
        mean = mean + shift
        value = likelihood.expected_mean(mean, variance, rows.trials[part])
        out[part] = posterior.weights @ value
    return out


def _mean_shift(posterior: MixedPosterior, likelihood: Likelihood) -> np.ndarray:
    """What hyperparameters add to a predictor before the mean response, per component."""
    extra = posterior.layout.extra_values(posterior.theta)
    return np.broadcast_to(likelihood.mean_shift(extra), len(extra))[:, None]


def intervals(
    posterior: MixedPosterior, likelihood: Likelihood, rows: NewRows, level: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lower and upper ends for ``E[y | predictor]``, and the sd of the predictor."""
    ends, shift = np.empty((3, len(rows.X))), _mean_shift(posterior, likelihood)
    for part in rows.blocks(len(posterior.weights)):
        mean, variance = predictor(posterior, rows, part)
        mean = mean + shift
        sd, w = np.sqrt(variance), posterior.weights
        for row, q in enumerate((0.5 - level / 2, 0.5 + level / 2)):
            t = quantile(mean, sd, w, q)
            ends[row, part] = likelihood.mean(t, rows.trials[part])
        centre = w @ mean
        ends[2, part] = np.sqrt(w @ (variance + (mean - centre) ** 2))
    return ends[0], ends[1], ends[2]


def drawn_responses(
    posterior: MixedPosterior, likelihood: Likelihood, rows: NewRows, part: slice,
    chosen: np.ndarray, rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    """New responses of a part of the rows, one of each from every chosen point: (points, rows)."""
    mean, variance = predictor(posterior, rows, part)
    t = mean[chosen] + np.sqrt(variance)[chosen] * rng.standard_normal(mean[chosen].shape)
    extra = posterior.layout.extra_values(posterior.theta)[chosen]
    return np.asarray(likelihood.sample(t, rows.trials[part], extra[:, None, :], rng))


def response_intervals(
    posterior: MixedPosterior, likelihood: Likelihood, rows: NewRows, level: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Lower and upper ends for new responses, from draws."""
    low, high = np.empty(len(rows.X)), np.empty(len(rows.X))
    chosen = posterior.resampled(_DRAWS, rng)
    for part in rows.blocks(_DRAWS):
        y = drawn_responses(posterior, likelihood, rows, part, chosen, rng)
        equal = np.full(_DRAWS, 1 / _DRAWS)
        low[part] = weighted_quantile(y, equal, 0.5 - level / 2)
        high[part] = weighted_quantile(y, equal, 0.5 + level / 2)
    return low, high


def row_log_likelihood(
    posterior: MixedPosterior, likelihood: Likelihood, rows: NewRows, y: np.ndarray,
    draws: dict[str, Any],
) -> np.ndarray:  # fmt: skip
    """``log p(y_i | draw)``: (draws, rows), for known levels."""
    t = draws["fixed"] @ rows.X.T + rows.offset
    for effects, codes, columns in zip(draws["effects"], rows.codes, rows.columns, strict=True):
        t = t + np.einsum("nk,snk->sn", columns, effects[:, codes])
    extra = posterior.layout.extra_values(draws["theta"])[:, None, :]
    return np.asarray(likelihood.log_density(t, y, rows.trials, extra))
