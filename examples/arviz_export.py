"""Draws, densities and the diagnostics of a fit as an ArviZ object."""

import jax.numpy as jnp

import curvi

result = curvi.fit(
    lambda z: -0.5 * jnp.sum((z["beta"] - jnp.arange(3.0)) ** 2) - z["scale"] ** 2,
    {"beta": jnp.zeros(3), "scale": jnp.ones(())},
    progress=False,
)
data = result.to_arviz(num_draws=400)
print(dict(data.posterior["beta"].sizes))
print(sorted(data.sample_stats.data_vars))
print(data.fit.attrs["outcome"], "in", data.fit.sizes["step"], "steps")
