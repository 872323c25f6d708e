"""Sequences: state-space models against NUTS, and slopes of time in the length."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import curvi
from benchmarks.clocks import pin_to_one_core, spent
from benchmarks.common import verdict
from benchmarks.sequence_peers import sampled, simulated
from curvi.latent import Assembly, RandomWalk, SiteModel
from curvi.likelihoods import likelihood_of
from curvi.objective import neg_elbo

CASES = (("volatility", 1000), ("poisson", 1000), ("bernoulli", 1000))
LENGTHS = (100, 1_000, 10_000, 100_000)


def against_nuts(likelihood: str, length: int) -> dict[str, Any]:
    """Errors in posterior sds, ratios of sds, and processor seconds of both."""
    y, _ = simulated(likelihood, length)
    curvi.StateSpace(likelihood=likelihood).fit(y[:50])  # imports
    jax.clear_caches()
    calls = []
    for _ in range(2):
        with spent() as clock:
            model = curvi.StateSpace(likelihood=likelihood).fit(y)
            band = model.smooth()
        calls.append(clock)
    theirs = sampled(likelihood, y)
    draws = {name: np.concatenate(list(part)) for name, part in theirs.draws.items()}
    mean, sd = draws["signal"].mean(axis=0), draws["signal"].std(axis=0)
    row: dict[str, Any] = {
        "likelihood": likelihood, "length": length,
        "seconds_first": calls[0].seconds, "compiling_first": calls[0].compiling,
        "seconds": calls[1].seconds, "compiling": calls[1].compiling,
        "nuts_seconds": theirs.seconds, "nuts_compiling": theirs.compiling,
        "nuts_smallest_ess": theirs.ess, "nuts_draws": theirs.values.shape[1],
        "speedup_first": theirs.seconds / calls[0].seconds,
        "speedup": theirs.running / calls[1].seconds,
        "state_error": float((np.abs(band.mean - mean) / sd).max()),
        "state_error_median": float(np.median(np.abs(band.mean - mean) / sd)),
        "sd_ratio": [float((band.sd / sd).min()), float((band.sd / sd).max())],
    }  # fmt: skip
    for name in ("level", "phi"):
        if name in draws:
            centre, spread = model.hyperparameters_[name]
            row[f"{name}_error"] = float(abs(centre - draws[name].mean()) / draws[name].std())
            row[f"{name}_ratio"] = float(spread / draws[name].std())
    return row


def chain_slope() -> dict[str, Any]:
    """Seconds of the bound and its gradient in :class:`curvi.Chain` against its length.

    A walk that is seen through Poisson counts, one draw, compiled before it is timed.
    """
    table = {}
    for length in LENGTHS:
        y = jnp.asarray(simulated("poisson", length)[0])

        def log_density(z: Any, y: Any = y) -> Any:
            return jnp.sum(y * z - jnp.exp(z)) - 50 * jnp.sum(jnp.diff(z) ** 2) - 0.5 * z[0] ** 2

        family = curvi.Chain(length, 1)
        start = jnp.zeros(length, y.dtype)
        density, params = curvi.Target(log_density, start).density, family.init(start)
        noise = jax.random.normal(jax.random.key(0), (1, length), y.dtype)
        step = jax.jit(jax.value_and_grad(lambda p, e: neg_elbo(density, family, p, e)))  # noqa: B023
        jax.block_until_ready(step(params, noise))
        repeats = max(3, 100_000 // length)
        timed = []
        for _ in range(5):
            began = time.process_time()
            for _ in range(repeats):
                jax.block_until_ready(step(params, noise))
            timed.append((time.process_time() - began) / repeats)
        table[length] = min(timed)
    lengths, seconds = list(table), list(table.values())
    slopes = [np.polyfit(np.log(lengths[i:]), np.log(seconds[i:]), 1)[0] for i in (0, 1)]
    return {"seconds": table, "slope": float(slopes[0]), "slope_from_1000": float(slopes[1])}


def slope() -> dict[str, Any]:
    """Seconds of one evaluation of the bound (a Poisson walk) against the length of the series."""
    table = {}
    for length in LENGTHS:
        y, _ = simulated("poisson", length)
        walk = Assembly([RandomWalk(range(length), first_sd=10.0)])
        model = SiteModel(walk, likelihood_of("poisson"), y, np.ones(length), np.ones(length))
        theta = np.log([[0.1]])
        fitted = model.fit(theta)
        unknown = fitted._replace(variance=np.full((1, length), np.nan))
        timed = []
        for _ in range(5):
            began = time.process_time()
            model.completed(theta, unknown)
            timed.append(time.process_time() - began)
        table[length] = min(timed)
    long = [n for n in LENGTHS if n >= 1_000]  # below, calls cost more than arithmetic
    fitted = np.polyfit(np.log(long), np.log([table[n] for n in long]), 1)[0]
    return {"seconds": table, "slope": float(fitted)}


def main() -> dict[str, Any]:
    """Errors and seconds beside NUTS, then the slope."""
    pin_to_one_core()
    rows = []
    for case in CASES:
        rows.append(against_nuts(*case))
        row = rows[-1]
        right = (
            row["state_error"] <= 0.1 and 0.8 <= row["sd_ratio"][0] <= row["sd_ratio"][1] <= 1.25
        )
        print(
            f"{row['likelihood']:10} {row['length']:5}: worst state {row['state_error']:.3f} sd, "
            f"sd ratios {row['sd_ratio'][0]:.2f} to {row['sd_ratio'][1]:.2f}, "
            f"{row['seconds_first']:.2f} then {row['seconds']:.2f} against "
            f"{row['nuts_seconds']:.1f} s ({row['speedup_first']:.0f} x; "
            f"{row['speedup']:.0f} x without compilation); "
            f"{verdict(right)}",
            flush=True,
        )
    found = slope()
    print(f"slope of time in length {found['slope']:.2f}")
    chain = chain_slope()
    print(f"slope of a chain {chain['slope']:.2f}, from 1,000 on {chain['slope_from_1000']:.2f}")
    return {"nuts": rows, "slope": found, "chain": chain}
