"""Algorithm 1 of the paper (HFSGVI), written from its text alone, to be read beside it.

A number at the end of a line is that of the printed algorithm. Nothing here is shared with the
solvers of curvi, so the two can check each other; this one runs eagerly, and is slow.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Vector = Float[Array, " d"]
Bound = Callable[[Array, Array, Array], Array]  # f(z, x_b, theta)
LocationScale = Callable[[Array, Array], tuple[Array, Array]]  # (mu, R) of (theta, x_b)


def hfsgvi(
    f: Bound,
    location_scale: LocationScale,
    theta: Vector,
    x: Float[Array, "N ..."],
    key: PRNGKeyArray,
    *,
    num_steps: int,
    batch_size: int,
    num_draws: int = 1,
    cg_steps: int = 10,
) -> Vector:
    """Algorithm 1: climb the sum over rows of ``E[f(z, x_b, theta)]``, ``z = mu + R eps``.

    Parameters
    ----------
    f : callable
        ``f(z, x_b, theta)``, the share of one data point in the lower bound. It may depend on theta
        directly as well, as the entropy and the weights of a decoder do.
    location_scale : callable
        ``(theta, x_b) -> (mu, R)``, of shapes (d_z,) and (d_z, d_z).
    theta : array of shape (d,)
        The first parameters.
    x : array of shape (N, ...)
        The data set, one data point per entry of the first axis.
    key : key
        Source of batches and noise.
    num_steps : int
        Steps to take; the paper says "after having converged".
    batch_size, num_draws, cg_steps : int
        B, M and K.

    Returns
    -------
    array of shape (d,)
        The last parameters.
    """
    dimension = location_scale(theta, x[0])[0].size
    for t in range(num_steps):  # 1
        for_rows, for_noise = jax.random.split(jax.random.fold_in(key, t))
        rows = jax.random.choice(for_rows, x, (batch_size,), replace=False)  # 2
        shape = (batch_size, num_draws, dimension)
        noise = jax.random.normal(for_noise, shape, theta.dtype)  # 3
        theta = hfsgvi_step(f, location_scale, theta, rows, noise, cg_steps=cg_steps)
    return theta  # 8


def hfsgvi_step(
    f: Bound,
    location_scale: LocationScale,
    theta: Vector,
    rows: Float[Array, "B ..."],
    noise: Float[Array, "B M d_z"],
    *,
    cg_steps: int = 10,
) -> Vector:
    """Lines 4 to 7 of Algorithm 1, on a batch and its noise.

    Parameters
    ----------
    f, location_scale, theta
        As for :func:`hfsgvi`.
    rows : array of shape (B, ...)
        The batch.
    noise : array of shape (B, M, d_z)
        M draws for each of its rows.
    cg_steps : int
        K.

    Returns
    -------
    array of shape (d,)
        The parameters after a full step.
    """

    def of_one_draw(theta: Array, row: Array, epsilon: Array) -> Array:
        mu, scale = location_scale(theta, row)
        return f(mu + scale @ epsilon, row, theta)

    def bound(theta: Array) -> Array:
        of_draws = jax.vmap(of_one_draw, (None, None, 0))
        return jnp.sum(jnp.mean(jax.vmap(of_draws, (None, 0, 0))(theta, rows, noise), axis=1))

    gradient = jax.grad(bound)  # 4

    def product(vector: Array) -> Array:
        return jax.jvp(gradient, (theta,), (vector,))[1]  # 5

    # The bound is climbed: its Hessian B is negative definite near the top, and conjugate
    # gradients need a positive definite matrix. Hence -B p = G, which is the same system.
    step = _conjugate_gradients(lambda v: -product(v), gradient(theta), cg_steps)  # 6
    return theta + step  # 7


def _conjugate_gradients(matrix: Callable[[Array], Array], b: Array, max_steps: int) -> Array:
    """At most K iterations from zero; where curvature is not positive, what was found before it.

    The paper does not say what happens there. At the first iteration it is the gradient.
    """
    solution, residual, direction = jnp.zeros_like(b), b, b
    for _ in range(max_steps):
        image = matrix(direction)
        curvature = direction @ image
        if curvature <= 0:
            return solution if jnp.any(solution) else b
        energy = residual @ residual
        solution = solution + energy / curvature * direction
        residual = residual - energy / curvature * image
        if residual @ residual <= jnp.finfo(b.dtype).eps ** (4 / 3) * (b @ b):
            break
        direction = residual + (residual @ residual) / energy * direction
    return solution
