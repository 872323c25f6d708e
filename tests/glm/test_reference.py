"""Figures that were computed elsewhere, on real data."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

import curvi
from curvi.glm import BayesianLogisticRegression
from curvi.paper.experiments._runs import design

pytestmark = [pytest.mark.data, pytest.mark.float64_only]


def too_small_sds():
    """Indicators of one variable are correlated, which a diagonal covariance leaves out."""
    return pytest.warns(curvi.MisfitWarning, match="the diagonal covariance leaves that out")


@pytest.mark.parametrize(
    ("covariance", "value"),
    [("diagonal", 619.9543), pytest.param("full", 595.8773, marks=pytest.mark.slow)],
)
def test_a1a_has_the_known_bound(data_dir, covariance, value):
    X, y = curvi.datasets.load("a1a", download=False).train
    model = BayesianLogisticRegression(
        prior_scale=2.8072**-0.5,
        intercept_prior_scale=1e-5**-0.5,
        standardize=False,
        covariance=covariance,
    )
    with too_small_sds() if covariance == "diagonal" else nullcontext():
        model.fit(X, y)
    assert model.converged_
    assert -model.elbo_ == pytest.approx(value, abs=1e-3)


def test_a9a_has_the_known_bound_and_errors(data_dir):
    data = curvi.datasets.load("a9a", download=False)
    X, y = data.train
    model = BayesianLogisticRegression(covariance="diagonal", standardize=False)
    with too_small_sds():
        model.fit(X, y)
    assert model.converged_
    assert model.elbo_ == pytest.approx(-10780.496, abs=0.01)
    assert np.sum(model.predict(X) != y) == 4912
    assert np.sum(model.predict(data.test[0]) != data.test[1]) == 2446


@pytest.mark.slow
@pytest.mark.parametrize("name", ["duke", "leukemia"])
def test_gene_data_are_separated_by_few_relevant_genes(data_dir, name):
    data = curvi.datasets.load(name, download=False)
    X, y = design(data.train[0]), data.train[1]  # the paper's bound: the constant is a feature
    errors = []
    for seed in range(3):
        model = BayesianLogisticRegression(
            prior="ard", standardize=False, fit_intercept=False, random_state=seed
        )
        with pytest.warns(curvi.MisfitWarning, match="optima"):
            model.fit(X, y)
        assert model.converged_
        assert np.sum(model.predict(X) != y) == 0
        assert model.elbo_ == model.elbos_.max()
        assert model.selected_.sum() < 100
        if data.test is not None:
            errors.append(np.sum(model.predict(design(data.test[0])) != data.test[1]))
    if name == "leukemia":
        assert np.median(errors) <= 3
