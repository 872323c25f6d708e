"""A PyMC model, as it is, fitted by curvi."""

import numpy as np
import pymc as pm

import curvi

schools = ["A", "B", "C", "D"]
scores = np.array([2.1, -0.3, 1.2, 0.8])

with pm.Model(coords={"school": schools}) as model:
    centre = pm.Normal("centre", 0, 5)
    effect = pm.Normal("effect", centre, 1, dims="school")
    pm.Normal("score", effect, 0.5, observed=scores, dims="school")

result = curvi.fit(curvi.from_pymc(model), family=curvi.FullRank(), progress=False)
print(result.outcome.name, "centre", round(float(result.mean["centre"]), 2))

data = result.to_arviz(num_draws=500)
print(dict(data.posterior["effect"].sizes))
