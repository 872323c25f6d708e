"""The subproblem of a trust region with a dense Hessian, solved exactly on the host."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from curvi.solvers._step import SubproblemSolution


def solve_dense(
    gradient: np.ndarray,
    hessian: np.ndarray,
    metric: np.ndarray,
    radius: float,
    *,
    ridge: float = 1e-11,
) -> SubproblemSolution:
    """Minimise g'p + p'Hp/2 subject to p' diag(metric) p <= radius^2.

    A Cholesky factorisation gives the Newton step if it lies inside the region. Otherwise a few
    more, each with a larger diagonal, give a point near the boundary (More and Sorensen, 1983);
    where these find none, as in the hard case, the eigenvalues give it.

    ``ridge``: on the diagonal of a scaled Hessian.
    """
    root = np.sqrt(metric)
    gradient = gradient / root
    matrix = hessian / root[:, None] / root[None, :]
    # A column of zeros under a relevance prior has a direction that changes nothing. Without a
    # ridge, the sign of a rounding error would decide how far a step goes along it.
    matrix[np.diag_indices_from(matrix)] += ridge * max(1.0, float(np.max(np.diag(matrix))))
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(matrix))):
        return _solution(np.zeros_like(gradient), root, np.nan, inside=False, negative=False)
    try:
        factor = linalg.cho_factor(matrix, check_finite=False)
        move = -linalg.cho_solve(factor, gradient, check_finite=False)
        if np.linalg.norm(move) <= radius:
            return _solution(move, root, -0.5 * gradient @ move, inside=True, negative=False)
        negative = False
    except linalg.LinAlgError:
        negative = True  # the best step is on the boundary
    solution = _on_boundary(matrix, gradient, radius)
    if solution is not None:
        gain = -(gradient @ solution + 0.5 * solution @ matrix @ solution)
        return _solution(solution, root, gain, inside=False, negative=negative)
    values, vectors = linalg.eigh(matrix, check_finite=False)
    turned = vectors.T @ gradient
    coefficients = -turned / (values + _shift(values, turned, radius))
    missing = radius**2 - coefficients @ coefficients
    if values[0] < 0 and missing > 0:  # the hard case: complete along the lowest eigenvector
        coefficients[0] += np.copysign(np.sqrt(missing), coefficients[0])
    gain = -(turned @ coefficients + 0.5 * values @ coefficients**2)
    return _solution(vectors @ coefficients, root, gain, inside=False, negative=bool(values[0] < 0))


def _on_boundary(
    matrix: np.ndarray,
    gradient: np.ndarray,
    radius: float,
    *,
    factorisations: int = 12,
    near: float = 0.02,
) -> np.ndarray | None:
    """The step ``-(H + shift)^-1 g`` of nearly the length of the radius, or None.

    Newton's iteration on the secular equation ``1 / |p| = 1 / radius``, kept between bounds.

    ``factorisations``: after which eigenvalues are cheaper.
    ``near``: of the radius, by which a step may miss the boundary.
    """
    diagonal = np.diag_indices_from(matrix)
    shift = float(np.linalg.norm(gradient)) / radius
    low, high = 0.0, shift + float(np.linalg.norm(matrix))
    for _ in range(factorisations):
        shifted = matrix.copy()
        shifted[diagonal] += shift
        try:
            factor = linalg.cholesky(shifted, lower=True, check_finite=False)
        except linalg.LinAlgError:
            low = shift
            shift = max(2 * shift, 0.01 * high) if 2 * shift < high else 0.5 * (low + high)
            continue
        move = -linalg.cho_solve((factor, True), gradient, check_finite=False)
        length = float(np.linalg.norm(move))
        if abs(length - radius) <= near * radius:
            return np.asarray(move)
        low, high = (shift, high) if length > radius else (low, shift)
        half = linalg.solve_triangular(factor, move, lower=True, check_finite=False)
        shift += float((length / np.linalg.norm(half)) ** 2 * (length - radius) / radius)
        if not low < shift < high:
            shift = 0.5 * (low + high)
    return None


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


def _shift(
    values: np.ndarray, turned: np.ndarray, radius: float, *, bisections: int = 100
) -> float:
    """The shift of the eigenvalues at which the step has the length of the radius."""
    scale = max(abs(values[0]), abs(values[-1]), float(np.finfo(np.float64).tiny))
    low = max(0.0, -values[0]) + 1e-12 * scale
    high = low + np.linalg.norm(turned) / radius + scale
    for _ in range(bisections):
        middle = 0.5 * (low + high)
        if np.linalg.norm(turned / (values + middle)) > radius:
            low = middle
        else:
            high = middle
    return high
