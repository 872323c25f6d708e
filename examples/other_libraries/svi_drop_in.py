"""
In place of NumPyro's SVI
=========================

``curvi.SVI`` takes a model and an autoguide and has the ``run`` of ``numpyro.infer.SVI``. There is
no optimiser to choose, and a run that converges stops.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Predictive, autoguide

import curvi


def model(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 5))
    noise = numpyro.sample("noise", dist.HalfNormal(2))
    numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)


x = jnp.linspace(-1, 1, 40)
y = 2 * x + 0.3 * np.random.default_rng(0).normal(size=40).astype(np.float32)

guide = autoguide.AutoNormal(model)
run = curvi.SVI(model, guide).run(jax.random.key(0), 100, x, y, progress_bar=False)
print(f"{len(run.losses)} of at most 100 steps: {run.state.outcome}")

# %%
# ``params`` are those of the guide, so all that follows a fit in NumPyro stays as it was.
draws = Predictive(guide, params=run.params, num_samples=2000)(jax.random.key(1), x, y)
print(f"slope {draws['slope'].mean():.2f} ± {draws['slope'].std():.2f}, the truth is 2")

# %%
# ``state`` is the whole result of curvi, diagnostics included.
run.state.plot()
