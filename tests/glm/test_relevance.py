"""The search for relevant coefficients: its updates, its optima, what it finds on data."""

from itertools import product

import numpy as np
import pytest

import curvi
from curvi.glm._relevance import QuadraticModel, _without_each
from curvi.objective._draws import host_generator

pytestmark = pytest.mark.float64_only


@pytest.fixture
def random(key):
    return host_generator(key)


def quadratic(random, size, variances=None, rows=40):
    """A correlated table and a response of a few of its columns."""
    X = random.normal(size=(rows, size)) @ (np.eye(size) + 0.5 * random.normal(size=(size, size)))
    y = X @ np.where(np.arange(size) < 2, 0.5, 0.0) + random.normal(size=rows)
    variances = np.zeros(size) if variances is None else variances
    A = X.T @ X
    return QuadraticModel(A, X.T @ y, 0.5 * np.diag(A), variances, np.zeros(size, bool))


def test_updates_of_rank_one_are_what_a_new_model_would_give(random):
    model = quadratic(random, 6)
    variances = np.zeros(6)
    for j, new in ((0, 0.5), (3, 2.0), (0, 0.1), (5, 1.0), (3, 0.0), (0, 3.0)):
        model.move(j, new)
        variances[j] = new
        fresh = QuadraticModel(
            model.hessian, model.linear, model.by_variance, variances, model.held
        )
        np.testing.assert_allclose(model.mean, fresh.mean, atol=1e-9)
        np.testing.assert_allclose(model.value, fresh.value, rtol=1e-9)
        for found, expected in zip(model._others_left(), fresh._others_left(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_no_single_coefficient_can_gain_after_a_search(random):
    """A finer grid of prior variances finds little: 0.01 nats at most in 150 seeds.

    The gain can have two maxima in the prior variance, and the search follows the better one of its
    own grid.
    """
    model = quadratic(random, 5)
    model.search()
    for j in range(5):
        for variance in (0.0, *np.exp(np.linspace(-8, 4, 60))):
            other = model.copy()
            if variance != other.variances[j]:
                other.move(j, variance)
            assert other.value > model.value - 0.05


def test_leaving_each_out_finds_the_best_of_all_subsets(random):
    """Up to the exchanges of several at once, which it cannot make; most of all it is no worse."""
    model = quadratic(random, 6)
    model.search()
    found = _without_each(model, random, 100)
    assert found.value <= model.value
    best = np.inf
    for chosen in product([False, True], repeat=6):
        start = np.where(chosen, 0.5 / model.by_variance, 0.0)
        other = QuadraticModel(
            model.hessian, model.linear, model.by_variance, start, ~np.array(chosen)
        )
        other.search()
        best = min(best, other.value)
    assert found.value < best + 0.5  # nats


def test_a_relevance_fit_keeps_what_matters_and_its_optimum_is_one(random):
    """Columns in pairs that are nearly equal: one of each pair is enough."""
    base = random.normal(size=(400, 4))
    X = np.column_stack([base, base + 0.05 * random.normal(size=base.shape)])
    y = random.logistic(size=400) < 2 * base[:, 0] - 2 * base[:, 1]
    model = curvi.BayesianLogisticRegression(prior="ard", num_starts=1, random_state=0).fit(X, y)
    assert model.converged_
    assert 2 <= model.selected_.sum() <= 4
    assert model.selected_[0, [0, 4]].any()
    assert model.selected_[0, [1, 5]].any()
    again = curvi.BayesianLogisticRegression(prior="ard", num_starts=6, random_state=1)
    with pytest.warns(curvi.MisfitWarning, match="optima .* select .* features"):
        again.fit(X, y)
    assert model.elbo_ > again.elbos_.max() - 1.0
