r"""Variance and tails of an L-Lipschitz function of a standard Gaussian (Theorem 2).

There are two constants. The paper's proof (duplication of the Gaussian) gives
:math:`E\,e^{\lambda(f - Ef)} \le e^{\lambda^2 L^2 \pi^2 / 8}`, a sub-Gaussian parameter of
:math:`\pi L / 2`; Gaussian concentration gives the sharp parameter L, which linear functions
attain. The functions take ``constant="paper"`` or ``"sharp"``.

The inequalities for the mean of M draws need *independent* draws. Draws that are centred, whitened,
antithetic or from a Sobol sequence depend on each other and raise an error.
`measure_variance` compares a measured variance with its upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.objective import Draws

_PARAMETER = {"paper": math.pi / 2, "sharp": 1.0}  # sub-Gaussian parameter per unit of L


def loose_variance_bound(lipschitz: float, dimension: int) -> float:
    r""":math:`\mathrm{Var} f(\epsilon) \le \tfrac{\pi^2}{4} L^2 d`, which grows with d.

    The first step of the paper's appendix, before the dimension is removed.

    Parameters
    ----------
    lipschitz : float
        Constant L of f, zero or positive; infinity where none is known.
    dimension : int
        Dimension d of the Gaussian.

    Returns
    -------
    float
        Upper bound of the variance.

    Raises
    ------
    InputError
        A value is out of its range.

    Examples
    --------
    >>> round(loose_variance_bound(1.0, 100), 3)
    246.74
    """
    validation.positive_integer(dimension, "dimension")
    return variance_bound(lipschitz, constant="paper") * dimension


def variance_bound(lipschitz: float, *, constant: str = "sharp") -> float:
    r""":math:`\mathrm{Var} f(\epsilon) \le L^2` (sharp) or :math:`L^2 \pi^2 / 4` (Theorem 2).

    Neither depends on the dimension. Infinite L gives infinity: nothing is promised.

    Parameters
    ----------
    lipschitz : float
        Constant L of f, zero or positive; infinity where none is known.
    constant : {"sharp", "paper"}
        Which of the two constants to use.

    Returns
    -------
    float
        Upper bound of the variance.

    Raises
    ------
    InputError
        A value is out of its range.

    Examples
    --------
    >>> variance_bound(2.0), round(variance_bound(2.0, constant="paper"), 4)
    (4.0, 9.8696)
    """
    return _square(_parameter(lipschitz, constant))


def moment_bound(lipschitz: float, rate: float, *, constant: str = "sharp") -> float:
    r""":math:`E\,e^{\lambda(f - Ef)} \le e^{\lambda^2 L^2/2}`, or :math:`e^{\lambda^2 L^2\pi^2/8}`.

    The first is sharp, the second what the paper's lemma before Theorem 2 proves. ``rate`` is
    :math:`\lambda`.

    Parameters
    ----------
    lipschitz : float
        Constant L of f, zero or positive; infinity where none is known.
    rate : float
        The finite number :math:`\lambda`.
    constant : {"sharp", "paper"}
        Which of the two constants to use.

    Returns
    -------
    float
        Upper bound of the moment; infinity where it overflows.

    Raises
    ------
    InputError
        A value is out of its range.
    """
    if not isinstance(rate, Real) or not math.isfinite(rate):
        raise InputError(f"rate is {rate!r}; it must be a finite number")
    exponent = 0.5 * _square(float(rate) * _parameter(lipschitz, constant)) if rate else 0.0
    return math.exp(exponent) if exponent < 700 else math.inf


def tail_bound(
    lipschitz: float,
    num_draws: int,
    error: float,
    *,
    constant: str = "sharp",
    draws: str | Draws = "iid",
) -> float:
    r"""Probability that the mean of M independent draws is off by ``error`` or more, at most.

    .. math::

        P\big(|\bar f_M - E f| \ge t\big) \le 2 e^{-M t^2 / 2 L^2}
        \quad\text{or}\quad 2 e^{-2 M t^2 / \pi^2 L^2}

    The second is the paper's corollary. Never more than one.

    Parameters
    ----------
    lipschitz : float
        Constant L of f, zero or positive; infinity where none is known.
    num_draws : int
        The number M of draws in the mean.
    error : float
        The positive error t.
    constant : {"sharp", "paper"}
        Which of the two constants to use.
    draws : str or Draws
        Kind of the draws; only independent ones, "iid", come with a guarantee.

    Returns
    -------
    float
        Upper bound of the probability.

    Raises
    ------
    InputError
        A value is out of its range, or the draws are not independent.
    """
    _require_independent(draws)
    validation.positive_integer(num_draws, "num_draws")
    error = validation.positive_number(error, "error")
    parameter = _parameter(lipschitz, constant)
    if parameter == 0:
        return 0.0
    return min(1.0, 2 * math.exp(-0.5 * num_draws * _square(error / parameter)))


def draws_needed(
    lipschitz: float,
    error: float,
    probability: float,
    *,
    constant: str = "sharp",
    draws: str | Draws = "iid",
) -> int:
    r"""Independent draws after which the mean is off by ``error`` with at most ``probability``.

    :math:`M = \lceil 2 L^2 \log(2/p) / t^2 \rceil`; with the paper's constant :math:`\pi^2/4`
    times as many. The dimension does not enter.

    Parameters
    ----------
    lipschitz : float
        Constant L of f, zero or positive; infinity where none is known.
    error : float
        The positive error t.
    probability : float
        Accepted probability p of a larger error, between 0 and 1.
    constant : {"sharp", "paper"}
        Which of the two constants to use.
    draws : str or Draws
        Kind of the draws; only independent ones, "iid", come with a guarantee.

    Returns
    -------
    int
        The number of draws, at least one.

    Raises
    ------
    InputError
        A value is out of its range, the draws are not independent, or no number of draws is enough.

    Examples
    --------
    >>> draws_needed(1.0, 0.1, 0.05)
    738
    """
    _require_independent(draws)
    error = validation.positive_number(error, "error")
    parameter = _parameter(lipschitz, constant)
    if not math.isfinite(parameter):
        raise InputError("lipschitz is infinite; no number of draws comes with a guarantee")
    needed = 2 * math.log(2 / _probability(probability)) * _square(parameter / error)
    if not math.isfinite(needed):
        raise InputError(f"error is {error}; no representable number of draws reaches it")
    return max(1, math.ceil(needed))


def error_bound(
    lipschitz: float,
    num_draws: int,
    probability: float,
    *,
    constant: str = "sharp",
    draws: str | Draws = "iid",
) -> float:
    r"""Error that the mean of M draws exceeds with at most ``probability``: the inverse.

    :math:`t = L \sqrt{2 \log(2/p) / M}`.

    Parameters
    ----------
    lipschitz : float
        Constant L of f, zero or positive; infinity where none is known.
    num_draws : int
        The number M of draws in the mean.
    probability : float
        Accepted probability p of a larger error, between 0 and 1.
    constant : {"sharp", "paper"}
        Which of the two constants to use.
    draws : str or Draws
        Kind of the draws; only independent ones, "iid", come with a guarantee.

    Returns
    -------
    float
        The error t.

    Raises
    ------
    InputError
        A value is out of its range, or the draws are not independent.

    Examples
    --------
    >>> round(error_bound(1.0, 738, 0.05), 3)
    0.1
    """
    _require_independent(draws)
    validation.positive_integer(num_draws, "num_draws")
    factor = math.sqrt(2 * math.log(2 / _probability(probability)) / num_draws)
    return _parameter(lipschitz, constant) * factor


@dataclass(frozen=True)
class VarianceReport:
    """Variance of an estimate from one draw: of its value, with its upper bound, and its gradient.

    The inequalities cover values only; the variance of the gradient is measured alone.

    Attributes
    ----------
    value : float
        Measured variance of the value.
    gradient : float
        Measured trace of the covariance of the gradient in the variational parameters; nan
        where it was not asked for.
    lipschitz : float
        Constant of the value as a function of the standard Gaussian; infinite if none is known.
    sharp, paper : float
        ``L^2`` and ``L^2 pi^2 / 4`` (Theorem 2).
    """

    value: float
    gradient: float
    lipschitz: float

    @property
    def sharp(self) -> float:
        """The sharp upper bound of the variance of the value."""
        return variance_bound(self.lipschitz)

    @property
    def paper(self) -> float:
        """The upper bound of Theorem 2 for the variance of the value."""
        return variance_bound(self.lipschitz, constant="paper")

    def __str__(self) -> str:
        if math.isinf(self.lipschitz):
            limit = "no upper bound: the log density is not known to be Lipschitz"
        else:
            ratio = self.sharp / self.value if self.value > 0 else math.inf
            limit = f"at most {self.sharp:.4g} (L = {self.lipschitz:.4g}), {ratio:.3g} times that"
        return f"variance of one draw {self.value:.4g}; {limit}"


def measure_variance(
    fn: Callable[[Array], Array],
    noise: Float[Array, "draws dimension"],
    *,
    lipschitz: float = math.inf,
    gradient: Callable[[Array], Array] | None = None,
) -> VarianceReport:
    """Measure ``fn`` at independent draws of a standard Gaussian.

    Parameters
    ----------
    fn : callable
        One value per draw.
    noise : array, (draws, dimension)
        Independent draws; at least two.
    lipschitz : float
        A proved constant of ``fn``, if there is one.
    gradient : callable, optional
        A flat gradient per draw, whose total variance is measured as well.

    Returns
    -------
    VarianceReport
        The measured variances, beside the upper bound that ``lipschitz`` implies.

    Raises
    ------
    InputError
        There are fewer than two draws.
    """
    if noise.shape[0] < 2:
        raise InputError(f"noise holds {noise.shape[0]} draws; a variance needs at least two")
    values = np.asarray(jax.vmap(fn)(noise), np.float64)
    total = math.nan
    if gradient is not None:
        rows = jax.vmap(gradient)(noise)
        total = float(jnp.sum(jnp.var(rows, axis=0, ddof=1)))
    return VarianceReport(float(values.var(ddof=1)), total, lipschitz)


def _square(value: float) -> float:
    """Infinity where ``value ** 2`` would raise."""
    return value * value


def _parameter(lipschitz: Any, constant: str) -> float:
    """The sub-Gaussian parameter of an L-Lipschitz function."""
    validation.one_of(constant, tuple(_PARAMETER), "constant")
    if not isinstance(lipschitz, Real):
        raise InputError(
            f"lipschitz is {lipschitz!r}; it must be a number. An estimate is not an upper bound: "
            "to take one on trust, pass its value"
        )
    value = float(lipschitz)
    if math.isnan(value) or value < 0:
        raise InputError(f"lipschitz is {value}; a Lipschitz constant is zero or positive")
    return _PARAMETER[constant] * value


def _probability(probability: Any) -> float:
    if not isinstance(probability, Real) or not 0 < float(probability) < 1:
        raise InputError(f"probability is {probability!r}; it must lie between 0 and 1")
    return float(probability)


def _require_independent(draws: Any) -> None:
    kind = draws.kind if isinstance(draws, Draws) else draws
    if kind != "iid" or isinstance(draws, Integral):
        raise InputError(
            f"draws are {kind!r}; the inequalities need independent draws ('iid'): measure the "
            "error of other kinds instead"
        )
