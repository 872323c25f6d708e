"""Simulation-based calibration: truths from the prior, data from the model."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import special

import curvi

REPLICATES, ROWS, FEATURES = 1000, 60, 3


@pytest.mark.slow
@pytest.mark.float64_only
def test_nine_of_ten_central_intervals_hold_the_truth(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    model = curvi.BayesianLogisticRegression(covariance="full", standardize=False)
    half = special.ndtri(0.95)
    inside = []
    for _ in range(REPLICATES):
        truth = rng.normal(size=FEATURES + 1)
        X = rng.normal(size=(ROWS, FEATURES))
        y = rng.logistic(size=ROWS) < X @ truth[:-1] + truth[-1]
        if y.all() or not y.any():
            continue  # one class cannot be fitted; about one replicate in a thousand
        model.fit(X, y)
        assert model.converged_
        inside.append(np.abs(model.coef_[0] - truth[:-1]) < half * model.coef_sd_[0])
    coverage = np.mean(inside, axis=0)
    assert len(inside) > 0.98 * REPLICATES
    # 3,000 intervals, nearly independent; one sd of the average is about 0.006.
    assert 0.87 < coverage.mean() < 0.93
