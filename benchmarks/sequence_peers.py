"""Simulated series, and NUTS of NumPyro on the models that ``curvi.StateSpace`` fits to them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.clocks import Sampled, nuts
from curvi.likelihoods import likelihood_of
from curvi.sequences._series import as_series

DRAWS = 4000  # of NUTS, to compare with; 400 effective ones are timed


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


def sampled(likelihood: str, y: np.ndarray) -> Sampled:
    """NUTS on the model of the series."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import NUTS

    offset, seen, length = (
        as_series(y, None, likelihood_of(likelihood)).offset,
        np.isfinite(y),
        len(y),
    )

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

    def values(draws: dict[str, np.ndarray]) -> np.ndarray:
        columns = [draws[name] for name in ("signal", "level", "phi") if name in draws]
        return np.concatenate([c.reshape(*c.shape[:2], -1) for c in columns], axis=-1)

    with jax.enable_x64(True):
        return nuts(lambda: NUTS(model), values, num_chains=1, num_samples=DRAWS)
