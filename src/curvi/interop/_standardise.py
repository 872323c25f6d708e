"""Sites whose scale is latent, written as location and scale of standard noise.

A site such as ``theta ~ Normal(mu, tau)`` with a latent tau has a posterior like a funnel where the
data say little about theta. With ``theta = mu + tau * noise`` the noise is inferred instead, which
is independent of tau before any data, and theta follows from it: the answer holds theta as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jax.scipy.linalg import solve_triangular

from curvi.targets import Degrees

SUFFIX = "_standardised"
MOVED = "_in_another_form"


def with_standard_sites(
    model: Callable[..., Any],
    names: Sequence[str],
    degrees: Degrees | None = None,
    others: Degrees | None = None,
) -> Callable[..., Any]:
    """The model with the named sites as functions of standard noise, or of forms between.

    Parameters
    ----------
    model, names : callable, sequence of str
        The model and the sites.
    degrees : mapping, optional
        Degrees of centring by name of the noise; none where it is left out.
    others : mapping, optional
        With these, a trace also holds the value that every noise would have with them.
    """
    from numpyro import handlers
    from numpyro.infer.reparam import Reparam

    class Standardise(Reparam):
        """The noise is a site of its own; the site itself becomes deterministic."""

        def __call__(self, name: str, fn: Any, obs: Any) -> tuple[None, Any]:
            import numpyro

            inner, shape, event_dim = self._unwrap(fn)
            given = np.zeros(fn.shape()) if degrees is None else degrees[name + SUFFIX]
            form = _Form(inner, given)
            noise = numpyro.sample(name + SUFFIX, self._wrap(form.distribution(), shape, event_dim))
            if others is not None:
                other = _Form(inner, others[name + SUFFIX])
                numpyro.deterministic(name + MOVED, other.noise(form.standard(noise)))
            return None, form.site(noise)

    form = Standardise()

    def chosen(site: dict[str, Any]) -> Any:
        # scan hands its sites on with their values, drawn inside of it: what is made of them here
        # no longer reaches the steps that follow.
        return form if site["name"] in names and site["value"] is None else None

    return handlers.reparam(model, config=chosen)


def latent_scales(
    run: Callable[[dict[str, Any]], dict[str, Any]], sites: dict[str, Any]
) -> list[str]:
    """Names of the sites that have a standard form and whose scale depends on another site.

    Parameters
    ----------
    run : callable
        From values of the latent sites, by name, to a trace of the model.
    sites : dict
        The latent sites of a trace.
    """
    # Under handlers.scale the density is a power, and that of the noise lacks a power of the scale.
    plain = {name: site for name, site in sites.items() if site.get("scale") is None}
    scaled = [name for name, site in plain.items() if scale_of(site["fn"]) is not None]
    if not scaled:
        return []
    # The trace may be over, and with it the values: their shapes are enough.
    values = {
        name: jax.ShapeDtypeStruct(site["value"].shape, site["value"].dtype)
        for name, site in sites.items()
    }
    order = list(values)

    def scales(values: dict[str, Any]) -> list[Any]:
        trace = run(values)
        return [scale_of(trace[name]["fn"]) for name in scaled]

    program = jax.make_jaxpr(scales)(values).jaxpr
    owners = [name for name in sorted(order) for _ in jax.tree.leaves(values[name])]
    names = []
    for index, name in enumerate(scaled):
        wanted = [index == i for i in range(len(scaled))]
        _, used = partial_eval.dce_jaxpr(program, wanted)
        if any(is_used and owner != name for is_used, owner in zip(used, owners, strict=True)):
            names.append(name)
    return names


def scale_of(fn: Any) -> Any:
    """The scale of a distribution that has a standard form; None for any other."""
    from numpyro import distributions as dist

    while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        fn = fn.base_dist
    located = (dist.Normal, dist.Cauchy, dist.Laplace, dist.Logistic, dist.Gumbel, dist.StudentT)
    if type(fn) in (*located, dist.LogNormal, dist.HalfNormal, dist.HalfCauchy):
        return fn.scale
    if type(fn) is dist.Exponential:
        return fn.rate
    return fn.scale_tril if type(fn) is dist.MultivariateNormal else None


def prior_precision(fn: Any) -> float:
    """The precision of standard noise in its unconstrained coordinate, before any data."""
    from numpyro import distributions as dist

    while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        fn = fn.base_dist
    known = {dist.HalfNormal: 2.0, dist.HalfCauchy: 0.5, dist.Cauchy: 0.5, dist.Logistic: 1 / 3}
    return known.get(type(fn), 1.0)


class _Form:
    r"""A location-scale distribution in the form of degree :math:`\lambda`.

    With location m and scale s, standard noise e and the noise of this form,
    :math:`y = \lambda m + s^\lambda e`, the site is :math:`x = m + s e`. A multivariate site is
    centred or not, each of its vectors as a whole.
    """

    def __init__(self, fn: Any, degree: Any) -> None:
        from numpyro import distributions as dist

        self.fn, self.is_matrix = fn, type(fn) is dist.MultivariateNormal
        self.is_log = type(fn) is dist.LogNormal
        self.scale = fn.scale_tril if self.is_matrix else _scale(fn)
        self.loc = fn.loc if hasattr(fn, "loc") else jnp.zeros_like(self.scale)
        self.degree = jnp.asarray(degree, self.scale.dtype)
        if self.is_matrix:
            self.whole = jnp.round(jnp.mean(self.degree, axis=-1, keepdims=True)) > 0
        # A density of whole vectors costs a solve for each: not where none of them is centred.
        self.is_standard = isinstance(degree, np.ndarray) and not degree.any()

    def distribution(self) -> Any:
        """Of the noise of this form."""
        from numpyro import distributions as dist

        if self.is_matrix and self.is_standard:
            shape = jnp.broadcast_shapes(self.loc.shape, self.scale.shape[:-1])
            return dist.Normal(jnp.zeros(shape, self.loc.dtype), 1.0).to_event(1)
        if self.is_matrix:
            loc = jnp.where(self.whole, self.loc, jnp.zeros_like(self.loc))
            identity = jnp.eye(self.scale.shape[-1], dtype=self.scale.dtype)
            scale = jnp.where(self.whole[..., None], self.scale, identity)
            return dist.MultivariateNormal(loc, scale_tril=scale)
        loc, scale = self.degree * self.loc, self.scale**self.degree
        if type(self.fn) is dist.Exponential:
            return dist.Exponential(1 / scale)
        if type(self.fn) in (dist.HalfNormal, dist.HalfCauchy):
            return type(self.fn)(scale)
        if self.is_log:
            return dist.Normal(loc, scale)
        tails = {"df": self.fn.df} if type(self.fn) is dist.StudentT else {}
        return type(self.fn)(loc=loc, scale=scale, **tails)

    def standard(self, noise: Any) -> Any:
        """Standard noise of the noise of this form."""
        if self.is_matrix:
            return jnp.where(self.whole, self._solved(noise - self.loc), noise)
        return (noise - self.degree * self.loc) * self.scale**-self.degree

    def noise(self, standard: Any) -> Any:
        """The noise of this form from standard noise."""
        if self.is_matrix:
            return jnp.where(self.whole, self.loc + self._times(standard), standard)
        return self.degree * self.loc + self.scale**self.degree * standard

    def site(self, noise: Any) -> Any:
        """The value of the site."""
        if self.is_matrix:
            return jnp.where(self.whole, noise, self.loc + self._times(noise))
        apart = noise - self.degree * self.loc
        value = self.loc + self.scale ** (1 - self.degree) * apart
        return jnp.exp(value) if self.is_log else value

    def _times(self, noise: Any) -> Any:
        return jnp.matmul(self.scale, noise[..., None])[..., 0]

    def _solved(self, apart: Any) -> Any:
        scale = jnp.broadcast_to(self.scale, (*apart.shape, apart.shape[-1]))
        return solve_triangular(scale, apart[..., None], lower=True)[..., 0]


def _scale(fn: Any) -> Any:
    return fn.scale if hasattr(fn, "scale") else 1 / fn.rate


def standardised_sites(
    names: list[str], traced: Callable[[list[str]], dict[str, Any]]
) -> tuple[list[str], dict[str, Any]]:
    """As many of the sites as can be in standard form, and the trace of the model with them so.

    A site inside ``scan`` cannot: it keeps its own form.
    """
    trace: dict[str, Any] = {}
    while names:
        trace = traced(names)
        remaining = [name for name in names if f"{name}{SUFFIX}" in trace]
        if remaining == names:
            break
        names = remaining
    return names, trace
