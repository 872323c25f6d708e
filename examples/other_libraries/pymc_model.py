"""
A PyMC model
============

``from_pymc`` takes PyMC's own log density, transforms and names. Coordinates and dimensions stay
with the result.
"""

import numpy as np
import pymc as pm

import curvi

regions = ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"]
rng = np.random.default_rng(0)
region = rng.integers(0, 8, 24)
yields = 3.5 + 0.7 * rng.normal(size=8)[region] + 1.5 * rng.normal(size=24)

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
