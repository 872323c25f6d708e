"""Symmetric linear maps on pytrees: exact Hessian, Gauss-Newton, dense, and built from others.

A map is made inside one trace (inside ``jit``), holds what it needs as closed-over arrays, and is
used in the same trace. It is not a pytree and does not cross a ``jit`` boundary.
"""

from __future__ import annotations

import abc
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax.tree
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from curvi._core import trees
from curvi._core.errors import InputError
from curvi.linalg._preconditioners import Metric

PyTree = Any

# Columns computed at once by ``dense``: enough to use the matrix units, few enough that the
# activations of a network do not have to fit in memory D times.
_COLUMNS_AT_ONCE = 64


class Definiteness(enum.Enum):
    """What is known about the signs of the eigenvalues, without computing any."""

    POSITIVE = "all eigenvalues are positive"
    POSITIVE_SEMI = "no eigenvalue is negative"
    UNKNOWN = "eigenvalues of either sign are possible"


class LinearMap(abc.ABC):
    """A symmetric linear map v -> A v on the pytrees that look like ``example``.

    Attributes
    ----------
    example : pytree
        Shapes and dtypes of the vectors that the map takes and returns.
    definiteness : Definiteness
        What is known about the eigenvalues of A.
    """

    example: PyTree
    definiteness: Definiteness

    @abc.abstractmethod
    def apply(self, vector: PyTree) -> PyTree:
        """The product A v."""

    def __call__(self, vector: PyTree) -> PyTree:
        """The product A v."""
        return self.apply(vector)

    def dense(self) -> jax.Array:
        """The D x D matrix, rows and columns in the order of ``ravel_pytree``.

        Costs D products and D^2 numbers: for tests and small problems.
        """
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.example)
        flat, unravel = ravel_pytree(zeros)

        def column(basis_vector: jax.Array) -> jax.Array:
            return ravel_pytree(self.apply(unravel(basis_vector)))[0]

        identity = jnp.eye(flat.size, dtype=flat.dtype)
        return jax.lax.map(column, identity, batch_size=_COLUMNS_AT_ONCE).T


@dataclass(frozen=True, eq=False)
class FunctionMap(LinearMap):
    """A linear map given by its product.

    Parameters
    ----------
    product : callable
        ``product(vector) -> vector``; linear and symmetric (both are trusted, not checked).
    example : pytree
        Anything with the shapes and dtypes of a vector.
    definiteness : Definiteness
        What is known about the eigenvalues.
    """

    product: Callable[[PyTree], PyTree]
    example: PyTree
    definiteness: Definiteness = Definiteness.UNKNOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "example", trees.shapes(self.example))

    def apply(self, vector: PyTree) -> PyTree:
        """The product A v."""
        return self.product(vector)


@dataclass(frozen=True, eq=False)
class DenseMap(LinearMap):
    """A symmetric D x D matrix acting on pytrees in the order of ``ravel_pytree``.

    Parameters
    ----------
    matrix : array of shape (D, D)
        The matrix A; symmetry is trusted, not checked.
    example : pytree
        Anything with the shapes and dtypes of a vector, D entries in total.
    definiteness : Definiteness
        What is known about the eigenvalues.

    Raises
    ------
    InputError
        If the matrix is not D x D for the D entries of ``example``.
    """

    matrix: ArrayLike
    example: PyTree
    definiteness: Definiteness = Definiteness.UNKNOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "example", trees.shapes(self.example))
        dimension = trees.size(self.example)
        if jnp.shape(self.matrix) != (dimension, dimension):
            raise InputError(
                f"DenseMap matrix has shape {jnp.shape(self.matrix)} but the example has "
                f"{dimension} entries; give a matrix of shape ({dimension}, {dimension})"
            )

    def apply(self, vector: PyTree) -> PyTree:
        """The product A v."""
        flat, unravel = ravel_pytree(vector)
        return unravel(jnp.matmul(self.matrix, flat, precision=jax.lax.Precision.HIGHEST))

    def dense(self) -> jax.Array:
        """The matrix itself."""
        return jnp.asarray(self.matrix)


