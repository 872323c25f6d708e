"""Theorem 1: derivatives of ``E[f(mean + scale eps)]`` for any base noise ``eps``.

Gaussian, Student t, Laplace and logistic families share this one code path and differ only in the
``draws`` that are passed in. Every expectation is the weighted sum over them,
``sum_m w_m (...)_m``, with equal weights ``1 / M`` unless quadrature weights are passed.

Throughout, ``z_m = mean + scale @ eps_m`` with ``mean`` of shape (d,), ``scale`` of shape (d, k)
and ``draws`` of shape (M, k); ``g`` and ``H`` are the gradient and the Hessian of ``f`` at ``z_m``.
The noise may have another dimension than ``z`` (low rank plus diagonal has k = d + rank). ``vec``
stacks the columns of ``[mean, scale]``: entry (i, j) of a (d, k + 1) matrix has position
``j d + i``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from curvi.core.errors import InputError

Function = Callable[[Float[Array, "d"]], Float[Array, ""]]
LocationScale = Callable[[Any], tuple[Float[Array, "d"], Float[Array, "d k"]]]

__all__ = [
    "gradient",
    "hessian",
    "hessian_vector_product",
    "mean_scale_hessian",
    "parameter_gradient",
    "parameter_hessian",
    "parameter_hessian_vector_product",
    "scale_scale_hessian",
]


# The gate and the average, shared by every estimator of this stage.


def scalar_valued(f: Function) -> Function:
    """Return ``f`` with a refusal, at trace time, of any output that is not one real number."""

    def checked(z: Array) -> Array:
        value = f(z)
        shapes = jax.tree.map(jnp.shape, value)
        if shapes != ():
            raise InputError(
                f"f must return a scalar, but for z of shape {z.shape} it returned {shapes}; "
                "sum it or select one entry"
            )
        if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise InputError(
                f"f must return a real floating-point number, but it returned "
                f"{jnp.result_type(value)}; cast its output to {z.dtype}"
            )
        return value

    return checked


def check_draws(draws: Array, size: int, weights: Array | None, where: str) -> Array:
    """Refuse draws that are not (M, size), and return the weights (M,), equal unless given."""
    if jnp.ndim(draws) != 2 or draws.shape[1] != size or draws.shape[0] == 0:
        raise InputError(
            f"draws has shape {jnp.shape(draws)} in {where}(); pass one row of {size} base-noise "
            f"values per draw, shape (M, {size}) with M >= 1"
        )
    if weights is None:
        return jnp.full(draws.shape[0], 1 / draws.shape[0], draws.dtype)
    if jnp.shape(weights) != draws.shape[:1]:
        raise InputError(
            f"weights has shape {jnp.shape(weights)} in {where}(); pass one weight per draw, "
            f"shape {draws.shape[:1]}, or None for equal weights"
        )
    return weights


def check_mean(mean: Array, where: str) -> None:
    """Refuse a mean that is not a vector."""
    if jnp.ndim(mean) != 1:
        raise InputError(
            f"mean has shape {jnp.shape(mean)} in {where}(); pass a vector, shape (d,)"
        )


def check_inputs(
    mean: Array, scale: Array, draws: Array, weights: Array | None, where: str
) -> Array:
    """Refuse shapes that do not fit ``z = mean + scale @ eps``, and return the weights."""
    check_mean(mean, where)
    if jnp.ndim(scale) != 2 or scale.shape[0] != mean.shape[0]:
        raise InputError(
            f"scale has shape {jnp.shape(scale)} in {where}(); pass a matrix with one row per "
            f"entry of mean, shape ({mean.shape[0]}, k)"
        )
    return check_draws(draws, scale.shape[1], weights, where)


def points(mean: Array, scale: Array, draws: Array) -> Array:
    """Return ``z_m = mean + scale @ eps_m``, one row per draw."""
    return jax.vmap(lambda noise: mean + scale @ noise)(draws)


# Theorem 1 in the coordinates (mean, scale).


def gradient(
    f: Function,
    mean: Float[Array, "d"],
    scale: Float[Array, "d k"],
    draws: Float[Array, "M k"],
    *,
    weights: Float[Array, "M"] | None = None,
) -> tuple[Float[Array, "d"], Float[Array, "d k"]]:
    """Return the gradient of ``E[f]`` in the mean, ``E[g]``, and in the scale, ``E[g eps']``.

    This is equation (4) with theta = (mean, scale). The second block has the shape of ``scale``;
    ``E[eps g']`` would be its transpose.

    Parameters
    ----------
    f : callable
        Twice differentiable function from (d,) to a scalar.
    mean, scale, draws : arrays of shape (d,), (d, k) and (M, k)
        Location, scale and base noise: ``z_m = mean + scale @ eps_m``.
    weights : array of shape (M,), optional
        Quadrature weights, used as they are (an average needs weights that sum to one).

    Raises
    ------
    InputError
        If the shapes do not fit together, or ``f`` does not return a scalar.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> draws = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> gradient(lambda z: z[0] ** 2 + z[1], jnp.array([3.0, 0.0]), jnp.eye(2), draws)[0].tolist()
    [6.0, 1.0]
    """
    weights = check_inputs(mean, scale, draws, weights, "gradient")
    slopes = jax.vmap(jax.grad(scalar_valued(f)))(points(mean, scale, draws))
    return weights @ slopes, jnp.einsum("m,mi,mj->ij", weights, slopes, draws)


def hessian(
    f: Function,
    mean: Float[Array, "d"],
    scale: Float[Array, "d k"],
    draws: Float[Array, "M k"],
    *,
    weights: Float[Array, "M"] | None = None,
) -> Float[Array, "d*(k+1) d*(k+1)"]:
    """Return the dense Hessian of ``E[f]`` in vec[mean, scale], of size d (k + 1).

    It is ``E[([1; eps] [1, eps']) kron H]`` (Theorem 1). Memory grows as (d k)^2: for more than a
    few dozen dimensions use :func:`hessian_vector_product`. Parameters as in :func:`gradient`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> draws = jnp.array([[1.0], [-1.0]])
    >>> hessian(lambda z: 3.0 * z[0] ** 2, jnp.zeros(1), jnp.ones((1, 1)), draws).tolist()
    [[6.0, 0.0], [0.0, 6.0]]
    """
    weights = check_inputs(mean, scale, draws, weights, "hessian")
    extended = _prepend_one(draws)
    return _kronecker_average(f, points(mean, scale, draws), weights, extended, extended)


def mean_scale_hessian(
    f: Function,
    mean: Float[Array, "d"],
    scale: Float[Array, "d k"],
    draws: Float[Array, "M k"],
    *,
    weights: Float[Array, "M"] | None = None,
) -> Float[Array, "d d*k"]:
    """Return the block of :func:`hessian` in mean and vec(scale), ``E[eps' kron H]``."""
    weights = check_inputs(mean, scale, draws, weights, "mean_scale_hessian")
    ones = jnp.ones_like(draws[:, :1])
    return _kronecker_average(f, points(mean, scale, draws), weights, ones, draws)


def scale_scale_hessian(
    f: Function,
    mean: Float[Array, "d"],
    scale: Float[Array, "d k"],
    draws: Float[Array, "M k"],
    *,
    weights: Float[Array, "M"] | None = None,
) -> Float[Array, "d*k d*k"]:
    """Return the block of :func:`hessian` in vec(scale), ``E[(eps eps') kron H]``."""
    weights = check_inputs(mean, scale, draws, weights, "scale_scale_hessian")
    return _kronecker_average(f, points(mean, scale, draws), weights, draws, draws)


def _prepend_one(draws: Array) -> Array:
    """Return the rows ``[1, eps_m']``."""
    return jnp.concatenate([jnp.ones_like(draws[:, :1]), draws], axis=1)


def _kronecker_average(f: Function, z: Array, weights: Array, left: Array, right: Array) -> Array:
    """Return ``sum_m w_m (left_m right_m') kron H_m`` without forming one product per draw."""
    hessians = jax.vmap(jax.hessian(scalar_valued(f)))(z)
    blocks = jnp.einsum("m,ma,mb,mij->aibj", weights, left, right, hessians)
    return blocks.reshape(left.shape[1] * z.shape[1], right.shape[1] * z.shape[1])


def hessian_vector_product(
    f: Function,
    mean: Float[Array, "d"],
    scale: Float[Array, "d k"],
    draws: Float[Array, "M k"],
    direction: Float[Array, "d k+1"],
    *,
    weights: Float[Array, "M"] | None = None,
) -> Float[Array, "d k+1"]:
    """Return the matrix whose vec is the Hessian of ``E[f]`` times vec(direction).

    For a direction V it is ``E[H V [1; eps] [1, eps']]`` (Theorem 1 and the identity
    ``(A' kron B) vec(V) = vec(B V A)``): one product of H with the vector ``V [1; eps]`` per draw,
    forward over reverse, and H itself is never formed.

    Parameters
    ----------
    f, mean, scale, draws, weights
        As in :func:`gradient`.
    direction : array of shape (d, k + 1)
        Direction in [mean, scale]: the mean in the first column, the scale in the others.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> draws = jnp.array([[1.0], [-1.0]])
    >>> direction = jnp.array([[1.0, 2.0]])
    >>> f = lambda z: 3.0 * z[0] ** 2
    >>> hessian_vector_product(f, jnp.zeros(1), jnp.ones((1, 1)), draws, direction).tolist()
    [[6.0, 12.0]]
    """
    weights = check_inputs(mean, scale, draws, weights, "hessian_vector_product")
    expected = (scale.shape[0], scale.shape[1] + 1)
    if jnp.shape(direction) != expected:
        raise InputError(
            f"direction has shape {jnp.shape(direction)} in hessian_vector_product(); pass the "
            f"direction of mean and scale side by side, [mean, scale], shape {expected}"
        )
    slope = jax.grad(scalar_valued(f))
    extended = _prepend_one(draws)

    def product(z: Array, noise: Array) -> Array:
        return jax.jvp(slope, (z,), (direction @ noise,))[1]

    products = jax.vmap(product)(points(mean, scale, draws), extended)
    return jnp.einsum("m,mi,ma->ia", weights, products, extended)


# Equations (4)-(6): mean and scale as functions of theta.


def parameter_gradient(
    f: Function,
    location_scale: LocationScale,
    theta: PyTree,
    draws: Float[Array, "M k"],
    *,
    weights: Float[Array, "M"] | None = None,
) -> PyTree:
    """Return the gradient of ``E[f(mean(theta) + scale(theta) eps)]``, equation (4).

    It is ``E[g' dz/dtheta]``. The rows ``w_m g_m`` are pulled back through theta -> (z_1 ... z_M)
    in one reverse pass: ``location_scale`` is evaluated once whatever the number of draws.

    Parameters
    ----------
    f : callable
        Twice differentiable function from (d,) to a scalar.
    location_scale : callable
        theta -> (mean, scale), of shapes (d,) and (d, k).
    theta : pytree of float arrays
        The parameters; the gradient has the same structure.
    draws, weights
        As in :func:`gradient`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> location_scale = lambda theta: (theta["m"], jnp.diag(jnp.exp(theta["s"])))
    >>> theta = {"m": jnp.ones(1), "s": jnp.zeros(1)}
    >>> draws = jnp.array([[1.0], [-1.0]])
    >>> slope = parameter_gradient(lambda z: z[0] ** 2, location_scale, theta, draws)
    >>> slope["m"].tolist(), slope["s"].tolist()
    ([2.0], [2.0])
    """
    z, pull_back, weights = _linearise(location_scale, theta, draws, weights, "parameter_gradient")
    slopes = jax.vmap(jax.grad(scalar_valued(f)))(z)
    return pull_back(weights[:, None] * slopes)[0]


def parameter_hessian(
    f: Function,
    location_scale: LocationScale,
    theta: Float[Array, "p"],
    draws: Float[Array, "M k"],
    *,
    weights: Float[Array, "M"] | None = None,
) -> Float[Array, "p p"]:
    """Return the dense Hessian in a flat theta, equation (5).

    With J = dz/dtheta it is ``E[J' H J + sum_i g_i d2 z_i / dtheta2]``, in these two terms.

    Parameters
    ----------
    f, location_scale, draws, weights
        As in :func:`parameter_gradient`.
    theta : array of shape (p,)
        Flat parameters; flatten a pytree with ``jax.flatten_util.ravel_pytree``.
    """
    if getattr(theta, "ndim", None) != 1:
        raise InputError(
            "theta is not a vector in parameter_hessian(); flatten it with "
            "jax.flatten_util.ravel_pytree, or use parameter_hessian_vector_product"
        )
    checked = scalar_valued(f)
    z, _, weights = _linearise(location_scale, theta, draws, weights, "parameter_hessian")

    def all_points(theta: Array) -> Array:
        return points(*location_scale(theta), draws)

    jacobians = jax.jacfwd(all_points)(theta)
    hessians = jax.vmap(jax.hessian(checked))(z)
    curvature_of_f = jnp.einsum("m,mip,mij,mjq->pq", weights, jacobians, hessians, jacobians)
    # Contracting with g first gives a scalar to differentiate twice: d2 z, of size M d p^2, is
    # never stored.
    weighted_slopes = weights[:, None] * jax.vmap(jax.grad(checked))(z)
    curvature_of_z = jax.hessian(lambda theta: jnp.vdot(weighted_slopes, all_points(theta)))(theta)
    return curvature_of_f + curvature_of_z


def parameter_hessian_vector_product(
    f: Function,
    location_scale: LocationScale,
    theta: PyTree,
    draws: Float[Array, "M k"],
    direction: PyTree,
    *,
    weights: Float[Array, "M"] | None = None,
) -> PyTree:
    """Return the Hessian in theta times a direction, equation (6).

    The derivative of equation (4) along the direction, by the R-operator: forward mode over the
    reverse pass. It is exact (there is no step size) and costs a small multiple of the gradient.

    Parameters
    ----------
    f, location_scale, theta, draws, weights
        As in :func:`parameter_gradient`.
    direction : pytree
        Same structure, shapes and dtypes as ``theta``.
    """
    if _signature(direction) != _signature(theta):
        raise InputError(
            "direction does not match theta in parameter_hessian_vector_product(): it has "
            f"{_signature(direction)}, theta has {_signature(theta)}; pass a direction with the "
            "structure, shapes and dtypes of theta"
        )

    def slope(theta: PyTree) -> PyTree:
        return parameter_gradient(f, location_scale, theta, draws, weights=weights)

    return jax.jvp(slope, (theta,), (direction,))[1]


def _linearise(
    location_scale: LocationScale, theta: PyTree, draws: Array, weights: Array | None, where: str
) -> tuple[Array, Callable[[Array], tuple[PyTree]], Array]:
    """Return the points (M, d), the pull-back from them to theta, and the weights (M,)."""

    def all_points(theta: PyTree) -> tuple[Array, Array]:
        pair = location_scale(theta)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InputError(
                f"location_scale(theta) returned a {type(pair).__name__} in {where}(); return the "
                "pair (mean, scale), shapes (d,) and (d, k)"
            )
        checked_weights = check_inputs(*pair, draws, weights, where)
        return points(*pair, draws), checked_weights

    return jax.vjp(all_points, theta, has_aux=True)


def _signature(tree: PyTree) -> tuple[Any, list[tuple[tuple[int, ...], Any]]]:
    """Return the structure of a pytree with the shape and dtype of every leaf."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
