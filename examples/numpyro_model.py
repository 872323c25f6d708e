"""A NumPyro model, as it is, fitted by curvi; then the same through the drop-in for SVI."""

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
    line = numpyro.deterministic("line", slope * x)
    numpyro.sample("y", dist.Normal(line, noise), obs=y)


x = jnp.linspace(-1, 1, 40)
y = 2 * x + 0.3 * np.random.default_rng(0).normal(size=40).astype(np.float32)

result = curvi.fit(curvi.from_numpyro(model, x, y), progress=False)
print(result.outcome.name, "slope", round(float(result.mean["slope"]), 1))
print("sites:", ", ".join(sorted(result.mean)))

guide = autoguide.AutoNormal(model)
run = curvi.SVI(model, guide).run(jax.random.key(0), 100, x, y, progress_bar=False)
draws = Predictive(guide, params=run.params, num_samples=500)(jax.random.key(1), x, y)
print("converged in", "fewer" if len(run.losses) < 100 else "all", "steps;", draws["slope"].shape)
