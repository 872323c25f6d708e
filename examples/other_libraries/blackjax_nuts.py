"""
NUTS without warm-up
====================

The log density that curvi fits is the one that BlackJAX samples. A fit gives the sampler what its
warm-up looks for: a place to start, a mass matrix, and a step size. Here it is a banana in badly
scaled coordinates, far away from where the search begins.
"""

import warnings

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import curvi


def log_density(z):
    a, b = z["a"], z["b"]
    return -0.5 * ((a - 300) / 20) ** 2 - 0.5 * ((b - 0.0005 * (a - 300) ** 2) / 0.3) ** 2


with warnings.catch_warnings():
    warnings.simplefilter("ignore", curvi.MisfitWarning)  # no Gaussian is a banana
    result = curvi.fit(
        log_density,
        {"a": jnp.zeros(()), "b": jnp.zeros(())},
        family=curvi.FullRank(),
        progress=False,
    )
start = result.to_blackjax(num_chains=4)
nuts = blackjax.nuts(
    start.logdensity_fn, step_size=start.step_size, inverse_mass_matrix=start.inverse_mass_matrix
)


def chain(position, key):
    def step(state, key):
        state, _ = nuts.step(key, state)
        return state, state.position

    return jax.lax.scan(step, nuts.init(position), jax.random.split(key, 1000))[1]


# %%
# Every draw counts, from the first one on.
draws = jax.jit(jax.vmap(chain))(start.positions, jax.random.split(jax.random.key(0), 4))
print("mean and sd of a, by chain (true: 300 and 20)")
for one in np.asarray(draws["a"]):
    print(f"  {one.mean():6.1f} {one.std():5.1f}")

# %%
from matplotlib import pyplot as plt

approximate = result.sample(1000)
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
axes.plot(
    draws["a"].ravel()[::2], draws["b"].ravel()[::2], ".", ms=2, color="#0072B2", label="NUTS"
)
axes.plot(
    approximate["a"], approximate["b"], "x", ms=3, color="#D55E00", label="full-rank Gaussian"
)
axes.set(xlabel="a", ylabel="b")
axes.legend(frameon=False, markerscale=3)
