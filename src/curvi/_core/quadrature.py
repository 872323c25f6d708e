"""Points and weights with which expectations over normal variables become sums."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy import special


@cache
def gauss_hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Gauss-Hermite rule for a standard normal variable."""
    nodes, weights = special.roots_hermitenorm(count)
    return nodes, weights / weights.sum()


@cache
def trapezoid(count: int, reach: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
    """Equally spaced nodes and their weights: for functions that bend within one sd.

    The error falls exponentially with the number of nodes, where that of Gauss-Hermite falls with
    its root.
    """
    nodes = np.linspace(-reach, reach, count)
    weights = np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()
