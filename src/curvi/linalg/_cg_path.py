"""Conjugate gradients that keep some of their iterates, for a method that stops them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax.tree
from jaxtyping import Array

from curvi._core import trees
from curvi.linalg import _arithmetic as la
from curvi.linalg._cg import finish, warm_start
from curvi.linalg._cg_iteration import RUNNING, CGOutcome, CGSystem, begin, iterate
from curvi.linalg._preconditioners import Identity, Metric


class CGPath(NamedTuple):
    """Iterates of conjugate gradients; a pytree of arrays.

    Attributes
    ----------
    iterates : pytree
        Stacked along a new leading axis: the start, then the last iterate of steps 1, 2 to 3,
        4 to 7, and so on; the last entry takes all that are left.
    models : Array
        phi(x) = x'Ax/2 - b'x of each.
    used : Array
        Which entries hold an iterate.
    steps : Array
        Steps taken.
    negative_curvature : Array
        Whether a direction without positive curvature ended the iteration.
    """

    iterates: Any
    models: Array
    used: Array
    steps: Array
    negative_curvature: Array


def conjugate_gradient_path(
    operator: Callable[[Any], Any],
    rhs: Any,
    *,
    preconditioner: Metric | None = None,
    initial: Any = None,
    max_steps: int | Array,
    num_iterates: int = 5,
    relative_tolerance: float = 1e-3,
) -> CGPath:
    r"""Minimise phi(x) = x'Ax/2 - b'x as :func:`conjugate_gradient` does, and keep the way there.

    Martens' backtracking: early iterates are solutions under a stronger regularisation. Whoever
    knows a second sample of the system can choose among them without another product.

    Parameters
    ----------
    operator, rhs, preconditioner, initial
        As for :func:`conjugate_gradient`.
    max_steps : int or Array
        Cap on steps; it may be computed.
    num_iterates : int
        Entries of the path, the start included.
    relative_tolerance : float
        Stop at this relative residual, measured in the metric on the recursive residual.

    Returns
    -------
    CGPath
        The iterates, their model values, and how the iteration ended.
    """
    dtype = trees.real_dtype(rhs, "rhs")
    metric = Identity() if preconditioner is None else preconditioner
    scale = la.power_of_two(rhs)  # exact, and tiny gradients do not underflow when squared
    shrunk = jax.tree.map(lambda leaf: leaf / scale, rhs)

    def products(vector: Any) -> tuple[Any, Any]:
        image = operator(vector)
        return image, metric.solve(image)

    system = CGSystem(
        products=products,
        rhs=shrunk,
        natural=metric.solve(shrunk),
        tolerance=jnp.asarray(relative_tolerance, dtype),
        eps=float(jnp.finfo(dtype).eps),
        max_steps=max_steps,
        natural_norm=True,
        verify=False,
    )
    start = optax.tree.zeros_like(shrunk)
    image: tuple[Any, Any] = (start, start)
    if initial is not None:
        guess = jax.tree.map(lambda leaf: leaf / scale, initial)
        start, image, _ = warm_start(system, metric, guess)
    state = begin(system, start, image)
    stacked = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_iterates, *leaf.shape)), start)
    models = jnp.broadcast_to(state.best_model, (num_iterates,))

    def entry(steps: Array) -> Array:
        """1 for step 1, 2 for steps 2 and 3, 3 for 4 to 7: one more than the binary logarithm."""
        _, exponent = jnp.frexp(steps.astype(dtype))
        return jnp.clip(exponent, 0, num_iterates - 1)

    def write(
        stacked: Any, models: Array, at: Array, point: Any, model: Array
    ) -> tuple[Any, Array]:
        put = jax.lax.dynamic_update_index_in_dim
        return jax.tree.map(lambda a, b: put(a, b, at, 0), stacked, point), models.at[at].set(model)

    def body(carry: tuple[Any, Any, Array]) -> tuple[Any, Any, Array]:
        state, stacked, models = carry
        state = iterate(system, state)
        at = entry(state.steps)
        return state, *write(stacked, models, at, state.best, state.best_model)

    state, stacked, models = jax.lax.while_loop(
        lambda carry: carry[0].outcome == RUNNING, body, (state, stacked, models)
    )
    # Where not even one step was possible this is steepest descent; otherwise the last iterate.
    solution, last = finish(system, state), entry(jnp.maximum(state.steps, 1))
    stacked, models = write(stacked, models, last, solution.solution, solution.model)
    return CGPath(
        iterates=la.scaled(scale, stacked),
        models=scale * (scale * models),
        used=jnp.arange(num_iterates, dtype=jnp.int32) <= last,
        steps=state.steps,
        negative_curvature=state.outcome == CGOutcome.NEGATIVE_CURVATURE,
    )
