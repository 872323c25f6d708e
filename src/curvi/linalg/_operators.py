"""Curvature as linear maps: the exact Hessian, Gauss-Newton, and maps built from other maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax.tree
from jax.typing import ArrayLike

from curvi._core.errors import InputError
from curvi.linalg import _trees
from curvi.linalg._linear_map import Definiteness, FunctionMap, LinearMap
from curvi.linalg._preconditioners import Preconditioner

PyTree = Any


def hessian(
    fn: Callable[[PyTree], jax.Array], params: PyTree
) -> tuple[jax.Array, PyTree, FunctionMap]:
    r"""Value, gradient and exact Hessian of a scalar function, from one linearisation.

    The product is Pearlmutter's R-operator, equation (hv) of the paper,

    .. math:: H v = \partial_\gamma \nabla F(\theta + \gamma v) |_{\gamma = 0},

    that is forward over reverse differentiation. The forward and backward pass at ``params`` run
    once, when this function is called; a product only pushes a tangent through what they stored,
    which costs at most two gradients. Inside a ``lax.while_loop`` the stored pass is a loop
    constant.

    Returns
    -------
    value : Array
        F(params).
    gradient : pytree
        Gradient of F.
    operator : FunctionMap
        The Hessian, of unknown definiteness.

    Raises
    ------
    InputError
        If the leaves of ``params`` do not share one real floating dtype.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> value, gradient, operator = hessian(lambda x: jnp.sum(x**3), jnp.array([1.0, 2.0]))
    >>> operator(jnp.array([1.0, 1.0]))
    Array([ 6., 12.], dtype=float32)
    """
    _trees.real_dtype(params, "params")

    def gradient_then_value(point: PyTree) -> tuple[PyTree, jax.Array]:
        value, gradient = jax.value_and_grad(fn)(point)
        return gradient, value

    gradient, product, value = jax.linearize(gradient_then_value, params, has_aux=True)
    return value, gradient, FunctionMap(product, params)


def gauss_newton(
    outputs_fn: Callable[[PyTree], PyTree],
    loss_fn: Callable[[PyTree], jax.Array],
    params: PyTree,
) -> tuple[jax.Array, PyTree, FunctionMap]:
    r"""Value, gradient and Gauss-Newton matrix of ``loss_fn(outputs_fn(params))``.

    .. math:: G = J^\top H_{\mathrm{loss}} J,

    J the Jacobian of the outputs and H_loss the Hessian of the loss in the outputs, both linearised
    once at ``params``. Where ``loss_fn`` is convex (this is trusted, not checked) G is positive
    semi-definite, and it equals the Hessian where the outputs are linear in the parameters.

    Returns
    -------
    value, gradient, operator
        As for :func:`hessian`; the operator is positive semi-definite.

    Raises
    ------
    InputError
        If the leaves of ``params`` do not share one real floating dtype.
    """
    _trees.real_dtype(params, "params")
    outputs, push = jax.linearize(outputs_fn, params)
    pull = jax.linear_transpose(push, params)
    value, output_gradient, loss_hessian = hessian(loss_fn, outputs)
    (gradient,) = pull(output_gradient)

    def product(vector: PyTree) -> PyTree:
        (result,) = pull(loss_hessian(push(vector)))
        return result

    return value, gradient, FunctionMap(product, params, Definiteness.POSITIVE_SEMI)


def damped(
    operator: LinearMap, damping: ArrayLike, metric: Preconditioner | None = None
) -> FunctionMap:
    """A + lambda M, with M the identity or the given metric.

    A semi-definite A becomes POSITIVE only where ``damping`` is a Python number above zero: the
    sign of a traced value is not known.

    Raises
    ------
    InputError
        If ``damping`` is a negative Python number.
    """
    definiteness = operator.definiteness
    if isinstance(damping, int | float):
        if not 0 <= damping < math.inf:
            raise InputError(f"damping is {damping}; damped() needs a finite number >= 0")
        if definiteness is Definiteness.POSITIVE_SEMI and damping > 0:
            definiteness = Definiteness.POSITIVE
    scale = jnp.asarray(damping, _trees.real_dtype(operator.example, "operator.example"))

    def product(vector: PyTree) -> PyTree:
        measured = vector if metric is None else metric.apply(vector)
        return optax.tree.add_scale(operator(vector), scale, measured)

    return FunctionMap(product, operator.example, definiteness)


def preconditioned(operator: LinearMap, preconditioner: Preconditioner) -> FunctionMap:
    """The map M^-1/2 A M^-1/2, whose spectrum is the one that preconditioned CG sees.

    Raises
    ------
    InputError
        If the preconditioner has no ``solve_sqrt`` (M^-1/2 v).
    """
    solve_sqrt = getattr(preconditioner, "solve_sqrt", None)
    if solve_sqrt is None:
        raise InputError(
            f"{type(preconditioner).__name__} has no square root; preconditioned() needs one with "
            "solve_sqrt(v) = M^-1/2 v, such as Diagonal, or pass M to conjugate_gradient instead"
        )

    def product(vector: PyTree) -> PyTree:
        return solve_sqrt(operator(solve_sqrt(vector)))

    return FunctionMap(product, operator.example, operator.definiteness)


def projected(operator: LinearMap, project: Callable[[PyTree], PyTree]) -> FunctionMap:
    """The map P A P for an orthogonal projector P (P P = P = P', trusted, not checked)."""
    definiteness = operator.definiteness
    if definiteness is Definiteness.POSITIVE:
        definiteness = Definiteness.POSITIVE_SEMI  # what P removes has eigenvalue zero

    def product(vector: PyTree) -> PyTree:
        return project(operator(project(vector)))

    return FunctionMap(product, operator.example, definiteness)