def hessian(
    fn: Callable[[PyTree], jax.Array], params: PyTree
) -> tuple[jax.Array, PyTree, FunctionMap]:
    r"""Value, gradient and exact Hessian of a scalar function, from one linearisation.

    The product is Pearlmutter's R-operator, the Hessian-vector product of section 2.3 of the paper,

    .. math:: H v = \partial_\gamma \nabla F(\theta + \gamma v) |_{\gamma = 0},

    that is forward over reverse differentiation. The forward and backward pass at ``params`` run
    once, when this function is called; a product only pushes a tangent through what they stored,
    which costs at most two gradients. Inside a ``lax.while_loop`` the stored pass is a loop
    constant.

    Parameters
    ----------
    fn : callable
        F: takes a pytree such as ``params`` and returns a scalar; twice differentiable.
    params : pytree
        Where to linearise; all leaves of one real floating dtype.

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
    trees.real_dtype(params, "params")

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

    Parameters
    ----------
    outputs_fn : callable
        Takes a pytree such as ``params`` and returns the outputs, any pytree of float arrays.
    loss_fn : callable
        Takes the outputs and returns a scalar; twice differentiable.
    params : pytree
        Where to linearise; all leaves of one real floating dtype.

    Returns
    -------
    value, gradient, operator
        As for :func:`hessian`; the operator is positive semi-definite.

    Raises
    ------
    InputError
        If the leaves of ``params``, or those of the outputs, do not share one real floating dtype.
    """
    trees.real_dtype(params, "params")
    outputs, push = jax.linearize(outputs_fn, params)
    pull = jax.linear_transpose(push, params)
    value, output_gradient, loss_hessian = hessian(loss_fn, outputs)
    (gradient,) = pull(output_gradient)

    def product(vector: PyTree) -> PyTree:
        (result,) = pull(loss_hessian(push(vector)))
        return result

    return value, gradient, FunctionMap(product, params, Definiteness.POSITIVE_SEMI)


def damped(operator: LinearMap, damping: ArrayLike, metric: Metric | None = None) -> FunctionMap:
    """A + lambda M, with M the identity or the given metric.

    A semi-definite A becomes POSITIVE only where ``damping`` is a Python number above zero: the
    sign of a traced value is not known.

    Parameters
    ----------
    operator : LinearMap
        The map A.
    damping : float or Array
        Lambda, zero or positive.
    metric : Metric, optional
        M; the identity by default.

    Returns
    -------
    FunctionMap
        The map v -> A v + lambda M v.

    Raises
    ------
    InputError
        If ``damping`` is a Python number that is negative or not finite.
    """
    definiteness = operator.definiteness
    if isinstance(damping, int | float):
        if not 0 <= damping < math.inf:
            raise InputError(f"damping is {damping}; damped() needs a finite number >= 0")
        if definiteness is Definiteness.POSITIVE_SEMI and damping > 0:
            definiteness = Definiteness.POSITIVE
    scale = jnp.asarray(damping, trees.real_dtype(operator.example, "operator.example"))

    def product(vector: PyTree) -> PyTree:
        measured = vector if metric is None else metric.apply(vector)
        return optax.tree.add_scale(operator(vector), scale, measured)

    return FunctionMap(product, operator.example, definiteness)


def preconditioned(operator: LinearMap, preconditioner: Metric) -> FunctionMap:
    """The map M^-1/2 A M^-1/2, whose spectrum is the one that preconditioned CG sees.

    Parameters
    ----------
    operator : LinearMap
        The map A.
    preconditioner : Metric
        M, with a ``solve_sqrt``.

    Returns
    -------
    FunctionMap
        The preconditioned map, of the definiteness of A.

    Raises
    ------
    InputError
        If the preconditioner has no ``solve_sqrt`` (M^-1/2 v).
    """
    solve_sqrt = getattr(preconditioner, "solve_sqrt", None)
    if solve_sqrt is None:
        raise InputError(
            f"{type(preconditioner).__name__} has no square root; preconditioned() needs one with "
            "solve_sqrt(v) = M^-1/2 v, like DiagonalMetric, or pass M to conjugate_gradient instead"
        )

    def product(vector: PyTree) -> PyTree:
        return solve_sqrt(operator(solve_sqrt(vector)))

    return FunctionMap(product, operator.example, operator.definiteness)


def projected(operator: LinearMap, project: Callable[[PyTree], PyTree]) -> FunctionMap:
    """The map P A P for an orthogonal projector P (P P = P = P', trusted, not checked).

    Parameters
    ----------
    operator : LinearMap
        The map A.
    project : callable
        ``project(vector) -> vector``, the product P v.

    Returns
    -------
    FunctionMap
        The projected map: positive semi-definite where A is positive definite, because what P
        removes has eigenvalue zero.
    """
    definiteness = operator.definiteness
    if definiteness is Definiteness.POSITIVE:
        definiteness = Definiteness.POSITIVE_SEMI  # what P removes has eigenvalue zero

    def product(vector: PyTree) -> PyTree:
        return project(operator(project(vector)))

    return FunctionMap(product, operator.example, definiteness)
