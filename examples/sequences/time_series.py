"""
A series of counts, with a season and a gap
===========================================

Monthly counts over eight years: a level that drifts, a yearly season, and four months without a
record. A state-space model smooths the past, fills the gap, and forecasts with bands.
"""

import numpy as np

import curvi

rng = np.random.default_rng(0)
months = np.arange(96)
season = 0.4 * np.sin(2 * np.pi * months / 12)
counts = rng.poisson(np.exp(2.5 + 0.01 * months + season)).astype(float)
counts[40:44] = np.nan

# %%
# Nothing is tuned and nothing is sampled: the sds of the innovations are integrated over.
model = curvi.StateSpace(season=12, likelihood="poisson").fit(counts)
model.plot(24)

# %%
# The sds of the innovations, with posterior sds:
for name, (mean, sd) in model.hyperparameters_.items():
    print(f"{name:8s} {mean:.3f} ± {sd:.3f}")

# %%
# The next year in numbers, with 90 % intervals:
ahead = model.forecast(12, interval=0.9)
for month, mean, low, high in zip(range(1, 13), ahead.mean, ahead.lower, ahead.upper, strict=True):
    print(f"month {month:2d}: {mean:5.1f}  ({low:.0f} to {high:.0f})")

# %%
# Futures can be drawn and added up: how many in the whole year?
total = model.simulate(4000, 12).sum(axis=1)
low, high = np.quantile(total, [0.05, 0.95])
print(f"next year: {total.mean():.0f}, between {low:.0f} and {high:.0f}")
