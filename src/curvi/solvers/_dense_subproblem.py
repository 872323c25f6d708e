"""The subproblem of a trust region with a dense Hessian, solved exactly on the host."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from curvi.solvers._step import SubproblemSolution

_BISECTIONS = 100
_RIDGE = 1e-11  # on the diagonal of a scaled Hessian


def solve_dense(
    gradient: np.ndarray, hessian: np.ndarray, metric: np.ndarray, radius: float
) -> SubproblemSolution:
    """Minimise g'p + p'Hp/2 subject to p' diag(metric) p <= radius^2.

    A Cholesky factorisation gives the Newton step if it lies inside the region; otherwise the
    eigenvalues give the point on the boundary, the hard case included.
    """
    root = np.sqrt(metric)
    gradient = gradient / root
    matrix = hessian / root[:, None] / root[None, :]
    # A column of zeros under a relevance prior has a direction that changes nothing. Without a
    # ridge, the sign of a rounding error would decide how far a step goes along it.
    matrix[np.diag_indices_from(matrix)] += _RIDGE * max(1.0, float(np.max(np.diag(matrix))))
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(matrix))):
        return _solution(np.zeros_like(gradient), root, np.nan, inside=False, negative=False)
    try:
        factor = linalg.cho_factor(matrix, check_finite=False)
        move = -linalg.cho_solve(factor, gradient, check_finite=False)
        if np.linalg.norm(move) <= radius:
            return _solution(move, root, -0.5 * gradient @ move, inside=True, negative=False)
    except linalg.LinAlgError:
        pass  # negative curvature: the best step is on the boundary
    values, vectors = linalg.eigh(matrix, check_finite=False)
    turned = vectors.T @ gradient
    coefficients = -turned / (values + _shift(values, turned, radius))
    missing = radius**2 - coefficients @ coefficients
    if values[0] < 0 and missing > 0:  # the hard case: complete along the lowest eigenvector
        coefficients[0] += np.copysign(np.sqrt(missing), coefficients[0])
    gain = -(turned @ coefficients + 0.5 * values @ coefficients**2)
    return _solution(vectors @ coefficients, root, gain, inside=False, negative=bool(values[0] < 0))


def _solution(
    move: np.ndarray, root: np.ndarray, gain: float, *, inside: bool, negative: bool
) -> SubproblemSolution:
    return SubproblemSolution(
        step=move / root,
        gain=np.float64(gain),
        length=np.linalg.norm(move),
        inside=np.bool_(inside),
        negative_curvature=np.bool_(negative),
        iterations=1,
    )


def _shift(values: np.ndarray, turned: np.ndarray, radius: float) -> float:
    """The shift of the eigenvalues at which the step has the length of the radius."""
    scale = max(abs(values[0]), abs(values[-1]), float(np.finfo(np.float64).tiny))
    low = max(0.0, -values[0]) + 1e-12 * scale
    high = low + np.linalg.norm(turned) / radius + scale
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if np.linalg.norm(turned / (values + middle)) > radius:
            low = middle
        else:
            high = middle
    return high
