"""
A NumPyro model with groups
===========================

Eight schools coached their pupils, and each reported an effect with a standard error. The model is
small and has a hard posterior, a funnel: the closer the effects are to each other, the narrower it
gets. curvi fits it as it is.
"""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import curvi

effects = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
errors = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(effects=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effect", dist.Normal(theta, errors), obs=effects)


result = curvi.fit(curvi.from_numpyro(schools, effects), progress=False)
print(result.summary())

# %%
# With nothing chosen, a fit climbs a ladder until its answer is right. The rungs it took:
for rung in result.rungs:
    print(f"{rung.name:20s} {rung.note}")

# %%
# Names of sites are kept, in the figure and in the draws.
result.plot()

# %%
# Draws from the answer:
draws = result.sample(4000)
better = (draws["theta"][:, 0] > draws["theta"][:, 2]).mean()
print(f"the first school helped more than the third with probability {better:.2f}")
print(f"the sd of the schools is below 5 with probability {(draws['tau'] < 5).mean():.2f}")
