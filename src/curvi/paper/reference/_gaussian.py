"""Derivatives of ``E[f(z)]``, z ~ N(mean, C), in the mean and the covariance itself.

The theorems of Bonnet and Price and their second-order form, equations (1)-(3): a derivative
in C costs two derivatives of ``f``, so the Hessian in C needs four. They hold for the Gaussian
only and suit small d; :func:`curvi.paper.reference.hessian` needs at most two derivatives of
``f`` and takes any base distribution.

The covariance is given by a factor, ``C = scale @ scale.T``, and ``draws`` are standard normal
rows, (M, k). ``C_ij`` and ``C_ji`` are *separate* coordinates: the derivative is that of ``E[f]``
extended to all square matrices through the symmetric part ``(C + C') / 2``. When the two entries
are tied, as in any parameterisation of a symmetric matrix, off-diagonal derivatives double; the
``tie_...`` functions convert to the lower triangle of C, row by row (``jnp.tril_indices``).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi.paper.reference._location_scale import (
    Function,
    Noise,
    Scale,
    Vector,
    Weights,
    check_inputs,
    points,
    scalar_valued,
    shape_error,
)


def mean_gradient(
    f: Function, mean: Vector, scale: Scale, draws: Noise, *, weights: Weights = None
) -> Float[Array, "d"]:
    """Return the gradient in the mean, ``E[g]`` (Bonnet's theorem).

    Parameters
    ----------
    f : callable
        Function from (d,) to a scalar, differentiable as often as the formula requires.
    mean, scale, draws : arrays of shape (d,), (d, k) and (M, k)
        ``z_m = mean + scale @ eps_m``, with ``eps_m`` standard normal and ``C = scale @ scale.T``.
    weights : array of shape (M,), optional
        Quadrature weights, used as they are; equal weights ``1 / M`` by default.

    Returns
    -------
    array of shape (d,)
        ``sum_m w_m g(z_m)``.

    Raises
    ------
    InputError
        If the shapes do not fit together, or ``f`` does not return a scalar.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> draws = jnp.array([[1.0], [-1.0]])
    >>> mean_gradient(lambda z: z[0] ** 2, jnp.ones(1), jnp.ones((1, 1)), draws).tolist()
    [2.0]
    """
    weights = check_inputs(mean, scale, draws, weights, "mean_gradient")
    return _average(jax.grad(scalar_valued(f)), mean, scale, draws, weights)


def covariance_gradient(
    f: Function, mean: Vector, scale: Scale, draws: Noise, *, weights: Weights = None
) -> Float[Array, "d d"]:
    """Return the gradient in the covariance, ``E[H] / 2`` (Price's theorem).

    ``C_ij`` and ``C_ji`` are separate coordinates; see :func:`tie_covariance_gradient`.

    Parameters
    ----------
    f, mean, scale, draws, weights
        As in :func:`mean_gradient`.

    Returns
    -------
    array of shape (d, d)
        ``sum_m w_m H(z_m) / 2``, symmetric.

    Raises
    ------
    InputError
        As for :func:`mean_gradient`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> draws = jnp.array([[1.0], [-1.0]])
    >>> covariance_gradient(lambda z: z[0] ** 2, jnp.ones(1), jnp.ones((1, 1)), draws).tolist()
    [[1.0]]
    """
    weights = check_inputs(mean, scale, draws, weights, "covariance_gradient")
    return _average(jax.hessian(scalar_valued(f)), mean, scale, draws, weights) / 2


def mean_mean_hessian(
    f: Function, mean: Vector, scale: Scale, draws: Noise, *, weights: Weights = None
) -> Float[Array, "d d"]:
    """Return the Hessian in the mean, ``E[H]``, equation (1); twice :func:`covariance_gradient`.

    Parameters
    ----------
    f, mean, scale, draws, weights
        As in :func:`mean_gradient`.

    Returns
    -------
    array of shape (d, d)
        ``sum_m w_m H(z_m)``, symmetric.

    Raises
    ------
    InputError
        As for :func:`mean_gradient`.
    """
    weights = check_inputs(mean, scale, draws, weights, "mean_mean_hessian")
    return _average(jax.hessian(scalar_valued(f)), mean, scale, draws, weights)


def covariance_covariance_hessian(
    f: Function, mean: Vector, scale: Scale, draws: Noise, *, weights: Weights = None
) -> Float[Array, "d d d d"]:
    """Return the Hessian in the covariance, ``E[nabla^4 f] / 4``, equation (2).

    Entry (i, j, k, l) is the derivative in ``C_ij`` and ``C_kl``; ``C_ij`` and ``C_ji`` are
    separate coordinates (see :func:`tie_covariance_covariance_hessian`). It needs M d^4 numbers.

    Parameters
    ----------
    f, mean, scale, draws, weights
        As in :func:`mean_gradient`; ``f`` four times differentiable.

    Returns
    -------
    array of shape (d, d, d, d)
        Entry (i, j, k, l) as above; symmetric in all its axes.

    Raises
    ------
    InputError
        As for :func:`mean_gradient`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> draws = jnp.array([[1.0], [-1.0]])
    >>> covariance_covariance_hessian(
    ...     lambda z: z[0] ** 4, jnp.ones(1), jnp.ones((1, 1)), draws
    ... ).tolist()
    [[[[6.0]]]]
    """
    weights = check_inputs(mean, scale, draws, weights, "covariance_covariance_hessian")
    fourth = jax.jacfwd(jax.jacfwd(jax.hessian(scalar_valued(f))))
    return _average(fourth, mean, scale, draws, weights) / 4


def mean_covariance_hessian(
    f: Function, mean: Vector, scale: Scale, draws: Noise, *, weights: Weights = None
) -> Float[Array, "d d d"]:
    """Return the Hessian in mean and covariance, ``E[nabla^3 f] / 2``, equation (3).

    Entry (i, k, l) is the derivative in ``mean_i`` and ``C_kl``; ``C_kl`` and ``C_lk`` are separate
    coordinates (see :func:`tie_mean_covariance_hessian`). It needs M d^3 numbers.

    Parameters
    ----------
    f, mean, scale, draws, weights
        As in :func:`mean_gradient`; ``f`` three times differentiable.

    Returns
    -------
    array of shape (d, d, d)
        Entry (i, k, l) as above; symmetric in all its axes.

    Raises
    ------
    InputError
        As for :func:`mean_gradient`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> draws = jnp.array([[1.0], [-1.0]])
    >>> mean_covariance_hessian(
    ...     lambda z: z[0] ** 3, jnp.ones(1), jnp.ones((1, 1)), draws
    ... ).tolist()
    [[[3.0]]]
    """
    weights = check_inputs(mean, scale, draws, weights, "mean_covariance_hessian")
    third = jax.jacfwd(jax.hessian(scalar_valued(f)))
    return _average(third, mean, scale, draws, weights) / 2


def _average(
    derivative: Callable[[Array], Array], mean: Array, scale: Array, draws: Array, weights: Array
) -> Array:
    """Return ``sum_m w_m derivative(z_m)``."""
    return jnp.tensordot(weights, jax.vmap(derivative)(points(mean, scale, draws)), axes=1)


# Tied coordinates: c = (C_11, C_21, C_22, C_31, ...), the lower triangle row by row.


def tie_covariance_gradient(derivative: Float[Array, "d d"]) -> Float[Array, "p"]:
    """Return the gradient in the lower triangle of a symmetric C, p = d (d + 1) / 2.

    Moving a tied entry moves ``C_ij`` and ``C_ji``: their derivatives add up, and the diagonal is
    left as it is.

    Parameters
    ----------
    derivative : array of shape (d, d)
        Value of :func:`covariance_gradient`.

    Returns
    -------
    array of shape (p,)
        Derivatives in C_11, C_21, C_22, C_31, ...

    Raises
    ------
    InputError
        If ``derivative`` does not have two axes of equal length.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> tie_covariance_gradient(jnp.array([[1.0, 2.0], [2.0, 3.0]])).tolist()
    [1.0, 4.0, 3.0]
    """
    _check_square_axes(derivative, 2, "tie_covariance_gradient")
    return _tie_last_two_axes(derivative)


def tie_mean_covariance_hessian(derivative: Float[Array, "d d d"]) -> Float[Array, "d p"]:
    """Return equation (3) in the mean and the lower triangle of a symmetric C.

    Parameters
    ----------
    derivative : array of shape (d, d, d)
        Value of :func:`mean_covariance_hessian`.

    Returns
    -------
    array of shape (d, p)
        Rows are coordinates of the mean; columns are C_11, C_21, C_22, C_31, ...

    Raises
    ------
    InputError
        If ``derivative`` does not have three axes of equal length.
    """
    _check_square_axes(derivative, 3, "tie_mean_covariance_hessian")
    return _tie_last_two_axes(derivative)


def tie_covariance_covariance_hessian(derivative: Float[Array, "d d d d"]) -> Float[Array, "p p"]:
    """Return equation (2) in the lower triangle of a symmetric C, on both sides.

    Parameters
    ----------
    derivative : array of shape (d, d, d, d)
        Value of :func:`covariance_covariance_hessian`.

    Returns
    -------
    array of shape (p, p)
        Symmetric; rows and columns are C_11, C_21, C_22, C_31, ...

    Raises
    ------
    InputError
        If ``derivative`` does not have four axes of equal length.
    """
    _check_square_axes(derivative, 4, "tie_covariance_covariance_hessian")
    half_tied = _tie_last_two_axes(derivative)
    return _tie_last_two_axes(jnp.moveaxis(half_tied, -1, 0))


def _tie_last_two_axes(derivative: Array) -> Array:
    """Return the lower triangle of the last two axes, with the mirror entries added."""
    rows, columns = jnp.tril_indices(derivative.shape[-1])
    lower, mirror = derivative[..., rows, columns], derivative[..., columns, rows]
    return jnp.where(jnp.broadcast_to(rows == columns, lower.shape), lower, lower + mirror)


def _check_square_axes(derivative: Array, order: int, where: str) -> None:
    """Validate that a derivative has ``order`` axes of the same length d."""
    shape = jnp.shape(derivative)
    if len(shape) != order or len(set(shape)) != 1:
        remedy = f"{order} axes of equal length d, as returned by the function without tie_"
        raise shape_error("derivative", derivative, where, remedy)
