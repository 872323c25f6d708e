"""
Counts
======

How many bicycles pass a bridge in a day? Counts are not negative and vary more where they are
large, so the Poisson likelihood suits them better than a straight line. The data are simulated,
and the truth is known.
"""

import numpy as np
import pandas as pd

import curvi

rng = np.random.default_rng(1)
days = 400
weather = pd.DataFrame(
    {
        "temperature": rng.normal(12, 7, days),
        "rain": rng.exponential(3, days),
        "weekend": rng.integers(0, 2, days),
        "wind": rng.gamma(4, 3, days),
    }
)
truth = np.array([0.05, -0.06, -0.4, 0.0])
bicycles = rng.poisson(np.exp(4 + weather @ truth))

# %%
# A prior of sd 1 for the effect of one sd of a column. The posterior of the coefficients has a
# full covariance, and the optimum is found by exact Newton steps.
model = curvi.BayesianPoissonRegression(covariance="full").fit(weather, bicycles)
pd.DataFrame(
    {"estimate": model.coef_, "posterior sd": model.coef_sd_, "truth": truth},
    index=weather.columns,
).round(4)

# %%
# Every coefficient is within two sds of the truth. What a dry and warm Sunday would bring, with a
# 90 % interval of the *expected* count:
sunday = pd.DataFrame({"temperature": [24.0], "rain": [0.0], "weekend": [1], "wind": [5.0]})
draws = model.sample(4000, seed=0)
rate = np.exp(draws.coef @ sunday.to_numpy()[0] + draws.intercept)
low, high = np.quantile(rate, [0.05, 0.95])
print(f"expected: {rate.mean():.0f} bicycles, between {low:.0f} and {high:.0f}")

# %%
# A new day scatters around its expectation as well:
day = rng.poisson(rate)
low, high = np.quantile(day, [0.05, 0.95])
print(f"on a single day: between {low:.0f} and {high:.0f}")

# %%
effect, sd = model.coef_ * weather.std(), model.coef_sd_ * weather.std()
figure = curvi.plots.plot_effects(
    effect.to_numpy()[None], sd.to_numpy()[None], names=list(weather.columns)
)
