"""Truncated preconditioned conjugate gradients: negative-curvature exit, trust region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax.tree
from jax.typing import ArrayLike

from curvi._core import trees, validation
from curvi._core.errors import InputError
from curvi.linalg import _arithmetic as la
from curvi.linalg._arithmetic import Scalar, Vector
from curvi.linalg._cg_iteration import KEEP, RUNNING, CGOutcome, CGState, CGSystem, begin, iterate
from curvi.linalg._preconditioners import Identity, Metric

PyTree = Any


class CGResult(NamedTuple):
    """What conjugate gradients found; a pytree of arrays.

    Attributes
    ----------
    solution : pytree
        The iterate that is kept, or the point on the boundary.
    direction : pytree
        The direction without positive curvature, or else the last search direction.
    steps : Array
        Steps taken.
    products : Array
        Products with A, those for warm start and true residuals included.
    residual_norm : Array
        ``|b - Ax| / |b|`` of the last interior iterate: true where it was verified and the outcome
        is CONVERGED or STALLED, or no step was taken; otherwise from the recurrence. In the
        metric with ``natural_norm``.
    outcome : Array
        Integer code of a :class:`CGOutcome`.
    negative_curvature : Array
        Whether ``direction`` has p'Ap <= 0 up to rounding.
    length : Array
        ``sqrt(x'Mx)`` of the solution where there is a radius, otherwise zero.
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
    length: jax.Array
    model_value: jax.Array
    alphas: jax.Array
    betas: jax.Array


def conjugate_gradient(
    operator: Callable[[PyTree], PyTree],
    rhs: PyTree,
    *,
    preconditioner: Metric | None = None,
    initial: PyTree | None = None,
    max_steps: int | jax.Array | None = None,
    relative_tolerance: ArrayLike | None = None,
    progress_tolerance: ArrayLike | None = None,
    radius: ArrayLike | None = None,
    natural_norm: bool = False,
    verify: bool = True,
    keep: str = "lowest_model",
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

    When the recursive residual meets the tolerance the true one is computed (``verify``), and the
    iteration restarts from it if it does not meet it (iterative refinement), until it does or
    rounding of the solution itself, about ``eps |A| |x|``, forbids more (outcome STALLED). Runs
    inside ``jit`` and ``vmap`` without touching the host.

    Parameters
    ----------
    operator : callable
        ``operator(vector) -> vector``, symmetric: a ``LinearMap`` or any function.
    rhs : pytree
        b; all leaves of one float dtype, which all arithmetic follows.
    preconditioner : Metric, optional
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
    verify : bool
        Claim convergence on the true residual only. Without it the recursive residual decides,
        which saves a product and is good enough for the rough solves of a Newton method.
    keep : {"lowest_model", "least_residual"}
        Which iterate is the solution. Model values fall from step to step, so that the first is
        the last iterate. Residuals may rise, above all where A is indefinite: the second then
        holds back, as the ``pcg`` of MATLAB does, and is zero where no residual is below ``|b|``.
    num_coefficients : int
        How many alphas and betas to store.

    Returns
    -------
    CGResult
        The solution, why the iteration ended, and what it cost.

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
    dtype = trees.real_dtype(rhs, "rhs")
    _check_options(max_steps, relative_tolerance, radius, num_coefficients)
    validation.one_of(keep, KEEP, "keep")
    metric = Identity() if preconditioner is None else preconditioner
    eps = float(jnp.finfo(dtype).eps)
    tolerance = eps ** (2 / 3) if relative_tolerance is None else relative_tolerance

    # A power of two makes the scaling exact; without it tiny gradients underflow when squared.
    scale = la.power_of_two(rhs)
    shrunk = jax.tree.map(lambda leaf: leaf / scale, rhs)

    def products(vector: PyTree) -> tuple[PyTree, PyTree]:
        image = operator(vector)
        return image, metric.solve(image)

    system = CGSystem(
        products=products,
        rhs=shrunk,
        natural=metric.solve(shrunk),
        tolerance=jnp.asarray(tolerance, dtype),
        eps=eps,
        max_steps=100 * trees.size(rhs) + 1000 if max_steps is None else max_steps,
        radius=None if radius is None else jnp.asarray(radius, dtype) / scale,
        progress_tolerance=(
            None if progress_tolerance is None else jnp.asarray(progress_tolerance, dtype)
        ),
        natural_norm=natural_norm,
        verify=verify,
        least_residual=keep == "least_residual",
    )
    start = optax.tree.zeros_like(shrunk)
    image, length_sq, count = (start, start), jnp.zeros((), dtype), 0
    if initial is not None:
        trees.require_same_shapes(initial, rhs, "initial", "rhs")
        guess = jax.tree.map(lambda leaf: leaf / scale, initial)
        start, image, length_sq = warm_start(system, metric, guess)
        count = 1 if radius is None else 2
    state = begin(
        system,
        start,
        image,
        length_sq=length_sq,
        products=count,
        num_coefficients=num_coefficients,
    )
    state = jax.lax.while_loop(
        lambda state: state.outcome == RUNNING, lambda state: iterate(system, state), state
    )
    return _result(state, finish(system, state), system.rhs_norm, scale)


def eager_conjugate_gradient(
    products: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    rhs: np.ndarray,
    natural: np.ndarray,
    *,
    eps: float,
    relative_tolerance: float,
    max_steps: int,
    radius: float | None = None,
    verify: bool = False,
) -> CGResult:
    """The same iteration on the host, where it costs nothing to compile.

    Parameters
    ----------
    products : callable
        ``products(p) -> (A p, M^-1 A p)``.
    rhs, natural : array
        b and M^-1 b, in double precision.
    eps : float
        Rounding unit of the products, which may be computed in single precision.
    relative_tolerance, max_steps, radius, verify
        As for :func:`conjugate_gradient`; residuals are measured in the metric.

    Returns
    -------
    CGResult
        With NumPy arrays and numbers.
    """
    system = CGSystem(
        products=products,
        rhs=rhs,
        natural=natural,
        tolerance=relative_tolerance,
        eps=eps,
        max_steps=max_steps,
        radius=radius,
        natural_norm=True,
        verify=verify,
    )
    with np.errstate(all="ignore"):  # what is not finite is an outcome
        zero = np.zeros_like(rhs)
        state = begin(system, zero, (zero, zero))
        while state.outcome == RUNNING:
            state = iterate(system, state)
        return _result(state, finish(system, state), system.rhs_norm, np.float64(1.0))


class Solution(NamedTuple):
    """Where the iteration ended; ``length`` is ``sqrt(x'Mx)``, or zero where there is no radius."""

    solution: Vector
    model: Scalar
    length: Scalar


def finish(system: CGSystem, state: CGState) -> Solution:
    """The best iterate, the point on the boundary, or steepest descent, as the outcome demands."""
    if system.radius is None:
        return _or_steepest_descent(system, state)
    return _or_boundary(system.radius, system, state)


def _or_boundary(radius: Scalar, system: CGSystem, state: CGState) -> Solution:
    """The point x + tau p, tau >= 0, with x'Mx = radius^2, where the iteration left the region."""
    xp = la.namespace(state.energy)
    point = la.add(state.base, state.correction)
    gap = xp.maximum(radius**2 - state.length_sq, 0.0)
    root = xp.sqrt(state.overlap**2 + state.search_sq * gap)
    # Of the two forms of the root, the one without cancellation.
    late = state.overlap > 0
    below = xp.where(late, state.overlap + root, state.search_sq)
    tau = xp.where(late, gap, root - state.overlap) / xp.where(below > 0, below, 1.0)
    slope = la.vdot(state.residual, state.search)
    model = system.model(point, state.residual)
    model = model + tau * (0.5 * tau * state.curvature - slope)
    leaves = (state.outcome == CGOutcome.BOUNDARY) | (state.outcome == CGOutcome.NEGATIVE_CURVATURE)
    leaves &= xp.isfinite(tau)
    return Solution(
        *la.select(
            leaves,
            (la.add_scaled(point, tau, state.search), model, xp.zeros_like(model) + radius),
            (state.best, state.best_model, xp.sqrt(xp.maximum(state.best_length_sq, 0.0))),
        )
    )


def _or_steepest_descent(system: CGSystem, state: CGState) -> Solution:
    """The best iterate, or M^-1 b where there is none that descends.

    Under the rule of least residual it is zero where no iterate has a smaller residual than zero.
    Otherwise that happens only when nothing was accepted from a start at zero, where the search
    direction is M^-1 b itself and its curvature, if finite, is known. A preconditioner that is not
    positive definite is left out (M = I); its model value is then reported as zero, and so is one
    that could not be computed.
    """
    xp = la.namespace(state.energy)
    slope = la.vdot(system.rhs, state.search)
    trusted = xp.isfinite(slope) & (slope > 0)
    known = trusted & xp.isfinite(state.curvature)
    steepest = la.select(trusted, state.search, system.rhs)
    model = xp.where(known, 0.5 * state.curvature - slope, 0.0)
    descends = (la.vdot(system.rhs, state.best) > 0) | system.least_residual
    usable = xp.isfinite(la.norm(system.rhs))
    length = xp.zeros_like(model)
    return Solution(
        *la.select(
            descends | ~usable,
            (state.best, state.best_model, length),
            (steepest, model, length),
        )
    )


def _result(state: CGState, solution: Solution, rhs_norm: Any, scale: Any) -> CGResult:
    xp = la.namespace(scale)
    return CGResult(
        solution=la.scaled(scale, solution.solution),
        direction=la.scaled(scale, state.search),
        steps=state.steps,
        products=state.products,
        residual_norm=state.best_norm / xp.where(rhs_norm > 0, rhs_norm, 1.0),
        outcome=state.outcome,
        negative_curvature=state.outcome == CGOutcome.NEGATIVE_CURVATURE,
        length=scale * solution.length,
        model_value=scale * (scale * solution.model),
        alphas=state.alphas,
        betas=state.betas,
    )


def _check_options(
    max_steps: int | jax.Array | None,
    tolerance: ArrayLike | None,
    radius: ArrayLike | None,
    num_coefficients: int,
) -> None:
    """Validate options as far as their values are known while tracing."""
    known = max_steps is not None and not isinstance(max_steps, jax.core.Tracer)
    if known and max_steps < 1:  # type: ignore[operator]
        raise InputError(f"max_steps is {max_steps}; give at least 1, or None for no cap")
    if num_coefficients < 0:
        raise InputError(f"num_coefficients is {num_coefficients}; give 0 or more")
    if isinstance(tolerance, int | float) and not 0 <= tolerance < 1:
        raise InputError(f"relative_tolerance is {tolerance}; give a number in [0, 1)")
    if isinstance(radius, int | float) and not radius > 0:
        raise InputError(f"radius is {radius}; give a number > 0, or None for no trust region")


def warm_start(
    system: CGSystem, metric: Metric, guess: PyTree
) -> tuple[PyTree, tuple[PyTree, PyTree], jax.Array]:
    """The multiple of the guess to start from, its images and x'Mx; zeros where it is dropped."""
    images = system.products(guess)
    curvature = la.vdot(guess, images[0])
    slope = la.vdot(system.rhs, guess)
    floor = system.eps * la.magnitude(guess, images[0])
    sound = jnp.isfinite(curvature) & jnp.isfinite(slope) & (curvature > floor)
    best_multiple = slope / jnp.where(sound, curvature, 1.0)
    as_it_is = 0.5 * curvature <= slope
    multiple = jnp.where(as_it_is, 1.0, best_multiple)
    length_sq = jnp.zeros_like(multiple)
    if system.radius is not None:
        length = jnp.sqrt(la.vdot(guess, metric.apply(guess)))
        limit = system.radius / jnp.where(length > 0, length, 1.0)
        multiple = jnp.where(length > system.radius, best_multiple, multiple)
        multiple = jnp.clip(multiple, -limit, limit)
        # From a worse start the first step could leave the region short of the Cauchy point. The
        # slack keeps the comparison away from a tie, which XLA may decide differently in each of
        # the places it copies it to.
        model = multiple * (0.5 * multiple * curvature - slope)
        sound &= model <= (1 - system.eps**0.5) * _cauchy_model(system, system.radius)
        length_sq = (multiple * length) ** 2
    start, images, length_sq = la.select(
        sound & jnp.isfinite(multiple),
        (*la.scaled(multiple, (guess, images)), length_sq),
        optax.tree.zeros_like((guess, images, length_sq)),
    )
    return start, images, length_sq


def _cauchy_model(system: CGSystem, radius: jax.Array) -> jax.Array:
    """Lowest model value along M^-1 b inside the trust region."""
    direction = system.natural
    curvature = la.vdot(direction, system.products(direction)[0])
    slope = la.vdot(system.rhs, direction)  # also the squared length in the norm of M
    limit = radius / jnp.sqrt(jnp.where(slope > 0, slope, 1.0))
    inside = jnp.where(curvature > 0, slope / jnp.where(curvature > 0, curvature, 1.0), limit)
    multiple = jnp.minimum(inside, limit)
    return multiple * (0.5 * multiple * curvature - slope)
