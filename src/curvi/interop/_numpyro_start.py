"""Where the inference of a NumPyro model starts: candidates, and the best of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi._core.compilation import SizedJit
from curvi._core.errors import InputError
from curvi._core.programs import CachedValues
from curvi._core.trees import flat_numbers, on_device
from curvi.inference._first import climbs
from curvi.interop._numpyro_call import Call, Position, is_latent
from curvi.objective import BatchedDensity
from curvi.targets import AbstractTarget

# Run once: what it takes is to compile it.
_values = CachedValues(lambda program: SizedJit(program)(0.0))
_WRAPPERS = ("ExpandedDistribution", "Independent", "MaskedDistribution")
# What distributions raise that have no such function, or need a library that is not installed.
_UNKNOWN = (NotImplementedError, ImportError, AttributeError, TypeError, ValueError)


def middle_of(distribution: Any) -> Any:
    """The median of a distribution where it has a formula, or else its mean; None without either.

    Nothing is drawn: code that draws takes seconds to compile.
    """
    inner = distribution
    while type(inner).__name__ in _WRAPPERS:
        inner = inner.base_dist
    for find in (lambda: inner.icdf(jnp.asarray(0.5)), lambda: _mapped(inner), lambda: inner.mean):
        try:
            if (middle := find()) is not None:
                # Means of integers are integers: draws would be floats, in the precision of JAX.
                return jnp.broadcast_to(jnp.asarray(middle, float), distribution.shape())
        except _UNKNOWN:
            continue
    return None


def _mapped(distribution: Any) -> Any:
    """The middle of the base of a transformed distribution, where it goes."""
    middle = middle_of(distribution.base_dist)
    for transform in distribution.transforms if middle is not None else ():
        middle = transform(middle)
    return middle


def candidate_positions(call: Call, latent: list[str]) -> list[Position]:
    """Unconstrained positions to start from, the simplest first."""
    from numpyro.distributions import biject_to
    from numpyro.infer.initialization import init_to_feasible

    def strategy(site: Any) -> Any:
        free = is_latent(site) and not site["fn"].support.is_discrete
        if (value := middle_of(site["fn"]) if free else None) is None:
            return init_to_feasible(site)
        return jnp.broadcast_to(value, (*site["kwargs"].get("sample_shape", ()), *value.shape))

    def run() -> Position:
        position: Position = {}
        trace = call.trace(strategy, {})
        for name in latent:
            site = trace[name]
            position[name] = jnp.asarray(biject_to(site["fn"].support).inv(site["value"]))
        return position

    middle = _values(run)
    rng = np.random.default_rng(0)
    ways = (
        np.zeros_like,
        lambda leaf: np.where(np.isfinite(leaf), leaf, 0.0),
        lambda leaf: rng.uniform(-1, 1, leaf.shape),
    )
    return [{n: on_device(way(leaf), leaf.dtype) for n, leaf in middle.items()} for way in ways]


def started_at_best(target: AbstractTarget, candidates: list[Position]) -> AbstractTarget:
    """The target, started at the candidate with the highest log density."""
    placed = [
        {name: np.asarray(leaf, target.dtype) for name, leaf in candidate.items()}
        for candidate in candidates
    ]
    flat = np.stack([flat_numbers(candidate) for candidate in placed])
    if climbs(target):  # by the function that a fit compiles anyway
        values = BatchedDensity.of(target)(flat)[0]
    else:
        evaluated = SizedJit(lambda density, rows, z: density.log_prob(z, rows))
        evaluations = [evaluated(0.0, target.density, target.rows, on_device(z)) for z in flat]
        values = np.array([float(value) for value in evaluations])
    if not np.isfinite(values).any():
        raise InputError(
            f"the log density is {values[0]} at the centre of the supports and not finite at the "
            "middle of the prior; check the model, or give fit(target, position=...) a start"
        )
    best = int(np.nanargmax(np.where(np.isfinite(values), values, -np.inf)))
    return target.started_at(jax.tree.map(on_device, placed[best]))
