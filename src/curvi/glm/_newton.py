"""Newton's method in a trust region on the host, for functions that give their whole Hessian.

The compiled :class:`~curvi.solvers.TrustRegion` costs seconds of compilation for every new shape
of the data. Where the dense Hessian is cheap this one starts at once, follows the same rules
(ellipsoid of a diagonal metric, delivered over predicted gain, stop by the Newton decrement), and
solves its subproblem exactly.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from scipy import linalg

from curvi._core.errors import Outcome
from curvi.engine import RunResult as LoopResult

_ACCEPT, _POOR, _GOOD = 1e-4, 0.25, 0.75
_PATIENCE = 40
_SHRINKS = 0.01  # of a gain to the next, where an old Hessian is as good as a new one
_CHECKED = 1.0  # gain of a step from which on rounding errors of the Hessian could matter
_NEARLY = 1e-2  # gain of a step from which on shortcuts are tried
_DIGITS = 100.0  # smallest eigenvalue, in rounding errors, of a Hessian that can be trusted
_BISECTIONS = 100
_RIDGE = 1e-11  # on the diagonal of a scaled Hessian


class SecondOrder(NamedTuple):
    """A value, its gradient and its Hessian."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray


@runtime_checkable
class DenseFunction(Protocol):
    """What is minimised: a smooth function of a vector."""

    def value(self, params: np.ndarray) -> float:
        """The function."""

    def first_order(self, params: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient."""

    def second_order(self, params: np.ndarray) -> SecondOrder:
        """Value, gradient and dense Hessian."""

    def metric(self, params: np.ndarray) -> np.ndarray:
        """Positive weights that say how long a step is in each coordinate."""

    def in_mean(self, params: np.ndarray) -> np.ndarray:
        """The parameterisation of each coordinate: derivatives in two of them do not mix."""

    def moved(self, params: np.ndarray, step: np.ndarray) -> np.ndarray:
        """The parameters after a step."""

    def shortcut(self, params: np.ndarray) -> np.ndarray:
        """A guess, near the end, of where slow coordinates are going."""


def minimise_dense(
    function: DenseFunction,
    start: np.ndarray,
    *,
    tolerance: float,
    max_steps: int,
    eps: float = float(np.finfo(np.float64).eps),
    hessian_eps: float = 0.0,
    rough: bool = False,
) -> LoopResult:
    """Minimise; ``eps`` is the relative rounding error of the function's values.

    Where steps shrink fast the Hessian is kept for the next one. With a Hessian of relative
    rounding error ``hessian_eps`` the run ends as stalled, not as converged, where that error
    could have hidden a gain. With ``rough`` it ends at the first step that gains too little, even
    one that the radius cut short.
    """
    began = time.perf_counter()
    params, radius = start, np.sqrt(start.size)
    table: dict[str, list[float]] = {
        name: [] for name in ("step", "seconds", "value", "grad_norm", "gain", "accepted")
    }
    outcome, rejected, broken, step, here = Outcome.RUNNING, 0, 0, 0, None
    kept, before = None, np.inf  # a Hessian that can serve again; the gain of the step before
    checked = hessian_eps == 0  # whether the Hessian's rounding errors are known to be harmless
    with np.errstate(all="ignore"):  # finiteness is checked below
        while outcome is Outcome.RUNNING and step < max_steps:
            root = np.sqrt(function.metric(params))
            if here is None:
                limit = max(_SHRINKS * before, tolerance)
                here = _evaluated(function, params, root, radius, kept, limit)
            move, gain, inside = _subproblem(here, root, radius)
            trial = function.moved(params, move / root)
            trial_value = function.value(trial)
            rounding = eps * max(abs(here.value), 1.0)
            finite = bool(
                np.isfinite(trial_value) and np.isfinite(gain) and np.all(np.isfinite(trial))
            )
            ratio = (here.value - trial_value + 10 * rounding) / (gain + 10 * rounding)
            accepted = finite and ratio > _ACCEPT and (inside or gain > rounding)
            length = float(np.linalg.norm(move)) if finite else radius
            norm = float(np.linalg.norm(here.gradient / root))
            row = (step, time.perf_counter() - began, here.value, norm, gain, accepted)
            for column, entry in zip(table.values(), row, strict=True):
                column.append(entry)
            step += 1
            is_old = here.hessian is kept
            # Not only after an accepted step: with little noise the rounding error of the value
            # can be larger than what is left to gain.
            ends = finite and (inside or rough) and gain < max(tolerance, rounding)
            if ends or (accepted and not is_old and not checked and gain < _CHECKED):
                checked = True
                sure = _is_well_conditioned(here.hessian, hessian_eps)
                outcome = _verdict(ends, sure)
            shrinks = accepted and inside and gain < _SHRINKS * before
            kept, before = here.hessian if shrinks else None, gain if accepted else before
            rejected = 0 if accepted else rejected + 1
            broken = 0 if accepted else broken + (not finite)
            if rejected >= _PATIENCE:
                outcome = Outcome.NON_FINITE if 2 * broken >= rejected else Outcome.STALLED
            if accepted:
                same = np.array_equal(function.in_mean(params), function.in_mean(trial))
                kept, params, here = kept if same else None, trial, None
                if inside and gain < _NEARLY and outcome is Outcome.RUNNING:
                    params = _shorter(function, params, trial_value)
            elif is_old:
                here = None
            radius = _next_radius(radius, length, ratio, finite)
    outcome = Outcome.BUDGET if outcome is Outcome.RUNNING else outcome
    trace = {name: np.asarray(column) for name, column in table.items()}
    return LoopResult(params, outcome, step, trace, time.perf_counter() - began, 0.0)


def _evaluated(
    function: DenseFunction,
    params: np.ndarray,
    root: np.ndarray,
    radius: float,
    kept: np.ndarray | None,
    limit: float,
) -> SecondOrder:
    """Derivatives, with the Hessian of the step before if it gains less than a limit."""
    if kept is not None:
        here = SecondOrder(*function.first_order(params), kept)
        _, gain, inside = _subproblem(here, root, radius)
        if inside and gain <= limit:
            return here
    return function.second_order(params)


def _shorter(function: DenseFunction, params: np.ndarray, value: float) -> np.ndarray:
    """The function's shortcut, if there is one and it does not lead upwards."""
    guess = function.shortcut(params)
    if np.array_equal(guess, params):
        return params
    return guess if function.value(guess) <= value else params


def _next_radius(radius: float, length: float, ratio: float, finite: bool) -> float:
    """Shrink after a bad step; grow after a good one that reached the boundary."""
    if not finite or ratio <= _POOR:
        return 0.25 * min(length, radius)
    return 3 * radius if ratio > _GOOD and length > 0.9 * radius else radius


def _verdict(ends: bool, sure: bool) -> Outcome:
    if not sure:
        return Outcome.STALLED
    return Outcome.CONVERGED if ends else Outcome.RUNNING


def _is_well_conditioned(hessian: np.ndarray, eps: float) -> bool:
    """Whether rounding errors relative to the diagonal leave every eigenvalue its sign."""
    if eps == 0:
        return True
    scale = np.sqrt(np.abs(np.diag(hessian)))
    scaled = hessian / scale[:, None] / scale[None, :]
    if not np.all(np.isfinite(scaled)):
        return False
    return bool(np.min(np.abs(linalg.eigvalsh(scaled))) > _DIGITS * eps)


def _subproblem(
    here: SecondOrder, root: np.ndarray, radius: float
) -> tuple[np.ndarray, float, bool]:
    """The best step of the quadratic model in the ball, its gain, and whether it is inside."""
    gradient = here.gradient / root
    matrix = here.hessian / root[:, None] / root[None, :]
    # A column of zeros under a relevance prior has a direction that changes nothing. Without a
    # ridge, the sign of a rounding error would decide how far a step goes along it.
    matrix[np.diag_indices_from(matrix)] += _RIDGE * max(1.0, float(np.max(np.diag(matrix))))
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(matrix))):
        return np.zeros_like(gradient), np.nan, False
    try:
        factor = linalg.cho_factor(matrix, check_finite=False)
        move = -linalg.cho_solve(factor, gradient, check_finite=False)
        if np.linalg.norm(move) <= radius:
            return move, float(-0.5 * gradient @ move), True
    except linalg.LinAlgError:
        pass  # negative curvature: the best step is on the boundary
    values, vectors = linalg.eigh(matrix, check_finite=False)
    turned = vectors.T @ gradient
    shift = _shift(values, turned, radius)
    coefficients = -turned / (values + shift)
    missing = radius**2 - coefficients @ coefficients
    if values[0] < 0 and missing > 0:  # the hard case: complete along the lowest eigenvector
        coefficients[0] += np.copysign(np.sqrt(missing), coefficients[0])
    gain = -(turned @ coefficients + 0.5 * values @ coefficients**2)
    return vectors @ coefficients, float(gain), False


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
