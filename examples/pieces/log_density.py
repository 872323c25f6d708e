"""
A log density, and whether to believe the answer
================================================

A function of unknown quantities is all that a fit needs. Here the same posterior is fitted by three
families, and the result says which of them can be believed.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

import curvi

rng = np.random.default_rng(0)
dose = np.linspace(1, 4, 30)
died = rng.random(30) < 1 / (1 + np.exp(5 - 2 * dose))
dose, died = jnp.asarray(dose, jnp.float32), jnp.asarray(died)


def log_density(p):
    logit = p["intercept"] + p["slope"] * dose
    likelihood = jnp.sum(jnp.where(died, jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)))
    return likelihood - 0.5 * (p["intercept"] / 10) ** 2 - 0.5 * (p["slope"] / 5) ** 2


start = {"intercept": jnp.zeros(()), "slope": jnp.zeros(())}

# %%
# The default climbs a ladder of families until the answer is right:
result = curvi.fit(log_density, start, progress=False)
print(result.summary())

# %%
# A diagonal covariance cannot show that the two go together, and says so:
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    mean_field = curvi.fit(log_density, start, family=curvi.MeanField(), progress=False)
for warning in caught:
    print(f"{warning.category.__name__}: {warning.message}")

# %%
# Its sds are those of each quantity *given* the other. Linear response repairs most of that, by how
# the optimum moves when the target is tilted:
repaired = mean_field.linear_response()
print("sd of          intercept   slope")
for name, sd in (
    ("the default", result.sd),
    ("mean field", mean_field.sd),
    ("linear response", repaired),
):
    print(f"{name:16s} {float(sd['intercept']):7.2f} {float(sd['slope']):7.2f}")

# %%
result.plot()
