"""Modes of low-dimensional log densities, by Newton's method on differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

Density = Callable[[np.ndarray], np.ndarray]
Local = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]  # value, gradient, Hessian
_STEP = 2e-3  # of second differences: errors of h^2 and of rounding / h^2 are both small
_LENGTHS = 2.0 ** -np.arange(8)


def differences(
    density: Density, at: np.ndarray, step: float = _STEP
) -> tuple[float, np.ndarray, np.ndarray]:
    """Value, gradient and Hessian by central differences, in one call of the density."""
    size = len(at)
    eye = step * np.eye(size)
    pairs = [(i, j) for i in range(size) for j in range(i)]
    corners = [s * eye[i] + r * eye[j] for i, j in pairs for s in (1, -1) for r in (1, -1)]
    moves = np.concatenate([np.zeros((1, size)), eye, -eye, np.reshape(corners, (-1, size))])
    values = density(at + moves)
    centre, up, down = values[0], values[1 : size + 1], values[size + 1 : 2 * size + 1]
    hessian = np.diag((up - 2 * centre + down) / step**2)
    for (i, j), v in zip(pairs, values[2 * size + 1 :].reshape(-1, 4), strict=True):
        hessian[i, j] = hessian[j, i] = (v[0] - v[1] - v[2] + v[3]) / (4 * step**2)
    return float(centre), (up - down) / (2 * step), hessian


def ascent(gradient: np.ndarray, hessian: np.ndarray, *, longest: float = 2.0) -> np.ndarray:
    """Newton's direction with the curvatures made negative, no entry longer than a limit.

    ``longest``: size of one Newton step in any coordinate of log scales.
    """
    values, vectors = np.linalg.eigh(hessian)
    floor = max(1e-3, 1e-6 * float(np.abs(values).max()))
    step = vectors @ ((vectors.T @ gradient) / np.maximum(np.abs(values), floor))
    return step * min(1.0, longest / max(float(np.abs(step).max()), 1e-300))


def find_mode(
    density: Density, start: np.ndarray, *, difference: float = _STEP, tolerance: float = 1e-4,
    most: int = 60, converged: float = 1e-2, local: Local | None = None,
) -> tuple[np.ndarray, np.ndarray, bool]:  # fmt: skip
    """The mode by Newton's method: place, Hessian there, whether it was reached.

    On differences of the density, or what ``local`` says of its slopes at a place.
    ``converged``: nats that no step could gain, through rounding.
    """
    at = np.array(start)
    local = local or partial(differences, density, step=difference)
    for _ in range(most):
        value, gradient, hessian = local(at)
        step = ascent(gradient, hessian)
        if abs(gradient @ step) < tolerance:
            return at, hessian, True
        values = density(at + _LENGTHS[:, None] * step)
        values = np.where(np.isfinite(values), values, -np.inf)
        best = int(np.argmax(values))
        if values[best] <= value:
            return at, hessian, bool(gradient @ step < converged)
        at = at + _LENGTHS[best] * step
    return at, local(at)[2], False
