"""The iteration of truncated conjugate gradients: ``begin`` and ``iterate``.

It is written once for NumPy vectors and for pytrees of JAX arrays, and free of branches, so that
one text serves an eager loop on the host, a compiled ``while_loop`` and a ``vmap`` over systems.

Every iteration makes exactly one product, with the search direction or, when the recursive
residual claims convergence, with the iterate itself to verify the claim. A product returns A p and
M^-1 A p together; all that belongs to the metric M then follows by recurrence.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from curvi.linalg import _arithmetic as la
from curvi.linalg._arithmetic import Scalar, Vector

RUNNING = -1
KEEP = ("lowest_model", "least_residual")


class CGOutcome(enum.IntEnum):
    """Why conjugate gradients stopped."""

    CONVERGED = 0
    PROGRESS = 1
    MAX_STEPS = 2
    NEGATIVE_CURVATURE = 3
    BOUNDARY = 4
    NON_FINITE = 5
    STALLED = 6

    @property
    def sentence(self) -> str:
        """What happened, for people."""
        return _SENTENCES[self]


_SENTENCES = {
    CGOutcome.CONVERGED: "The residual meets the tolerance.",
    CGOutcome.PROGRESS: "The last steps improved the quadratic model too little to go on.",
    CGOutcome.MAX_STEPS: "The cap on the number of steps was reached.",
    CGOutcome.NEGATIVE_CURVATURE: "A direction without positive curvature was found.",
    CGOutcome.BOUNDARY: "The solution lies on the boundary of the trust region.",
    CGOutcome.NON_FINITE: "A product, the preconditioner or the right-hand side is not finite.",
    CGOutcome.STALLED: "Rounding, or a preconditioner that is not positive, ended progress.",
}


@dataclass(frozen=True)
class CGSystem:
    """What stays fixed: the system A x = b in the metric M, and when to stop."""

    products: Callable[[Vector], tuple[Vector, Vector]]  # p to (A p, M^-1 A p)
    rhs: Vector
    natural: Vector  # M^-1 b
    tolerance: Scalar  # relative residual that counts as converged
    eps: float  # rounding unit of the products
    max_steps: Scalar
    radius: Scalar | None = None
    progress_tolerance: Scalar | None = None
    natural_norm: bool = False  # whether residuals are measured in the norm of M^-1
    verify: bool = True  # whether convergence is claimed on the true residual only
    least_residual: bool = False  # whether the iterate of least residual is kept

    @cached_property
    def rhs_norm(self) -> Scalar:
        """The size of b in the norm of residuals."""
        return self.size_of(self.rhs, la.vdot(self.rhs, self.natural))

    def size_of(self, residual: Vector, energy: Scalar) -> Scalar:
        """``|r|``, or ``sqrt(r' M^-1 r)`` where residuals are measured in the metric."""
        xp = la.namespace(energy)
        return xp.sqrt(xp.maximum(energy, 0.0)) if self.natural_norm else la.norm(residual)

    def model(self, iterate: Vector, residual: Vector) -> Scalar:
        """phi(x) = x'Ax/2 - b'x = -x'(b + r)/2, without a product."""
        return -0.5 * la.vdot(iterate, la.add(self.rhs, residual))


class CGState(NamedTuple):
    """What changes. The current iterate is ``base + correction``.

    The correction is kept apart because it starts again from zero at each refinement: rounding of
    the sum then enters once and not at every step.
    """

    base: Vector  # the last iterate whose true residual is known
    base_norm: Scalar  # the norm of that residual
    base_model: Scalar
    correction: Vector
    residual: Vector  # recursive, r = b - A x
    natural: Vector  # M^-1 r
    energy: Scalar  # r' M^-1 r
    search: Vector  # direction p
    curvature: Scalar  # p' A p of the last product with p
    length_sq: Scalar  # x' M x, and the two products that update it without M
    overlap: Scalar  # x' M p
    search_sq: Scalar  # p' M p
    best: Vector
    best_norm: Scalar
    best_model: Scalar
    best_length_sq: Scalar
    lowest_model: Scalar
    checking: Scalar  # the next product is for the true residual
    refined: Scalar  # a restart has broken the Lanczos recurrence
    steps: Scalar
    products: Scalar
    outcome: Scalar
    history: Any  # circular: model values of the last steps
    alphas: Any
    betas: Any


class _Residual(NamedTuple):
    vector: Vector
    natural: Vector
    energy: Scalar
    norm: Scalar


def begin(
    system: CGSystem,
    start: Vector,
    image: tuple[Vector, Vector],
    *,
    length_sq: Scalar = 0.0,
    products: int = 0,
    num_coefficients: int = 0,
) -> CGState:
    """The state before the first step, from a start x and its image (A x, M^-1 A x)."""
    xp = la.namespace(la.vdot(system.rhs, system.rhs))
    residual = la.subtract(system.rhs, image[0])
    natural = la.subtract(system.natural, image[1])
    energy = la.vdot(residual, natural)
    norm = system.size_of(residual, energy)
    model = system.model(start, residual)
    zero = xp.zeros_like(norm)
    outcome = la.first_case(
        xp,
        (~xp.isfinite(norm + energy), CGOutcome.NON_FINITE),
        (norm <= system.tolerance * system.rhs_norm, CGOutcome.CONVERGED),
        (~(energy > 0), CGOutcome.STALLED),
        default=RUNNING,
    )
    window = 0 if system.progress_tolerance is None else max(10, system.max_steps // 10) + 1
    return CGState(
        base=start,
        base_norm=norm,
        base_model=model,
        correction=la.zeros_like(start),
        residual=residual,
        natural=natural,
        energy=energy,
        search=natural,
        curvature=zero,
        length_sq=zero + length_sq,
        overlap=la.vdot(start, residual),
        search_sq=energy,
        best=start,
        best_norm=norm,
        best_model=model,
        best_length_sq=zero + length_sq,
        lowest_model=model,
        checking=xp.asarray(False)[()],
        refined=xp.asarray(False)[()],
        steps=xp.asarray(0, xp.int32)[()],
        products=xp.asarray(products, xp.int32)[()],
        outcome=outcome,
        history=xp.broadcast_to(model, (window,)),
        alphas=xp.zeros(num_coefficients, norm.dtype),
        betas=xp.zeros(num_coefficients, norm.dtype),
    )


def iterate(system: CGSystem, state: CGState) -> CGState:
    """Make one product and use it for a step or to verify convergence."""
    xp = la.namespace(state.energy)
    counted = state._replace(products=state.products + 1)
    if not system.verify:
        image, natural_image = system.products(state.search)
        return _after_step(system, counted, xp, image, natural_image)
    point = la.add(state.base, state.correction)
    image, natural_image = system.products(la.select(state.checking, point, state.search))
    return la.select(
        state.checking,
        _after_check(system, counted, xp, point, image, natural_image),
        _after_step(system, counted, xp, image, natural_image),
    )


def _after_step(
    system: CGSystem, state: CGState, xp: Any, image: Vector, natural_image: Vector
) -> CGState:
    """The state after x + alpha p, or the unchanged iterate and the reason why there is no step."""
    curvature = la.vdot(state.search, image)
    # Compared with the rounding error of p'Ap itself, which no rescaling of coordinates changes.
    flat = curvature <= system.eps * la.magnitude(state.search, image)
    alpha = state.energy / xp.where(curvature > 0, curvature, 1.0)
    vector = la.add_scaled(state.residual, -alpha, image)
    natural = la.add_scaled(state.natural, -alpha, natural_image)
    energy = la.vdot(vector, natural)
    residual = _Residual(vector, natural, energy, system.size_of(vector, energy))
    beta = energy / state.energy
    correction = la.add_scaled(state.correction, alpha, state.search)
    point = la.add(state.base, correction)
    model = system.model(point, vector)
    after = _moved(system, state, point, alpha, beta, residual)
    outside = state.checking & False
    if system.radius is not None:
        outside = after.length_sq >= system.radius**2
    rejection = la.first_case(
        xp,
        (~xp.isfinite(curvature), CGOutcome.NON_FINITE),
        (flat, CGOutcome.NEGATIVE_CURVATURE),
        (outside, CGOutcome.BOUNDARY),
        (~xp.isfinite(residual.norm + energy + model), CGOutcome.NON_FINITE),
        default=RUNNING,
    )
    stay = state._replace(outcome=rejection, curvature=curvature)

    steps = state.steps + 1
    claims_convergence = residual.norm <= system.tolerance * system.rhs_norm
    history, slow = _progress(system, xp, state.history, steps, model)
    outcome = la.first_case(
        xp,
        (claims_convergence, RUNNING if system.verify else CGOutcome.CONVERGED),
        (energy <= 0, CGOutcome.STALLED),
        (slow, CGOutcome.PROGRESS),
        (steps >= system.max_steps, CGOutcome.MAX_STEPS),
        default=RUNNING,
    )
    # After a restart the recurrence is another one, and its coefficients are not stored.
    here = (xp.arange(state.alphas.size, dtype=xp.int32) == state.steps) & ~state.refined
    after = after._replace(
        correction=correction,
        curvature=curvature,
        checking=claims_convergence & system.verify,
        steps=steps,
        outcome=outcome,
        history=history,
        alphas=xp.where(here, alpha, state.alphas),
        betas=xp.where(here, beta, state.betas),
    )
    after = _keep_best(system, after, point, residual.norm, model, after.length_sq)
    return la.select(rejection == RUNNING, after, stay)


def _moved(
    system: CGSystem, state: CGState, x: Vector, alpha: Scalar, beta: Scalar, residual: _Residual
) -> CGState:
    """New residual, new direction, and the lengths in the norm of M.

    With M z = r and r'p = 0 for the old p, the lengths follow without a product with M.
    """
    after = state._replace(
        residual=residual.vector,
        natural=residual.natural,
        energy=residual.energy,
        search=la.add_scaled(residual.natural, beta, state.search),
    )
    if system.radius is None:
        return after
    overlap = state.overlap + alpha * state.search_sq
    return after._replace(
        length_sq=state.length_sq + alpha * (state.overlap + overlap),
        overlap=la.vdot(x, residual.vector) + beta * overlap,
        search_sq=residual.energy + beta**2 * state.search_sq,
    )


def _after_check(
    system: CGSystem, state: CGState, xp: Any, point: Vector, image: Vector, natural_image: Vector
) -> CGState:
    """Accept a true residual below the threshold; otherwise restart from it, or give up.

    A restart is iterative refinement. It is worth while only as long as it halves the true
    residual; when it does not, the precision is used up.
    """
    vector = la.subtract(system.rhs, image)
    natural = la.subtract(system.natural, natural_image)
    energy = la.vdot(vector, natural)
    norm = system.size_of(vector, energy)
    model = system.model(point, vector)
    converged = norm <= system.tolerance * system.rhs_norm
    outcome = la.first_case(
        xp,
        (~xp.isfinite(norm + energy + model), CGOutcome.NON_FINITE),
        (converged, CGOutcome.CONVERGED),
        (state.steps >= system.max_steps, CGOutcome.MAX_STEPS),
        (~(norm <= 0.5 * state.base_norm), CGOutcome.STALLED),
        (energy <= 0, CGOutcome.STALLED),
        default=RUNNING,
    )
    improves = (norm <= state.base_norm) | (
        model < state.base_model - _slack(system, state.base_model)
    )
    base, base_norm, base_model = la.select(
        improves, (point, norm, model), (state.base, state.base_norm, state.base_model)
    )
    lowest = xp.where(converged, xp.inf, state.lowest_model).astype(model.dtype)
    best = _keep_best(
        system, state._replace(lowest_model=lowest), base, base_norm, base_model, state.length_sq
    )
    restarted = best._replace(
        base=point,
        base_norm=norm,
        base_model=model,
        correction=la.zeros_like(point),
        residual=vector,
        natural=natural,
        energy=energy,
        search=natural,
        overlap=la.vdot(point, vector),
        search_sq=energy,
        checking=state.checking & False,
        refined=state.refined | True,
        outcome=outcome,
    )
    bad = state._replace(outcome=outcome)
    return la.select(outcome == CGOutcome.NON_FINITE, bad, restarted)


def _keep_best(
    system: CGSystem, state: CGState, point: Vector, norm: Scalar, model: Scalar, length_sq: Scalar
) -> CGState:
    """Adopt the iterate unless its model value is worse than the lowest one by more than rounding.

    Close to the solution model values cannot tell iterates apart while residuals still fall, so a
    tie goes to the later iterate. With ``least_residual`` the residual decides. An iterate that
    does not descend (b'x <= 0) is never adopted: it can only arise from a warm start on an
    indefinite system.
    """
    xp = la.namespace(model)
    if system.least_residual:
        adopt = norm <= state.best_norm
    else:
        adopt = model <= state.lowest_model + _slack(system, state.lowest_model)
    adopt &= la.vdot(system.rhs, point) > 0
    best, best_norm, best_model, best_length_sq = la.select(
        adopt,
        (point, norm, model, length_sq),
        (state.best, state.best_norm, state.best_model, state.best_length_sq),
    )
    return state._replace(
        best=best,
        best_norm=best_norm,
        best_model=best_model,
        best_length_sq=best_length_sq,
        lowest_model=xp.minimum(state.lowest_model, best_model),
    )


def _slack(system: CGSystem, model: Scalar) -> Scalar:
    return system.eps**0.5 * la.namespace(model).abs(model)


def _progress(
    system: CGSystem, xp: Any, history: Any, steps: Scalar, model: Scalar
) -> tuple[Any, Scalar]:
    """Martens' test: whether the relative progress over a window is below the tolerance."""
    if system.progress_tolerance is None:
        return history, xp.isnan(model) & False
    window = xp.maximum(10, steps // 10)
    past = history[(steps - window) % history.size]
    history = la.put(history, steps % history.size, model)
    gain = past - model  # both are <= 0 and the later one is lower
    limit = window.astype(model.dtype) * system.progress_tolerance * -model
    return history, (steps > window) & (model < 0) & (gain < limit)
