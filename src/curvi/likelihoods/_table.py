"""The table of likelihoods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curvi._core.errors import InputError
from curvi.likelihoods._base import ClosedForm, Likelihood
from curvi.likelihoods._counts import (
    Bernoulli,
    Binomial,
    LinearNegativeBinomial,
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from curvi.likelihoods._positive import Beta, BetaBinomial, Exponential, Gamma, LogNormal, Weibull
from curvi.likelihoods._real import Gaussian, StudentT, Volatility

LIKELIHOODS: dict[str, type[ClosedForm]] = {
    kind.name: kind
    for kind in (
        Gaussian, StudentT, LogNormal, Gamma, Exponential, Weibull, Beta,
        Bernoulli, Binomial, BetaBinomial,
        Poisson, NegativeBinomial, LinearNegativeBinomial,
        ZeroInflatedPoisson, ZeroInflatedNegativeBinomial, Volatility,
    )
}  # fmt: skip


def likelihood_of(
    likelihood: Any, link: str | None = None, allowed: Callable[[Any], bool] = callable
) -> Likelihood:
    """The likelihood of a name, with a link that it has; one of the user as it is."""
    if isinstance(likelihood, Likelihood):
        if link is not None:
            raise InputError(f"link is {link!r}; the likelihood {likelihood.name!r} brings its own")
        return likelihood
    names = [name for name, kind in LIKELIHOODS.items() if allowed(kind)]
    if likelihood not in names:
        raise InputError(f"likelihood is {likelihood!r}; choose one of {', '.join(names)}")
    kind: Any = LIKELIHOODS[likelihood]
    if link is None:
        return kind()
    if link not in kind.links:
        known = ", ".join(kind.links[:-1]) + " and " * (len(kind.links) > 1) + kind.links[-1]
        raise InputError(f"link is {link!r}; {likelihood} has {known}")
    return kind(link=link)
