"""
On to ArviZ
===========

``to_arviz`` gives draws, densities, observed data and the trace of the fit as one object of ArviZ:
an ``InferenceData`` with ArviZ 0.x, a ``DataTree`` with ArviZ 1.x.
"""

import warnings

import jax.numpy as jnp

import curvi

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # ArviZ announces its next version
    import arviz

rows = jnp.array([2.1, 1.4, 3.3, 2.8, 1.9, 2.6, 2.2, 3.0])


def log_density(p):
    """A normal sample with unknown mean and scale."""
    scale = jnp.exp(p["log_scale"])
    likelihood = -0.5 * jnp.sum(((rows - p["mean"]) / scale) ** 2) - 8 * p["log_scale"]
    return likelihood - 0.5 * (p["mean"] / 5) ** 2 - 0.5 * p["log_scale"] ** 2


result = curvi.fit(log_density, {"mean": jnp.zeros(()), "log_scale": jnp.zeros(())}, progress=False)
data = result.to_arviz(num_draws=2000)

# %%
# The draws are independent, so R-hat and effective sample sizes carry no information: ask for the
# statistics alone.
arviz.summary(data, kind="stats")

# %%
# Log densities of target and approximation are there for importance weights, and the ``fit`` group
# has the trace and the verdict.
print("sample_stats:", ", ".join(sorted(data.sample_stats.data_vars)))
attributes = data.fit.attrs
print(f"fit: {attributes['outcome']}, ELBO {attributes['elbo']:.3f} ± {attributes['elbo_se']:.3f}")

# %%
axes = arviz.plot_posterior(data)
figure = axes.ravel()[0].figure
