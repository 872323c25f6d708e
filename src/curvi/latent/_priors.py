"""Prior densities of unconstrained hyperparameters: of logarithms, and of tangents."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from curvi.likelihoods import Extra

LKJ = 2.0  # concentration of the prior of correlations


def half_normal(log: np.ndarray, scale: float | np.ndarray) -> np.ndarray:
    """Log density of the logarithm of a half-normal variable."""
    relative = log - np.log(scale)
    return 0.5 * math.log(2 / math.pi) - 0.5 * np.exp(2 * relative) + relative


def beta_of_tangent(tangent: np.ndarray, a: float, b: float) -> np.ndarray:
    """Log density of ``arctanh(phi)`` where ``(1 + phi) / 2`` is a beta variable."""
    logs = -a * np.logaddexp(0, -2 * tangent) - b * np.logaddexp(0, 2 * tangent)
    return logs + math.log(2) - special.betaln(a, b)


def lkj(tangents: np.ndarray, size: int) -> np.ndarray:
    """Log density of tangents of canonical partial correlations: ``(1 - p^2)^b`` each."""
    total, at = np.zeros(tangents.shape[:-1]), 0
    for row in range(1, size):
        for column in range(row):
            power = LKJ + 0.5 * (size - 2 - column)
            value = tangents[..., at]
            # log(1 - tanh(x)^2), without cancellation where the tangent is one
            log_gap = 2 * (math.log(2.0) - np.abs(value) - np.log1p(np.exp(-2 * np.abs(value))))
            constant = (2 * power - 1) * math.log(2.0) + special.betaln(power, power)
            total = total + power * log_gap - constant
            at += 1
    return total


def of_extra(log: np.ndarray, extra: Extra) -> np.ndarray:
    """Log density of the logarithm of a hyperparameter of a likelihood."""
    if extra.prior == "gamma":
        return 2 * (log - math.log(extra.scale)) - np.exp(log) / extra.scale
    return half_normal(log, extra.scale)
