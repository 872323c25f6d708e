"""Prior densities of unconstrained hyperparameters: of logarithms, and of tangents."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from curvi.likelihoods import Extra


def half_normal(log: np.ndarray, scale: float) -> np.ndarray:
    """Log density of the logarithm of a half-normal variable."""
    relative = log - math.log(scale)
    return 0.5 * math.log(2 / math.pi) - 0.5 * np.exp(2 * relative) + relative


def beta_of_tangent(tangent: np.ndarray, a: float, b: float) -> np.ndarray:
    """Log density of ``arctanh(phi)`` where ``(1 + phi) / 2`` is a beta variable."""
    logs = -a * np.logaddexp(0, -2 * tangent) - b * np.logaddexp(0, 2 * tangent)
    return logs + math.log(2) - special.betaln(a, b)


def of_extra(log: np.ndarray, extra: Extra) -> np.ndarray:
    """Log density of the logarithm of a hyperparameter of a likelihood."""
    if extra.prior == "gamma":
        return 2 * (log - math.log(extra.scale)) - np.exp(log) / extra.scale
    return half_normal(log, extra.scale)
