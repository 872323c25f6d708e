"""Equations (4)-(6) and the appendix: derivatives in theta of ``E[f(mean + scale eps)]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from curvi._core.errors import InputError
from curvi.paper.reference._gaussian import covariance_gradient, mean_gradient
from curvi.paper.reference._location_scale import (
    Function,
    Noise,
    Weights,
    check_diagonal,
    check_inputs,
    points,
    scalar_valued,
)

LocationScale = Callable[[Any], tuple[Float[Array, "d"], Float[Array, "d ..."]]]


def parameter_gradient(
    f: Function,
    location_scale: LocationScale,
    theta: PyTree,
    draws: Noise,
    *,
    weights: Weights = None,
) -> PyTree:
    """Return the gradient of ``E[f(mean(theta) + scale(theta) eps)]``, equation (4).

    It is ``E[g' dz/dtheta]``. The rows ``w_m g_m`` are pulled back through theta -> (z_1 ... z_M)
    in one reverse pass: ``location_scale`` is evaluated once whatever the number of draws.

    Parameters
    ----------
    f : callable
        Twice differentiable function from (d,) to a scalar.
    location_scale : callable
        theta -> (mean, scale), of shapes (d,) and (d, k); or (mean, sd), both of shape (d,), which
        is the diagonal form of Theorem 1 without a dense scale.
    theta : pytree of float arrays
        The parameters; the gradient has the same structure.
    draws : array of shape (M, k)
        Base noise, one row per draw.
    weights : array of shape (M,), optional
        Quadrature weights, used as they are; equal weights ``1 / M`` by default.

    Returns
    -------
    pytree
        The gradient, in the structure of ``theta``.

    Raises
    ------
    InputError
        If ``location_scale`` does not return a pair, shapes do not fit together, or ``f`` does
        not return a scalar.

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
    draws: Noise,
    *,
    weights: Weights = None,
) -> Float[Array, "p p"]:
    """Return the dense Hessian in a flat theta, equation (5).

    With J = dz/dtheta it is ``E[J' H J + sum_i g_i d2 z_i / dtheta2]``, in these two terms.

    Parameters
    ----------
    f, location_scale
        As in :func:`parameter_gradient`.
    theta : array of shape (p,)
        Flat parameters; flatten a pytree with ``jax.flatten_util.ravel_pytree``.
    draws, weights
        As in :func:`parameter_gradient`.

    Returns
    -------
    array of shape (p, p)
        The sum of both terms, symmetric.

    Raises
    ------
    InputError
        If ``theta`` is not a vector, and as for :func:`parameter_gradient`.
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
    draws: Noise,
    direction: PyTree,
    *,
    weights: Weights = None,
) -> PyTree:
    """Return the Hessian in theta times a direction, equation (6).

    The derivative of equation (4) along the direction, by the R-operator: forward mode over the
    reverse pass. It is exact (there is no step size) and costs a small multiple of the gradient.

    Parameters
    ----------
    f, location_scale, theta, draws
        As in :func:`parameter_gradient`.
    direction : pytree
        Same structure, shapes and dtypes as ``theta``.
    weights
        As in :func:`parameter_gradient`.

    Returns
    -------
    pytree
        The product, in the structure of ``theta``.

    Raises
    ------
    InputError
        If ``direction`` does not match ``theta``, and as for :func:`parameter_gradient`.
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


def parameter_gradient_by_covariance(
    f: Function,
    location_covariance: LocationScale,
    theta: PyTree,
    draws: Noise,
    *,
    weights: Weights = None,
) -> PyTree:
    """Return the gradient of ``E[f]`` in theta by way of the covariance, as the appendix does.

    It is ``E[g' dmean/dtheta + tr(H dC/dtheta) / 2]``, the theorems of Bonnet and Price with the
    chain rule: for Gaussian noise alone, and with second derivatives of ``f``, which
    :func:`parameter_gradient` does without.

    Parameters
    ----------
    f : callable
        Twice differentiable function from (d,) to a scalar.
    location_covariance : callable
        theta -> (mean, C), of shapes (d,) and (d, d), C symmetric and positive definite.
    theta : pytree of float arrays
        The parameters; the gradient has the same structure.
    draws : array of shape (M, d)
        Standard normal rows, or nodes of a quadrature.
    weights : array of shape (M,), optional
        As in :func:`parameter_gradient`.

    Returns
    -------
    pytree
        The gradient, in the structure of ``theta``.

    Raises
    ------
    InputError
        As for :func:`parameter_gradient`.
    """
    (mean, covariance), pull = jax.vjp(location_covariance, theta)
    at = (f, mean, jnp.linalg.cholesky(covariance), draws)
    slopes = mean_gradient(*at, weights=weights), covariance_gradient(*at, weights=weights)
    gradient: PyTree = pull(slopes)[0]
    return gradient


def parameter_hessian_terms(
    f: Function,
    location_scale: LocationScale,
    theta: Float[Array, "p"],
    draws: Noise,
    *,
    weights: Weights = None,
) -> Float[Array, "6 p p"]:
    """Return the six terms that the appendix splits equation (5) into, in its order.

    With ``m_l = dmean/dtheta_l`` and ``r_l = (dR/dtheta_l) eps`` they are the expectations of
    ``m_1' H m_2``, ``r_1' H m_2``, ``g' d2mean``, ``r_2' H m_1``, ``r_1' H r_2`` and
    ``g' (d2R) eps``; their sum is :func:`parameter_hessian`. Nothing is multiplied out, which
    needs M d p numbers.

    Parameters
    ----------
    f, location_scale, theta, draws, weights
        As in :func:`parameter_hessian`, with a dense scale.

    Returns
    -------
    array of shape (6, p, p)
        The terms.

    Raises
    ------
    InputError
        As for :func:`parameter_gradient`.
    """
    mean, scale = location_scale(theta)
    weights = check_inputs(mean, scale, draws, weights, "parameter_hessian_terms")
    z = points(mean, scale, draws)
    g = weights[:, None] * jax.vmap(jax.grad(scalar_valued(f)))(z)
    curvature = weights[:, None, None] * jax.vmap(jax.hessian(f))(z)
    first = jax.jacfwd(location_scale)
    (in_mean, in_scale), (mean_twice, scale_twice) = first(theta), jax.jacfwd(first)(theta)
    m = jnp.broadcast_to(in_mean, (len(draws), *in_mean.shape))
    r = jnp.einsum("ijp,mj->mip", in_scale, draws)

    def sandwich(left: Array, right: Array) -> Array:
        return jnp.einsum("mip,mij,mjq->pq", left, curvature, right)

    third = jnp.einsum("mi,ipq->pq", g, mean_twice)
    sixth = jnp.einsum("mi,ijpq,mj->pq", g, scale_twice, draws)
    second = sandwich(r, m)
    return jnp.stack([sandwich(m, m), second, third, second.T, sandwich(r, r), sixth])


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
        check = check_diagonal if jnp.ndim(pair[1]) == 1 else check_inputs
        checked_weights = check(*pair, draws, weights, where)
        return points(*pair, draws), checked_weights

    return jax.vjp(all_points, theta, has_aux=True)


def _signature(tree: PyTree) -> tuple[Any, list[tuple[tuple[int, ...], Any]]]:
    """Return the structure of a pytree with the shape and dtype of every leaf."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
