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

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi._core.errors import InputError
from curvi.reference._checks import Function, check_inputs, points, scalar_valued

__all__ = [
    "gradient",
    "hessian",
    "hessian_vector_product",
    "mean_scale_hessian",
    "scale_scale_hessian",
]


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
