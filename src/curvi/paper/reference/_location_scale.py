"""Theorem 1: derivatives of ``E[f(mean + scale eps)]`` for any base noise ``eps``.

Gaussian, Student t, Laplace and logistic families share this one code path and differ only in the
``draws`` that are passed in. Every expectation is the weighted sum over them,
``sum_m w_m (...)_m``, with equal weights ``1 / M`` unless quadrature weights are passed.

Throughout, ``z_m = mean + scale @ eps_m`` with ``mean`` of shape (d,), ``scale`` of shape (d, k)
and ``draws`` of shape (M, k); ``g`` and ``H`` are the gradient and the Hessian of ``f`` at ``z_m``.
The noise and ``z`` may differ in dimension (low rank plus diagonal has k = d + rank). ``vec``
stacks the columns of ``[mean, scale]``: entry (i, j) of a (d, k + 1) matrix has position
``j d + i``. The diagonal forms take the vector ``sd`` in place of the matrix:
``z_m = mean + sd * eps_m`` with draws of shape (M, d).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi._core.errors import InputError

Function = Callable[[Float[Array, "d"]], Float[Array, ""]]
Vector = Float[Array, "d"]
Scale = Float[Array, "d k"]
Noise = Float[Array, "M k"]
DiagonalNoise = Float[Array, "M d"]
Weights = Float[Array, "M"] | None


def gradient(
    f: Function, mean: Vector, scale: Scale, draws: Noise, *, weights: Weights = None
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

    Returns
    -------
    pair of arrays of shape (d,) and (d, k)
        ``E[g]`` and ``E[g eps']``.

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
    f: Function, mean: Vector, scale: Scale, draws: Noise, *, weights: Weights = None
) -> Float[Array, "d*(k+1) d*(k+1)"]:
    """Return the dense Hessian of ``E[f]`` in vec[mean, scale], of size d (k + 1).

    It is ``E[([1; eps] [1, eps']) kron H]`` (Theorem 1). Memory grows as (d k)^2: for more than a
    few dozen dimensions use :func:`hessian_vector_product`.

    Parameters
    ----------
    f, mean, scale, draws, weights
        As in :func:`gradient`; InputError is raised for the same reasons.

    Returns
    -------
    array of shape (d (k + 1), d (k + 1))
        Symmetric; mean first, then the columns of scale.

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
    f: Function, mean: Vector, scale: Scale, draws: Noise, *, weights: Weights = None
) -> Float[Array, "d d*k"]:
    """Return the block of :func:`hessian` in mean and vec(scale), ``E[eps' kron H]`` (Theorem 1).

    Parameters
    ----------
    f, mean, scale, draws, weights
        As in :func:`gradient`; InputError is raised for the same reasons.

    Returns
    -------
    array of shape (d, d k)
        Rows are coordinates of the mean, columns those of vec(scale).
    """
    weights = check_inputs(mean, scale, draws, weights, "mean_scale_hessian")
    ones = jnp.ones_like(draws[:, :1])
    return _kronecker_average(f, points(mean, scale, draws), weights, ones, draws)


def scale_scale_hessian(
    f: Function, mean: Vector, scale: Scale, draws: Noise, *, weights: Weights = None
) -> Float[Array, "d*k d*k"]:
    """Return the block of :func:`hessian` in vec(scale), ``E[(eps eps') kron H]`` (Theorem 1).

    Parameters
    ----------
    f, mean, scale, draws, weights
        As in :func:`gradient`; InputError is raised for the same reasons.

    Returns
    -------
    array of shape (d k, d k)
        Symmetric, in the order of vec(scale).
    """
    weights = check_inputs(mean, scale, draws, weights, "scale_scale_hessian")
    return _kronecker_average(f, points(mean, scale, draws), weights, draws, draws)


def hessian_vector_product(
    f: Function,
    mean: Vector,
    scale: Scale,
    draws: Noise,
    direction: Float[Array, "d k+1"],
    *,
    weights: Weights = None,
) -> Float[Array, "d k+1"]:
    """Return the matrix whose vec is the Hessian of ``E[f]`` times vec(direction).

    For a direction V it is ``E[H V [1; eps] [1, eps']]`` (Theorem 1 and the identity
    ``(A' kron B) vec(V) = vec(B V A)``): one product of H with the vector ``V [1; eps]`` per draw,
    forward over reverse, and H itself is never formed.

    Parameters
    ----------
    f, mean, scale, draws
        As in :func:`gradient`; InputError is raised for the same reasons.
    direction : array of shape (d, k + 1)
        Direction in [mean, scale]: the mean in the first column, the scale in the others.
    weights
        As in :func:`gradient`.

    Returns
    -------
    array of shape (d, k + 1)
        The product, laid out like ``direction``.

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
        remedy = f"the direction of mean and scale side by side, [mean, scale], shape {expected}"
        raise shape_error("direction", direction, "hessian_vector_product", remedy)
    extended = _prepend_one(draws)
    products = _products(f, points(mean, scale, draws), extended @ direction.T)
    return jnp.einsum("m,mi,ma->ia", weights, products, extended)


def diagonal_gradient(
    f: Function, mean: Vector, sd: Vector, draws: DiagonalNoise, *, weights: Weights = None
) -> tuple[Float[Array, "d"], Float[Array, "d"]]:
    """Return the gradient of ``E[f]`` in the mean, ``E[g]``, and in the sd, ``E[eps * g]``.

    The diagonal form of Theorem 1 in the appendix, for any base noise.

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

    Returns
    -------
    pair of arrays of shape (d,)
        ``E[g]`` and ``E[eps * g]``.

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
    weights = check_diagonal(mean, sd, draws, weights, "diagonal_gradient")
    slopes = jax.vmap(jax.grad(scalar_valued(f)))(_diagonal_points(mean, sd, draws))
    return weights @ slopes, weights @ (draws * slopes)


def diagonal_hessian(
    f: Function, mean: Vector, sd: Vector, draws: DiagonalNoise, *, weights: Weights = None
) -> Float[Array, "2*d 2*d"]:
    """Return the dense Hessian of ``E[f]`` in the stacked vector [mean; sd].

    The diagonal form of Theorem 1: with E = diag(eps), the average of
    ``[[H, H E], [E H, E H E]]``. The blocks are dense even though the covariance is diagonal.

    Parameters
    ----------
    f, mean, sd, draws, weights
        As in :func:`diagonal_gradient`; InputError is raised for the same reasons.

    Returns
    -------
    array of shape (2 d, 2 d)
        Symmetric; the mean comes before the sd.
    """
    weights = check_diagonal(mean, sd, draws, weights, "diagonal_hessian")
    hessians = jax.vmap(jax.hessian(scalar_valued(f)))(_diagonal_points(mean, sd, draws))
    factors = jnp.stack([jnp.ones_like(draws), draws], axis=1)
    blocks = jnp.einsum("m,mai,mij,mbj->aibj", weights, factors, hessians, factors)
    return blocks.reshape(2 * mean.shape[0], 2 * mean.shape[0])


def diagonal_hessian_vector_product(
    f: Function,
    mean: Vector,
    sd: Vector,
    draws: DiagonalNoise,
    direction: tuple[Float[Array, "d"], Float[Array, "d"]],
    *,
    weights: Weights = None,
) -> tuple[Float[Array, "d"], Float[Array, "d"]]:
    """Return the Hessian of ``E[f]`` in (mean, sd) times the pair (u, v).

    The diagonal form of Theorem 1, ``(E[h], E[eps * h])`` with ``h = H (u + eps * v)``: one
    Hessian-vector product of ``f`` per draw, forward over reverse, with O(d) numbers stored per
    draw.

    Parameters
    ----------
    f, mean, sd, draws
        As in :func:`diagonal_gradient`; InputError is raised for the same reasons.
    direction : pair of arrays of shape (d,)
        Direction (u, v) in the mean and in the sd.
    weights
        As in :func:`diagonal_gradient`.

    Returns
    -------
    pair of arrays of shape (d,)
        The parts of the product in the mean and in the sd.

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
    weights = check_diagonal(mean, sd, draws, weights, where)
    if not isinstance(direction, tuple) or [jnp.shape(x) for x in direction] != [mean.shape] * 2:
        raise InputError(
            f"direction does not fit in {where}(); pass a tuple of two vectors, one for mean and "
            f"one for sd, each of shape {mean.shape}"
        )
    directions = _diagonal_points(*direction, draws)
    products = _products(f, _diagonal_points(mean, sd, draws), directions)
    return weights @ products, weights @ (draws * products)


def points(mean: Array, scale: Array, draws: Array) -> Array:
    """Return ``z_m = mean + scale @ eps_m``, one row per draw; a vector is a diagonal scale."""
    if jnp.ndim(scale) == 1:
        return _diagonal_points(mean, scale, draws)
    return jax.vmap(lambda noise: mean + scale @ noise)(draws)


def _diagonal_points(mean: Array, sd: Array, draws: Array) -> Array:
    """Return ``mean + sd * eps_m``, one row per draw."""
    return jax.vmap(lambda noise: mean + sd * noise)(draws)


def _prepend_one(draws: Array) -> Array:
    """Return the rows ``[1, eps_m']``."""
    return jnp.concatenate([jnp.ones_like(draws[:, :1]), draws], axis=1)


def _kronecker_average(f: Function, z: Array, weights: Array, left: Array, right: Array) -> Array:
    """Return ``sum_m w_m (left_m right_m') kron H_m`` without forming one product per draw."""
    hessians = jax.vmap(jax.hessian(scalar_valued(f)))(z)
    blocks = jnp.einsum("m,ma,mb,mij->aibj", weights, left, right, hessians)
    return blocks.reshape(left.shape[1] * z.shape[1], right.shape[1] * z.shape[1])


def _products(f: Function, z: Array, directions: Array) -> Array:
    """Return the rows ``H_m v_m``, forward over reverse."""
    slope = jax.grad(scalar_valued(f))
    return jax.vmap(lambda at, along: jax.jvp(slope, (at,), (along,))[1])(z, directions)


def scalar_valued(f: Function) -> Function:
    """Return ``f`` with a check, at trace time, that its output is one real number."""

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


def shape_error(name: str, array: Array, where: str, remedy: str) -> InputError:
    """The error of an argument whose shape does not fit: what, where, what to pass."""
    return InputError(f"{name} has shape {jnp.shape(array)} in {where}(); pass {remedy}")


def check_inputs(
    mean: Array, scale: Array, draws: Array, weights: Array | None, where: str
) -> Array:
    """Validate the shapes of ``z = mean + scale @ eps``, and return the weights."""
    _check_mean(mean, where)
    if jnp.ndim(scale) != 2 or scale.shape[0] != mean.shape[0]:
        remedy = f"a matrix with one row per entry of mean, shape ({mean.shape[0]}, k)"
        raise shape_error("scale", scale, where, remedy)
    return _check_draws(draws, scale.shape[1], weights, where)


def check_diagonal(
    mean: Array, sd: Array, draws: Array, weights: Array | None, where: str
) -> Array:
    """Validate the shapes of ``z = mean + sd * eps``, and return the weights."""
    _check_mean(mean, where)
    if jnp.shape(sd) != jnp.shape(mean):
        raise shape_error("sd", sd, where, f"one value per entry of mean, shape {mean.shape}")
    return _check_draws(draws, mean.shape[0], weights, where)


def _check_mean(mean: Array, where: str) -> None:
    if jnp.ndim(mean) != 1:
        raise shape_error("mean", mean, where, "a vector, shape (d,)")


def _check_draws(draws: Array, size: int, weights: Array | None, where: str) -> Array:
    """Validate draws of shape (M, size), and return the weights (M,), equal unless given."""
    if jnp.ndim(draws) != 2 or draws.shape[1] != size or draws.shape[0] == 0:
        remedy = f"one row of {size} base-noise values per draw, shape (M, {size}) with M >= 1"
        raise shape_error("draws", draws, where, remedy)
    if weights is None:
        return jnp.full(draws.shape[0], 1 / draws.shape[0], draws.dtype)
    if jnp.shape(weights) != draws.shape[:1]:
        remedy = f"one weight per draw, shape {draws.shape[:1]}, or None for equal weights"
        raise shape_error("weights", weights, where, remedy)
    return weights
