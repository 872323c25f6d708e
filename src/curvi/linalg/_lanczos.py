"""The condition number, estimated from the coefficients of CG, and the error that it implies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from curvi._core.errors import InputError
from curvi.linalg._cg import CGResult


def lanczos_tridiagonal(result: CGResult) -> jax.Array:
    r"""The Lanczos matrix T of M^-1/2 A M^-1/2, from the coefficients of CG.

    .. math::
        T_{jj} = \frac{1}{\alpha_j} + \frac{\beta_{j-1}}{\alpha_{j-1}},\qquad
        T_{j,j+1} = \frac{\sqrt{\beta_j}}{\alpha_j}

    Rows for steps that were not taken repeat T_00, uncoupled: a Rayleigh quotient that lies between
    the extreme eigenvalues and leaves them alone. Without any step T is the identity.

    Parameters
    ----------
    result : CGResult
        From :func:`conjugate_gradient` with ``num_coefficients`` above zero.

    Returns
    -------
    array of shape (num_coefficients, num_coefficients)
        T, symmetric and tridiagonal.

    Raises
    ------
    InputError
        If the result holds no coefficients.
    """
    alphas, betas = result.alphas, result.betas
    if alphas.size == 0:
        raise InputError(
            "the result has no coefficients; call conjugate_gradient(num_coefficients=k)"
        )
    taken = alphas > 0
    safe = jnp.where(taken, alphas, 1.0)
    inverse = jnp.where(taken, 1.0 / safe, 1.0 / safe[0])
    carried = jnp.where(taken, betas, 0.0) / safe
    diagonal = inverse.at[1:].add(jnp.where(taken[1:], carried[:-1], 0.0))
    both = taken[1:] & taken[:-1]
    off = jnp.where(both, jnp.sqrt(jnp.where(both, betas[:-1], 0.0)) / safe[:-1], 0.0)
    return jnp.diag(diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1)


def condition_estimate(result: CGResult) -> jax.Array:
    """Ratio of the extreme Ritz values: a lower bound of the condition number that CG sees.

    That is the condition number of the *preconditioned* operator M^-1/2 A M^-1/2. Ritz values lie
    inside the spectrum, so the estimate approaches the condition number from below as steps are
    added (up to rounding), and is one where no step was taken.

    Parameters
    ----------
    result : CGResult
        From :func:`conjugate_gradient` with ``num_coefficients`` above zero.

    Returns
    -------
    Array
        The ratio, at least one; infinite where rounding leaves no positive smallest Ritz value.

    Raises
    ------
    InputError
        If the result holds no coefficients.
    """
    ritz = jnp.linalg.eigvalsh(lanczos_tridiagonal(result))
    smallest = ritz[0]
    # Rounding can push the smallest Ritz value of an extreme spectrum below zero.
    ratio = ritz[-1] / jnp.where(smallest > 0, smallest, 1.0)
    return jnp.where(smallest > 0, ratio, jnp.inf).astype(ritz.dtype)


def relative_error_bound(
    condition: ArrayLike, steps: ArrayLike, *, chebyshev: bool = False
) -> jax.Array:
    r"""Upper bound of ``|x_K - x|_A / |x_0 - x|_A`` after K steps of conjugate gradients.

    .. math::
        \min\Big(1,\; 2 \Big(\frac{\sqrt c - 1}{\sqrt c + 1}\Big)^K\Big)
        \;\le\; \min\big(1,\; 2 e^{-2 K / \sqrt c}\big)

    The appendix of the paper prints the exponential form without its factor 2.

    Parameters
    ----------
    condition : float or Array
        c. The bound holds for the true condition number of the preconditioned operator. The value
        of :func:`condition_estimate` approaches that one from below, so with it the result is an
        optimistic estimate and not a bound.
    steps : int or Array
        K.
    chebyshev : bool
        Use the sharper Chebyshev form instead of the exponential one.

    Returns
    -------
    Array
        The bound, at most one; ``condition`` and ``steps`` broadcast.
    """
    condition = jnp.asarray(condition)
    if not jnp.issubdtype(condition.dtype, jnp.floating):
        condition = condition.astype(jnp.result_type(float))
    root = jnp.sqrt(condition)
    count = jnp.asarray(steps).astype(root.dtype)
    factor = ((root - 1) / (root + 1)) ** count if chebyshev else jnp.exp(-2 * count / root)
    return jnp.minimum(1.0, 2 * factor)
