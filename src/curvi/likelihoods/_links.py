"""Links of a chance: from a predictor on the real line to a probability."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from curvi.likelihoods._logistic import exponential, namespace, softplus


@dataclass(frozen=True)
class Link:
    """The logistic link, and what every other one gives in its place.

    A symmetric link has ``1 - chance(t) = chance(-t)``.
    """

    name: str = "logit"
    symmetric: bool = True
    width: float = math.pi  # distance from the real line within which the logarithms are analytic

    def chance(self, t: Any) -> Any:
        """The probability."""
        return namespace(t)[1].expit(t)

    def predictor(self, chance: Any) -> Any:
        """The predictor of a probability."""
        return special.logit(chance)

    def log_chance(self, t: Any) -> Any:
        """Logarithm of the probability, with all its digits where it is small."""
        return -softplus(-t)

    def slopes(self, t: Any) -> tuple[Any, Any]:
        """Two derivatives of `log_chance`."""
        rest = self.chance(-t)
        return rest, -rest * (1 - rest)

    def log_rest(self, t: Any) -> Any:
        """Logarithm of one minus the probability."""
        return self.log_chance(-t)

    def rest_slopes(self, t: Any) -> tuple[Any, Any]:
        """Two derivatives of `log_rest`."""
        first, second = self.slopes(-t)
        return -first, second


class _Probit(Link):
    def chance(self, t: Any) -> Any:
        return namespace(t)[1].ndtr(t)

    def predictor(self, chance: Any) -> Any:
        return special.ndtri(chance)

    def log_chance(self, t: Any) -> Any:
        return namespace(t)[1].log_ndtr(t)

    def slopes(self, t: Any) -> tuple[Any, Any]:
        log_density = -0.5 * (t**2 + math.log(2 * math.pi))
        mills = namespace(t)[0].exp(log_density - self.log_chance(t))
        return mills, -mills * (t + mills)


class _ComplementaryLogLog(Link):
    def chance(self, t: Any) -> Any:
        return -namespace(t)[0].expm1(-exponential(t))

    def predictor(self, chance: Any) -> Any:
        return np.log(-np.log1p(-chance))

    def log_chance(self, t: Any) -> Any:
        return namespace(t)[0].log(self.chance(t))

    def slopes(self, t: Any) -> tuple[Any, Any]:
        xp, _ = namespace(t)
        rate = exponential(t)
        with np.errstate(over="ignore", invalid="ignore"):
            first = xp.where(rate < math.log(np.finfo(float).max), rate / xp.expm1(rate), 0.0)
            return first, xp.where(first > 0, first * (1 - rate - first), 0.0)

    def log_rest(self, t: Any) -> Any:
        return -exponential(t)

    def rest_slopes(self, t: Any) -> tuple[Any, Any]:
        return -exponential(t), -exponential(t)


LINKS = {
    link.name: link
    for link in (
        Link(),
        _Probit("probit", width=2.8),  # of the zeros of ndtr
        _ComplementaryLogLog("cloglog", symmetric=False, width=math.pi / 2),
    )
}
