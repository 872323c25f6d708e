"""
Grouped data: a mixed model
===========================

Forty patients are measured again and again. Each has a level and a trend of their own, and these
vary around those of the population. A formula says so: ``(1 + week | patient)``.
"""

import numpy as np
import pandas as pd

import curvi

rng = np.random.default_rng(3)
patients, visits = 40, 6
level = rng.normal(60, 8, patients)
slope = rng.normal(-1.5, 1.0, patients)
treated = np.arange(patients) % 2
table = pd.DataFrame(
    [
        {
            "patient": f"P{p:02d}",
            "week": week,
            "treated": treated[p],
            "pain": level[p] + (slope[p] - 1.2 * treated[p]) * week + rng.normal(0, 4),
        }
        for p in range(patients)
        for week in range(visits)
    ]
)
table.head()

# %%
# Nothing is tuned and nothing is sampled. All variances are integrated, and the priors are printed
# with the answer.
model = curvi.MixedModel("pain ~ week * treated + (1 + week | patient)").fit(table)
print(model.summary())

# %%
# The patients, sorted by their trend. Every estimate is drawn towards the population, more so
# where a patient has told us less.
model.plot_groups()

# %%
# Predictions know three kinds of patients: those that were seen, new ones, and unknown ones.
new = pd.DataFrame({"patient": ["P00", "P01", "someone new"], "week": 8, "treated": [0, 1, 1]})
new.join(model.predict(new, interval=0.9)).round(1)
