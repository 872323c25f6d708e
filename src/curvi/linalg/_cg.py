"""Truncated preconditioned conjugate gradients: negative-curvature exit, trust region."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax.tree
from jax.typing import ArrayLike

from curvi._core.errors import InputError
from curvi.linalg import _trees
from curvi.linalg._cg_loop import (
    RUNNING,
    CGOutcome,
    Problem,
    State,
    magnitude,
    quadratic_model,
    residual_size,
    trip,
)
from curvi.linalg._preconditioners import Identity, Preconditioner

PyTree = Any


class CGResult(NamedTuple):
    """What conjugate gradients found; a pytree of arrays.

    Attributes
    ----------
    solution : pytree
        The iterate with the lowest model value, or the point on the boundary.
    direction : pytree
        The direction without positive curvature, or else the last search direction.
    steps : Array
        Steps taken.
    products : Array
        Products with A, those for warm start and true residuals included.
    residual_norm : Array
        ``|b - Ax| / |b|`` of the last interior iterate: true where the outcome is CONVERGED or
        STALLED or no step was taken, otherwise from the recurrence. Measured in the metric if
        ``natural_norm`` was asked for.
    outcome : Array
        Integer code of a :class:`CGOutcome`.
    negative_curvature : Array
        Whether ``direction`` has p'Ap <= 0 up to rounding.
    model_value : Array
        phi(x) = x'Ax/2 - b'x at the solution. Zero where not even the first product was finite.
    alphas, betas : Array
        Leading CG coefficients for :func:`condition_estimate`, zero where there was no step.
    """

    solution: PyTree
    direction: PyTree
    steps: jax.Array
    products: jax.Array
    residual_norm: jax.Array
    outcome: jax.Array
    negative_curvature: jax.Array
    model_value: jax.Array
    alphas: jax.Array
    betas: jax.Array


def conjugate_gradient(
    operator: Callable[[PyTree], PyTree],
    rhs: PyTree,
    *,
    preconditioner: Preconditioner | None = None,
    initial: PyTree | None = None,
    max_steps: int | None = None,
    relative_tolerance: ArrayLike | None = None,
    progress_tolerance: ArrayLike | None = None,
    radius: ArrayLike | None = None,
    natural_norm: bool = False,
    num_coefficients: int = 0,
) -> CGResult:
    r"""Minimise the model phi(x) = x'Ax/2 - b'x, that is solve A x = b, by products with A only.

    .. math::
        \alpha = \frac{r^\top M^{-1} r}{p^\top A p},\quad x \leftarrow x + \alpha p,\quad
        r \leftarrow r - \alpha A p,\quad
        p \leftarrow M^{-1} r + \beta p

    For a Newton step pass ``rhs = -gradient`` (section 2.3 of the paper prints a right-hand side
    with a stray v). A may be indefinite: a direction with :math:`p^\top A p \le \epsilon |p| |Ap|`
    ends the iteration. Without ``radius`` the best iterate so far is then returned, or M^-1 b where
    there was no step yet; with ``radius`` the step goes along that direction to the boundary
    (Steihaug). Without ``radius`` the solution always descends, b'x > 0, unless b is zero or not
    finite.

    When the recursive residual meets the tolerance the true one is computed, and the iteration
    restarts from it if it does not meet it (iterative refinement), until it does or rounding of the
    solution itself, about ``eps |A| |x|``, forbids more (outcome STALLED). Runs inside ``jit`` and
    ``vmap`` without touching the host.

    Parameters
    ----------
    operator : callable
        ``operator(vector) -> vector``, symmetric: a ``LinearMap`` or any function.
    rhs : pytree
        b; all leaves of one float dtype, which all arithmetic follows.
    preconditioner : Preconditioner, optional
        Symmetric positive definite M; the identity by default.
    initial : pytree, optional
        Warm start. One that is worse than zero or outside the radius is scaled to its best
        multiple; one along which A has no positive curvature, one that is not finite, and with
        ``radius`` one that is worse than the Cauchy point, is dropped. Costs one product, two with
        ``radius``.
    max_steps : int, optional
        Cap on steps. None means no cap in practice (100 D + 1000).
    relative_tolerance : float or Array, optional
        Stop at ``|b - Ax| <= tolerance |b|``, in [0, 1); by default eps^(2/3), which is 4e-11 in
        float64 and 2e-5 in float32.
    progress_tolerance : float or Array, optional
        Martens' test: stop at step k when (phi_k - phi_{k-w}) / phi_k < w tolerance over a window
        of w = max(10, k/10) steps.
    radius : float or Array, optional
        Trust region x'Mx <= radius^2.
    natural_norm : bool
        Measure residuals as sqrt(r'M^-1 r) instead of ``|r|``, so that the stopping test does not
        depend on the units of the coordinates.
    num_coefficients : int
        How many alphas and betas to store.

    Raises
    ------
    InputError
        If an option is out of range, or the pytrees do not fit together.

    References
    ----------
    Steihaug (1983), *The conjugate gradient method and trust regions in large scale optimization*;
    Martens (2010), *Deep learning via Hessian-free optimization*.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> result = conjugate_gradient(lambda v: jnp.array([2.0, 4.0]) * v, jnp.array([2.0, 8.0]))
    >>> result.solution.round(4), CGOutcome(int(result.outcome)).name
    (Array([1., 2.], dtype=float32), 'CONVERGED')
    """
    dtype = _trees.real_dtype(rhs, "rhs")
    _check_options(max_steps, relative_tolerance, radius, num_coefficients)
    metric = Identity() if preconditioner is None else preconditioner
    eps = float(jnp.finfo(dtype).eps)
    tolerance = eps ** (2 / 3) if relative_tolerance is None else relative_tolerance

    # A power of two makes the scaling exact; without it tiny gradients underflow when squared.
    scale = _power_of_two(rhs)
    scaled = jax.tree.map(lambda leaf: leaf / scale, rhs)
    problem = Problem(
        operator=operator,
        solve=metric.solve,
        rhs=scaled,
        threshold=jnp.zeros((), dtype),
        natural=natural_norm,
        eps=eps,
        radius=None if radius is None else jnp.asarray(radius, dtype) / scale,
        max_steps=100 * _trees.size(rhs) + 1000 if max_steps is None else max_steps,
        progress_tolerance=(
            None if progress_tolerance is None else jnp.asarray(progress_tolerance, dtype)
        ),
    )
    energy = optax.tree.vdot(scaled, metric.solve(scaled))
    size = residual_size(problem, scaled, energy)
    problem = replace(problem, threshold=jnp.asarray(tolerance, dtype) * size)
    start, products = optax.tree.zeros_like(scaled), 0
    image = start
    if initial is not None:
        _trees.require_same_shapes(initial, rhs, "initial", "rhs")
        guess = jax.tree.map(lambda leaf: leaf / scale, initial)
        start, image = _warm_start(problem, metric, guess)
        products = 1 if radius is None else 2
    state = _initial_state(
        problem, metric, start, image, products=products, num_coefficients=num_coefficients
    )
    state = jax.lax.while_loop(
        lambda state: state.outcome == RUNNING, lambda state: trip(problem, state), state
    )
    return _finish(problem, metric, state, scale)


def _check_options(
    max_steps: int | None,
    tolerance: ArrayLike | None,
    radius: ArrayLike | None,
    num_coefficients: int,
) -> None:
    """Refuse options out of range, as far as their values are known while tracing."""
    if max_steps is not None and max_steps < 1:
        raise InputError(f"max_steps is {max_steps}; give at least 1, or None for no cap")
    if num_coefficients < 0:
        raise InputError(f"num_coefficients is {num_coefficients}; give 0 or more")
    if isinstance(tolerance, int | float) and not 0 <= tolerance < 1:
        raise InputError(f"relative_tolerance is {tolerance}; give a number in [0, 1)")
    if isinstance(radius, int | float) and not radius > 0:
        raise InputError(f"radius is {radius}; give a number > 0, or None for no trust region")


def _power_of_two(tree: PyTree) -> jax.Array:
    """The largest power of two below max |entry|, or one where that is zero or not finite."""
    largest = optax.tree.max(jax.tree.map(jnp.abs, tree))
    usable = jnp.isfinite(largest) & (largest > 0)
    _, exponent = jnp.frexp(jnp.where(usable, largest, 1.0))
    return jnp.ldexp(jnp.ones_like(largest), exponent - 1)


def _warm_start(problem: Problem, metric: Preconditioner, guess: PyTree) -> tuple[PyTree, PyTree]:
    """The multiple of the guess to start from, and its image under A; zeros where it is dropped."""
    image = problem.operator(guess)
    curvature = optax.tree.vdot(guess, image)
    slope = optax.tree.vdot(problem.rhs, guess)
    floor = problem.eps * magnitude(guess, image)
    sound = jnp.isfinite(curvature) & jnp.isfinite(slope) & (curvature > floor)
    best_multiple = slope / jnp.where(sound, curvature, 1.0)
    as_it_is = 0.5 * curvature <= slope
    multiple = jnp.where(as_it_is, 1.0, best_multiple)
    if problem.radius is not None:
        length = jnp.sqrt(optax.tree.vdot(guess, metric.apply(guess)))
        limit = problem.radius / jnp.where(length > 0, length, 1.0)
        multiple = jnp.where(length > problem.radius, best_multiple, multiple)
        multiple = jnp.clip(multiple, -limit, limit)
        # From a worse start the first step could leave the region short of the Cauchy point.
        model = multiple * (0.5 * multiple * curvature - slope)
        sound &= model <= _cauchy_model(problem, problem.radius)
    return optax.tree.where(
        sound & jnp.isfinite(multiple),
        optax.tree.scale(multiple, (guess, image)),
        optax.tree.zeros_like((guess, image)),
    )


def _cauchy_model(problem: Problem, radius: jax.Array) -> jax.Array:
    """Lowest model value along M^-1 b inside the trust region."""
    direction = problem.solve(problem.rhs)
    curvature = optax.tree.vdot(direction, problem.operator(direction))
    slope = optax.tree.vdot(problem.rhs, direction)  # also the squared length in the norm of M
    limit = radius / jnp.sqrt(jnp.where(slope > 0, slope, 1.0))
    inside = jnp.where(curvature > 0, slope / jnp.where(curvature > 0, curvature, 1.0), limit)
    multiple = jnp.minimum(inside, limit)
    return multiple * (0.5 * multiple * curvature - slope)


def _initial_state(
    problem: Problem,
    metric: Preconditioner,
    start: PyTree,
    image: PyTree,
    *,
    products: int,
    num_coefficients: int,
) -> State:
    residual = optax.tree.sub(problem.rhs, image)
    search = problem.solve(residual)
    energy = optax.tree.vdot(residual, search)
    norm = residual_size(problem, residual, energy)
    model = quadratic_model(problem.rhs, start, residual)
    zero = jnp.zeros_like(norm)
    code = jnp.where(energy > 0, RUNNING, CGOutcome.STALLED.value)
    code = jnp.where(norm <= problem.threshold, CGOutcome.CONVERGED.value, code)
    code = jnp.where(jnp.isfinite(norm + energy), code, CGOutcome.NON_FINITE.value)
    in_region = problem.radius is not None
    window = 0 if problem.progress_tolerance is None else max(10, problem.max_steps // 10) + 1
    return State(
        base=start,
        base_norm=norm,
        base_model=model,
        correction=optax.tree.zeros_like(start),
        residual=residual,
        energy=energy,
        search=search,
        curvature=zero,
        length_sq=optax.tree.vdot(start, metric.apply(start)) if in_region else zero,
        overlap=optax.tree.vdot(start, residual) if in_region else zero,
        search_sq=energy,
        best=start,
        best_norm=norm,
        best_model=model,
        lowest_model=model,
        checking=jnp.asarray(False),
        refined=jnp.asarray(False),
        steps=jnp.asarray(0, jnp.int32),
        products=jnp.asarray(products, jnp.int32),
        outcome=code.astype(jnp.int32),
        history=jnp.broadcast_to(model, (window,)),
        alphas=jnp.zeros(num_coefficients, norm.dtype),
        betas=jnp.zeros(num_coefficients, norm.dtype),
    )


def _finish(problem: Problem, metric: Preconditioner, state: State, scale: jax.Array) -> CGResult:
    """Go to the boundary or fall back on steepest descent where that is due; undo the scaling."""
    if problem.radius is None:
        solution, model = _or_steepest_descent(problem, state)
    else:
        solution, model = _or_boundary(problem, problem.radius, metric, state)
    rhs_norm = residual_size(
        problem, problem.rhs, optax.tree.vdot(problem.rhs, metric.solve(problem.rhs))
    )
    return CGResult(
        solution=optax.tree.scale(scale, solution),
        direction=optax.tree.scale(scale, state.search),
        steps=state.steps,
        products=state.products,
        residual_norm=state.best_norm / jnp.where(rhs_norm > 0, rhs_norm, 1.0),
        outcome=state.outcome,
        negative_curvature=state.outcome == CGOutcome.NEGATIVE_CURVATURE,
        model_value=scale * (scale * model),
        alphas=state.alphas,
        betas=state.betas,
    )


def _or_boundary(
    problem: Problem, radius: jax.Array, metric: Preconditioner, state: State
) -> tuple[PyTree, jax.Array]:
    """The point x + tau p, tau >= 0, of length radius in the norm of M, where the exit is there."""
    iterate = optax.tree.add(state.base, state.correction)
    measured = metric.apply(state.search)
    square = optax.tree.vdot(state.search, measured)
    overlap = optax.tree.vdot(iterate, measured)
    gap = radius**2 - optax.tree.vdot(iterate, metric.apply(iterate))
    gap = jnp.maximum(gap, 0.0)
    root = jnp.sqrt(overlap**2 + square * gap)
    # Of the two forms of the root, the one without cancellation.
    below = jnp.where(overlap > 0, overlap + root, square)
    tau = jnp.where(overlap > 0, gap, root - overlap) / jnp.where(below > 0, below, 1.0)
    slope = optax.tree.vdot(state.residual, state.search)
    model = quadratic_model(problem.rhs, iterate, state.residual)
    model += tau * (0.5 * tau * state.curvature - slope)
    leaves = state.outcome == CGOutcome.BOUNDARY
    leaves |= state.outcome == CGOutcome.NEGATIVE_CURVATURE
    return optax.tree.where(
        leaves,
        (optax.tree.add_scale(iterate, tau, state.search), model),
        (state.best, state.best_model),
    )


def _or_steepest_descent(problem: Problem, state: State) -> tuple[PyTree, jax.Array]:
    """The best iterate, or M^-1 b where there is none that descends.

    That happens only when nothing was accepted from a start at zero, where the search direction is
    M^-1 b itself and its curvature, if finite, is known. A preconditioner that is not positive
    definite is left out (M = I); its model value is then reported as zero, and so is one that could
    not be computed.
    """
    slope = optax.tree.vdot(problem.rhs, state.search)
    trusted = jnp.isfinite(slope) & (slope > 0)
    known = trusted & jnp.isfinite(state.curvature)
    steepest = optax.tree.where(trusted, state.search, problem.rhs)
    model = jnp.where(known, 0.5 * state.curvature - slope, 0.0)
    descends = optax.tree.vdot(problem.rhs, state.best) > 0
    usable = jnp.isfinite(optax.tree.norm(problem.rhs))
    return optax.tree.where(descends | ~usable, (state.best, state.best_model), (steepest, model))
