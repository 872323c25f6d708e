"""
A family of your own
====================

A family is a structure of R and a distribution of noise, ``z = mu + R epsilon``. Another noise is a
``Base``; with ``LocationScale`` it is a family. The sum of two uniforms gives q a bounded support.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import curvi
from curvi.families import Base, LocationScale


@dataclass(frozen=True)
class Triangular(Base):
    """The sum of two uniforms on [-1, 1]."""

    variance = 2 / 3

    def sample(self, key, shape, dtype):
        return jax.random.uniform(key, (2, *shape), dtype, -1.0, 1.0).sum(axis=0)

    def log_prob(self, noise):
        return jnp.sum(jnp.log(jnp.maximum(2 - jnp.abs(noise), 1e-30) / 4))

    def entropy(self, dimension):
        return dimension * (0.5 + np.log(2.0))

    def from_uniform(self, uniform):
        left = -2 + np.sqrt(8 * uniform)
        return np.where(uniform < 0.5, left, 2 - np.sqrt(8 * (1 - uniform)))


# %%
# The target is a normal density with mean 3 and sd 1. Every method fits the new family, and the
# diagnostics apply to it.
result = curvi.fit(
    lambda z: -0.5 * jnp.sum((z - 3) ** 2),
    jnp.zeros(2),
    family=LocationScale(Triangular()),
    progress=False,
    on_failure="warn",
)
print("mean", np.round(result.mean, 2), " sd", np.round(result.sd, 2))

# %%
from matplotlib import pyplot as plt

z = np.linspace(-1, 7, 400)
draws = np.asarray(result.sample(20_000))[:, 0]
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.hist(draws, bins=60, density=True, color="#56B4E9", label="q, draws")
axes.plot(z, np.exp(-0.5 * (z - 3) ** 2) / np.sqrt(2 * np.pi), color="#D55E00", label="target")
axes.set(xlabel="first coordinate", ylabel="density")
axes.legend(frameon=False)
