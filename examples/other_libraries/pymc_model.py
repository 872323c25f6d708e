"""
A PyMC model
============

``from_pymc`` takes PyMC's own log density, transforms and names. Coordinates and dimensions stay
with the result.
"""

import numpy as np
import pymc as pm

import curvi

regions = ["north", "east", "south", "west"]
rng = np.random.default_rng(0)
region = rng.integers(0, 4, 80)
yields = np.array([3.1, 4.0, 5.2, 2.4])[region] + 0.8 * rng.normal(size=80)

with pm.Model(coords={"region": regions}) as model:
    centre = pm.Normal("centre", 0, 5)
    spread = pm.HalfNormal("spread", 2)
    level = pm.Normal("level", centre, spread, dims="region")
    noise = pm.HalfNormal("noise", 2)
    pm.Normal("yield", level[region], noise, observed=yields)

result = curvi.fit(curvi.from_pymc(model), progress=False)
print(result.summary())

# %%
# ArviZ finds the dimensions under their names:
posterior = result.to_arviz(num_draws=2000).posterior
posterior["level"].mean(["chain", "draw"]).to_series().round(2)

# %%
result.plot()
