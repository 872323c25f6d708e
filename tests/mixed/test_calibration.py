"""Calibration by simulation: intervals cover what they say, when the truth comes from the prior."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from curvi.mixed import MixedModel
from curvi.mixed._posterior import weighted_quantile
from tests.mixed.tables import generator

pytestmark = [pytest.mark.float64_only, pytest.mark.slow]
REPLICATES, LEVEL = 500, 0.9


def covered(posterior, truth, values):
    """Whether the central interval of weighted values has the truth."""
    low, high = (
        weighted_quantile(values, posterior.weights, 0.5 + side * LEVEL / 2) for side in (-1, 1)
    )
    return low < truth < high


def responses(rng, likelihood, t, noise):
    """Responses at given predictors."""
    if likelihood == "gaussian":
        return t + noise * rng.standard_normal(len(t))
    if likelihood == "bernoulli":
        return (rng.random(len(t)) < 1 / (1 + np.exp(-t))).astype(int)
    return rng.poisson(np.exp(np.minimum(t, 15)))


# A replicate in hundreds is flagged, by the tail of its weights; it counts like any other.
@pytest.mark.filterwarnings("ignore:The importance weights have heavy tails")
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "poisson"])
def test_intervals_of_effects_and_sds_cover_nine_in_ten(key, likelihood):
    """Parameters are drawn from the prior of the fit, so that coverage is exact in theory.

    500 replicates have a standard error of 0.013, so that 0.87 to 0.93 leaves out one seed in
    fifty for each quantity; the bounds here are three and a half standard errors.
    """
    rng = generator(key)
    groups, rows = 12, 6
    g = np.repeat(np.arange(groups), rows)
    hits = {"fixed": [], "sd": [], "group": []}
    for _ in range(REPLICATES):
        sd, noise = abs(rng.normal()), abs(0.7 * rng.normal()) + 1e-3
        beta, effects = rng.normal(0, [1.0, 0.5]), sd * rng.standard_normal(groups)
        x = rng.standard_normal(len(g))
        t = beta[0] + beta[1] * x + effects[g]
        y = responses(rng, likelihood, t, noise)
        if np.ptp(y) == 0:  # refused; with 72 rows too rare to matter
            continue
        model = MixedModel(
            "y ~ x + (1 | g)", likelihood=likelihood, prior_scale=0.5, intercept_prior_scale=1.0,
            group_sd_scale=1.0, noise_scale=0.7, num_points=512,
        ).fit(pd.DataFrame({"y": y, "x": x, "g": g}))  # fmt: skip
        posterior = model.posterior_
        hits["fixed"].append(covered(posterior, beta[1], posterior.fixed()[:, 1]))
        hits["sd"].append(covered(posterior, sd, np.exp(posterior.theta[:, 0])))
        draws = model.sample_posterior(400)["effects"][0][:, 0, 0]
        low, high = np.quantile(draws, [0.05, 0.95])
        hits["group"].append(low < effects[0] < high)
    for name, found in hits.items():
        assert abs(np.mean(found) - LEVEL) < 3.5 * np.sqrt(0.09 / len(found)), name
