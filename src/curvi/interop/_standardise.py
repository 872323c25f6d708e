"""Sites whose scale is latent, written as location and scale of standard noise.

A site such as ``theta ~ Normal(mu, tau)`` with a latent tau has a posterior like a funnel where the
data say little about theta. With ``theta = mu + tau * noise`` the noise is inferred instead, which
is independent of tau before any data, and theta follows from it: the answer holds theta as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

SUFFIX = "_standardised"


def with_standard_sites(model: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """The model with the named sites as functions of standard noise."""
    from numpyro import handlers
    from numpyro.infer.reparam import Reparam

    class Standardise(Reparam):
        """The noise is a site of its own; the site itself becomes deterministic."""

        def __call__(self, name: str, fn: Any, obs: Any) -> tuple[None, Any]:
            import numpyro

            inner, shape, event_dim = self._unwrap(fn)
            standard, back = _standard_form(inner)
            wrapped = self._wrap(standard, shape, event_dim)
            return None, back(numpyro.sample(f"{name}{SUFFIX}", wrapped))

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
    found = []
    for index, name in enumerate(scaled):
        wanted = [index == i for i in range(len(scaled))]
        _, used = partial_eval.dce_jaxpr(program, wanted)
        if any(is_used and owner != name for is_used, owner in zip(used, owners, strict=True)):
            found.append(name)
    return found


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


def _standard_form(fn: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The distribution of the noise, and the way from the noise to the site."""
    from numpyro import distributions as dist

    if type(fn) is dist.MultivariateNormal:
        shape = jnp.broadcast_shapes(fn.loc.shape, fn.scale_tril.shape[:-1])
        noise = dist.Normal(jnp.zeros(shape, fn.loc.dtype), 1.0).to_event(1)
        return noise, lambda x: fn.loc + jnp.matmul(fn.scale_tril, x[..., None])[..., 0]
    if type(fn) is dist.Exponential:
        return dist.Exponential(jnp.ones_like(fn.rate)), lambda x: x / fn.rate
    one = jnp.ones_like(fn.scale)
    if type(fn) in (dist.HalfNormal, dist.HalfCauchy):
        return type(fn)(one), lambda x: fn.scale * x
    if type(fn) is dist.LogNormal:
        noise = dist.Normal(jnp.zeros_like(fn.loc), one)
        return noise, lambda x: jnp.exp(fn.loc + fn.scale * x)
    tails = {"df": fn.df} if type(fn) is dist.StudentT else {}
    noise = type(fn)(loc=jnp.zeros_like(fn.loc), scale=one, **tails)
    return noise, lambda x: fn.loc + fn.scale * x


def standardised_model(
    model: Callable[..., Any], names: list[str], traced: Callable[[Any], dict[str, Any]]
) -> tuple[Any, list[str]]:
    """The model with as many of the sites in standard form as can be, and their names.

    A site inside ``scan`` cannot: it keeps its own form.
    """
    while names:
        other = with_standard_sites(model, names)
        found = traced(other)
        kept = [name for name in names if f"{name}{SUFFIX}" in found]
        if kept == names:
            return other, names
        names = kept
    return model, []
