"""Simulated series, and NUTS of NumPyro on the models that ``curvi.StateSpace`` fits to them."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from curvi.sequences._series import as_series

WARMUP, SAMPLES, CHAINS = 600, 1500, 2
ENOUGH = 400  # effective draws


def simulated(likelihood: str, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A series and its signal: an autoregression of log variances, or a random walk."""
    rng = np.random.default_rng(seed)
    signal = np.zeros(length)
    if likelihood == "volatility":
        for t in range(1, length):
            signal[t] = 0.95 * signal[t - 1] + 0.25 * rng.normal()
        return rng.normal(size=length) * np.exp(0.5 * (signal - 1)), signal - 1
    for t in range(1, length):  # bounded, or long walks would overflow
        signal[t] = 0.999 * signal[t - 1] + 0.1 * rng.normal()
    if likelihood == "poisson":
        y = rng.poisson(np.exp(signal + 1)).astype(float)
    else:
        y = (rng.uniform(size=length) < 1 / (1 + np.exp(-signal))).astype(float)
    y[length // 10 : length // 10 + length // 50] = np.nan
    return y, signal


class Sampled(NamedTuple):
    """Draws of NUTS and what they took.

    Attributes
    ----------
    draws : of both chains
    seconds : processor seconds for 400 effective draws of the worst quantity, compilation and
        warm-up included, as for the reference posteriors
    chain_seconds : those of one chain without compilation
    ess : smallest effective sample size of that chain
    """

    draws: dict[str, np.ndarray]
    seconds: float
    chain_seconds: float
    ess: float


def nuts(likelihood: str, y: np.ndarray) -> Sampled:
    """NUTS on the model of the series: the first chain compiles, the second does not."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size
    from numpyro.infer import MCMC, NUTS

    offset, seen, length = as_series(y, None, likelihood).offset, np.isfinite(y), len(y)

    def volatility() -> Any:
        sd = numpyro.sample("level", dist.HalfNormal(1.0))
        phi = numpyro.deterministic("phi", 2 * numpyro.sample("u", dist.Beta(20, 1.5)) - 1)
        mean = numpyro.sample("mean", dist.Normal(0, 3.0))
        e = numpyro.sample("e", dist.Normal(0, 1).expand([length]).to_event(1))

        def step(before: Any, noise: Any) -> Any:
            here = phi * before + sd * noise
            return here, here

        first = sd / jnp.sqrt(1 - phi**2) * e[0]
        rest = jax.lax.scan(step, first, e[1:])[1]
        return jnp.concatenate([first[None], rest]) + mean

    def walk() -> Any:
        sd = numpyro.sample("level", dist.HalfNormal(1.0))
        e = numpyro.sample("e", dist.Normal(0, 1).expand([length]).to_event(1))
        return jnp.cumsum(jnp.concatenate([10 * e[:1], sd * e[1:]]))

    def model() -> None:
        states = volatility() if likelihood == "volatility" else walk()
        signal = numpyro.deterministic("signal", states + offset)[seen]
        seen_as = {
            "volatility": lambda: dist.Normal(0, jnp.exp(0.5 * signal)),
            "poisson": lambda: dist.Poisson(jnp.exp(signal)),
            "bernoulli": lambda: dist.Bernoulli(logits=signal),
        }[likelihood]()
        numpyro.sample("y", seen_as, obs=jnp.asarray(y[seen]))

    chains, warm, drawing = [], [], []
    with jax.enable_x64(True):
        sampler = MCMC(NUTS(model), num_warmup=WARMUP, num_samples=SAMPLES, progress_bar=False)
        for chain in range(CHAINS):
            began = time.process_time()
            sampler.warmup(jax.random.key(chain))
            jax.block_until_ready(sampler.last_state.z)
            warm.append(time.process_time() - began)
            began = time.process_time()
            sampler.run(jax.random.key(CHAINS + chain))
            chains.append({k: np.asarray(v) for k, v in sampler.get_samples().items()})
            drawing.append(time.process_time() - began)
            sampler.post_warmup_state = None  # the next chain warms up on its own
    wanted = [name for name in ("signal", "level", "phi") if name in chains[0]]
    draws = {name: np.concatenate([c[name] for c in chains]) for name in wanted}
    ess = float(min(np.min(effective_sample_size(chains[-1][name][None])) for name in wanted))
    compiling = max(drawing[0] - drawing[1], 0.0)
    seconds = warm[0] + compiling + drawing[1] * ENOUGH / ess
    return Sampled(draws, seconds, warm[1] + drawing[1], ess)
