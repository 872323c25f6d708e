"""Theorem 1 for a diagonal scale: derivatives of ``E[f(mean + sd * eps)]`` in (mean, sd).

The diagonal forms of the appendix, for any base noise. Every expectation is the weighted sum over
the given ``draws`` (M, d); ``g`` and ``H`` are the gradient and the Hessian of ``f`` at
``z_m = mean + sd * eps_m``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi._core.errors import InputError
from curvi.reference._checks import Function, check_draws, check_mean, scalar_valued

__all__ = ["diagonal_gradient", "diagonal_hessian", "diagonal_hessian_vector_product"]


def diagonal_gradient(
    f: Function,
    mean: Float[Array, "d"],
    sd: Float[Array, "d"],
    draws: Float[Array, "M d"],
    *,
    weights: Float[Array, "M"] | None = None,
) -> tuple[Float[Array, "d"], Float[Array, "d"]]:
    """Return the gradient of ``E[f]`` in the mean, ``E[g]``, and in the sd, ``E[eps * g]``.

    Parameters
    ----------
    f : callable
        Twice differentiable function from (d,) to a scalar.
    mean, sd : arrays of shape (d,)
        Location and scale of each coordinate; the sign of ``sd`` is free.
    draws : array of shape (M, d)
        Base noise.
    weights : array of shape (M,), optional
        Quadrature weights, used as they are; equal weights ``1 / M`` by default.

    Raises
    ------
    InputError
        If the shapes do not fit together, or ``f`` does not return a scalar.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> draws = jnp.array([[1.0], [-1.0]])
    >>> one = jnp.ones(1)
    >>> [x.tolist() for x in diagonal_gradient(lambda z: z[0] ** 2, one, one, draws)]
    [[2.0], [2.0]]
    """
    weights = _check_inputs(mean, sd, draws, weights, "diagonal_gradient")
    slopes = jax.vmap(jax.grad(scalar_valued(f)))(_points(mean, sd, draws))
    return weights @ slopes, weights @ (draws * slopes)


def diagonal_hessian(
    f: Function,
    mean: Float[Array, "d"],
    sd: Float[Array, "d"],
    draws: Float[Array, "M d"],
    *,
    weights: Float[Array, "M"] | None = None,
) -> Float[Array, "2*d 2*d"]:
    """Return the dense Hessian of ``E[f]`` in the stacked vector [mean; sd].

    With E = diag(eps), it is the average of ``[[H, H E], [E H, E H E]]``. Note that the blocks are
    dense even though the covariance is diagonal.

    Parameters
    ----------
    f, mean, sd, draws, weights
        As in :func:`diagonal_gradient`.
    """
    weights = _check_inputs(mean, sd, draws, weights, "diagonal_hessian")
    hessians = jax.vmap(jax.hessian(scalar_valued(f)))(_points(mean, sd, draws))
    factors = jnp.stack([jnp.ones_like(draws), draws], axis=1)
    blocks = jnp.einsum("m,mai,mij,mbj->aibj", weights, factors, hessians, factors)
    return blocks.reshape(2 * mean.shape[0], 2 * mean.shape[0])


def diagonal_hessian_vector_product(
    f: Function,
    mean: Float[Array, "d"],
    sd: Float[Array, "d"],
    draws: Float[Array, "M d"],
    direction: tuple[Float[Array, "d"], Float[Array, "d"]],
    *,
    weights: Float[Array, "M"] | None = None,
) -> tuple[Float[Array, "d"], Float[Array, "d"]]:
    """Return the Hessian of ``E[f]`` in (mean, sd) times the pair (u, v).

    It is ``(E[h], E[eps * h])`` with ``h = H (u + eps * v)``: one Hessian-vector product of ``f``
    per draw, forward over reverse, with O(d) numbers stored per draw.

    Parameters
    ----------
    f, mean, sd, draws, weights
        As in :func:`diagonal_gradient`.
    direction : pair of arrays of shape (d,)
        Direction in the mean and in the sd.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> draws = jnp.array([[1.0], [-1.0]])
    >>> direction = (jnp.array([1.0]), jnp.array([3.0]))
    >>> product = diagonal_hessian_vector_product(
    ...     lambda z: z[0] ** 2, jnp.ones(1), jnp.ones(1), draws, direction
    ... )
    >>> [x.tolist() for x in product]
    [[2.0], [6.0]]
    """
    where = "diagonal_hessian_vector_product"
    weights = _check_inputs(mean, sd, draws, weights, where)
    if not isinstance(direction, tuple) or [jnp.shape(x) for x in direction] != [mean.shape] * 2:
        raise InputError(
            f"direction does not fit in {where}(); pass a tuple of two vectors, one for mean and "
            f"one for sd, each of shape {mean.shape}"
        )
    along_mean, along_sd = direction
    slope = jax.grad(scalar_valued(f))

    def product(z: Array, noise: Array) -> Array:
        return jax.jvp(slope, (z,), (along_mean + noise * along_sd,))[1]

    products = jax.vmap(product)(_points(mean, sd, draws), draws)
    return weights @ products, weights @ (draws * products)


def _points(mean: Array, sd: Array, draws: Array) -> Array:
    """Return ``z_m = mean + sd * eps_m``, one row per draw."""
    return jax.vmap(lambda noise: mean + sd * noise)(draws)


def _check_inputs(mean: Array, sd: Array, draws: Array, weights: Array | None, where: str) -> Array:
    """Refuse shapes that do not fit ``z = mean + sd * eps``, and return the weights."""
    check_mean(mean, where)
    if jnp.shape(sd) != jnp.shape(mean):
        raise InputError(
            f"sd has shape {jnp.shape(sd)} in {where}(); pass one value per entry of mean, "
            f"shape {mean.shape}"
        )
    return check_draws(draws, mean.shape[0], weights, where)
