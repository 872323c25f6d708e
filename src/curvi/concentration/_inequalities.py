r"""Variance and tails of an L-Lipschitz function of a standard Gaussian (Theorem 2).

Two constants stand side by side. The paper's proof (duplication of the Gaussian) gives
:math:`E\,e^{\lambda(f - Ef)} \le e^{\lambda^2 L^2 \pi^2 / 8}`, a sub-Gaussian parameter of
:math:`\pi L / 2`; Gaussian concentration gives the sharp parameter L, which linear functions
attain. Every function here takes ``constant="paper"`` or ``"sharp"``.

The bounds for the mean of M draws hold for *independent* draws. Draws that are centred, whitened,
antithetic or from a Sobol sequence depend on each other, and are refused.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.objective import Draws

_PARAMETER = {"paper": math.pi / 2, "sharp": 1.0}  # sub-Gaussian parameter per unit of L


def loose_variance_bound(lipschitz: float, dimension: int) -> float:
    r""":math:`\mathrm{Var} f(\epsilon) \le \tfrac{\pi^2}{4} L^2 d`, which grows with d.

    The first step of the paper's appendix, before the dimension is removed.

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
    """
    _refuse_dependent(draws)
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

    Examples
    --------
    >>> draws_needed(1.0, 0.1, 0.05)
    738
    """
    _refuse_dependent(draws)
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

    Examples
    --------
    >>> bool(error_bound(1.0, 738, 0.05) <= 0.1)
    True
    """
    _refuse_dependent(draws)
    validation.positive_integer(num_draws, "num_draws")
    factor = math.sqrt(2 * math.log(2 / _probability(probability)) / num_draws)
    return _parameter(lipschitz, constant) * factor


def _square(value: float) -> float:
    """Infinity where ``value ** 2`` would raise."""
    return value * value


def _parameter(lipschitz: Any, constant: str) -> float:
    """The sub-Gaussian parameter of an L-Lipschitz function."""
    validation.one_of(constant, tuple(_PARAMETER), "constant")
    if not isinstance(lipschitz, Real):
        raise InputError(
            f"lipschitz is {lipschitz!r}; it must be a number. An estimate is no bound: to take "
            "one on trust, pass its value"
        )
    value = float(lipschitz)
    if math.isnan(value) or value < 0:
        raise InputError(f"lipschitz is {value}; a Lipschitz constant is zero or positive")
    return _PARAMETER[constant] * value


def _probability(probability: Any) -> float:
    if not isinstance(probability, Real) or not 0 < float(probability) < 1:
        raise InputError(f"probability is {probability!r}; it must lie between 0 and 1")
    return float(probability)


def _refuse_dependent(draws: Any) -> None:
    kind = draws.kind if isinstance(draws, Draws) else draws
    if kind != "iid" or isinstance(draws, Integral):
        raise InputError(
            f"draws are {kind!r}; the bounds hold for independent draws ('iid') only, measure the "
            "error of other kinds instead"
        )
