"""Predictions integrate over the posterior, and every method and structure finds it."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from scipy import sparse, special, stats
from sklearn.exceptions import ConvergenceWarning

import curvi


@pytest.fixture(scope="module")
def binary(dtype):
    random = np.random.default_rng(2)
    X = random.normal(size=(200, 3)).astype(dtype) * [1, 3, 1] + [0, 5, 0]
    chance = special.expit(1.5 * X[:, 0] - 0.3 * (X[:, 1] - 5))
    X = X.astype(dtype)
    y = (random.uniform(size=200) < chance).astype(int)
    return X, y, curvi.BayesianLogisticRegression().fit(X, y)


@pytest.fixture(scope="module")
def several(dtype):
    random = np.random.default_rng(4)
    X = random.normal(size=(300, 2)).astype(dtype)
    logits = X @ np.array([[2.0, 0.0, -2.0], [0.0, 1.5, 0.0]])
    y = (logits + random.gumbel(size=(300, 3))).argmax(axis=1)
    return X, y, curvi.BayesianLogisticRegression().fit(X, y)


def test_binary_probabilities_are_averages_over_the_posterior(binary):
    X, _, model = binary
    draws = model.sample(20000, seed=1)
    sampled = special.expit(X[:20] @ draws.coef[:, 0].T + draws.intercept[:, 0]).mean(axis=1)
    np.testing.assert_allclose(model.predict_proba(X[:20])[:, 1], sampled, atol=5e-3)


def test_probabilities_of_several_classes_are_averages_over_the_posterior(several):
    X, _, model = several
    draws = model.sample(20000, seed=1)
    logits = np.einsum("nf,dkf->dnk", X[:20], draws.coef) + draws.intercept[:, None, :]
    sampled = special.softmax(logits, axis=2).mean(axis=0)
    np.testing.assert_allclose(model.predict_proba(X[:20]), sampled, atol=5e-3)


def test_draws_have_the_published_moments(binary):
    _, _, model = binary
    draws = model.sample(20000, seed=0)
    assert draws.coef.shape == (20000, 1, 3)
    spread = model.coef_sd_
    np.testing.assert_allclose(draws.coef.mean(axis=0), model.coef_, atol=0.03 * spread.max())
    np.testing.assert_allclose(draws.coef.std(axis=0), spread, rtol=0.03)


def test_several_classes_are_learnt_and_the_quadrature_error_is_small(several):
    X, y, model = several
    assert model.converged_
    assert model.coef_.shape == (3, 2)
    assert model.score(X, y) > 0.6
    assert 0 < model.elbo_se_ < 0.1
    assert abs(model.elbo_ - model.elbos_[0]) < 1.0  # fresh draws against those it was fitted to


@pytest.mark.slow
@pytest.mark.float64_only
def test_richer_covariances_of_several_classes_have_a_higher_bound(several):
    X, y, plain = several
    bounds = [plain.elbo_]
    for covariance in ("low-rank", "full"):
        rich = curvi.BayesianLogisticRegression(covariance=covariance, rank=1).fit(X, y)
        assert rich.converged_
        bounds.append(rich.elbo_)
    assert np.all(np.diff(bounds) > -4 * plain.elbo_se_)


@pytest.mark.slow
@pytest.mark.float64_only
@pytest.mark.parametrize("method", ["hfsgvi", "lbfgs", "dsvi"])
def test_stochastic_methods_come_near_the_bound_of_several_classes(several, method):
    X, y, plain = several
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = curvi.BayesianLogisticRegression(method=method, random_state=0).fit(X, y)
    assert abs(model.elbo_ - plain.elbo_) < 5.0
    assert not model.converged_ or abs(model.elbo_ - plain.elbo_) < 1.0


@pytest.fixture(scope="module", params=["full", "low-rank"])
def rich(binary, request):
    X, y, _ = binary
    return curvi.BayesianLogisticRegression(covariance=request.param, rank=2).fit(X, y)


@pytest.mark.float64_only
def test_richer_covariances_survive_pickling(binary, rich):
    X, _, _ = binary
    restored = pickle.loads(pickle.dumps(rich))  # noqa: S301  made here
    np.testing.assert_array_equal(restored.predict_proba(X), rich.predict_proba(X))
    np.testing.assert_array_equal(restored.sample(3).coef, rich.sample(3).coef)


@pytest.mark.float64_only
def test_richer_covariances_have_a_higher_bound_and_the_same_coefficients(binary, rich):
    _, _, plain = binary
    assert rich.converged_
    assert plain.elbo_ - 1e-6 <= rich.elbo_ < plain.elbo_ + 1
    np.testing.assert_allclose(rich.coef_, plain.coef_, atol=0.1)


@pytest.mark.float64_only
@pytest.mark.parametrize(("method", "steps"), [("hfsgvi", 60), ("lbfgs", 60), ("dsvi", 2000)])
def test_the_methods_of_the_paper_come_close_or_say_that_they_do_not(binary, method, steps):
    X, y, exact = binary
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = curvi.BayesianLogisticRegression(method=method, max_iter=steps, random_state=0).fit(
            X, y
        )
    assert model.elbo_ <= exact.elbo_ + 1e-6
    assert model.converged_ != any(w.category is ConvergenceWarning for w in caught)
    assert model.elbo_ > exact.elbo_ - 5


@pytest.mark.float64_only
@pytest.mark.parametrize("method", ["hfsgvi", "dsvi"])
def test_a_step_may_take_the_single_draw_of_algorithm_1(binary, method):
    X, y, exact = binary
    models = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for count in (None, 1, 10):
            options = {"method": method, "max_iter": 60, "num_draws": count, "random_state": 0}
            models.append(curvi.BayesianLogisticRegression(**options).fit(X, y))
    usual, single, ten = (model.coef_ for model in models)
    np.testing.assert_array_equal(usual, ten)
    assert not np.array_equal(single, ten)
    assert models[1].elbo_ <= exact.elbo_ + 1e-6


def test_irrelevant_features_are_switched_off(dtype):
    random = np.random.default_rng(8)
    X = random.normal(size=(300, 8)).astype(dtype)
    y = random.uniform(size=300) < special.expit(2 * X[:, 0] - 2 * X[:, 5])
    model = curvi.BayesianLogisticRegression(prior="ard", random_state=0).fit(X, y)
    assert model.converged_
    assert len(model.elbos_) == 4
    assert model.selected_[0, [0, 5]].all()
    assert 2 <= model.selected_.sum() < 8
    off = ~model.selected_ & (np.abs(model.coef_) < 0.5 * model.coef_sd_)
    assert off.sum() > 2
    assert np.abs(model.coef_[off]).max() < 1e-3
    assert model.coef_sd_[off].max() < 1e-3
    np.testing.assert_allclose(model.relevance_, model.coef_**2 + model.coef_sd_**2, rtol=1e-5)


def test_intervals_of_counts_cover_new_counts(dtype):
    random = np.random.default_rng(3)
    X = random.normal(size=(2000, 2)).astype(dtype)
    y = random.poisson(np.exp(1 + 0.5 * X[:, 0]))
    model = curvi.BayesianPoissonRegression().fit(X[:500], y[:500])
    low, high = model.predict_interval(X[500:], interval=0.8)
    assert 0.78 < np.mean((y[500:] >= low) & (y[500:] <= high)) < 0.92  # counts are discrete
    known = stats.poisson(model.predict(X[500:])).ppf(0.9)
    assert np.mean(np.abs(high - known) <= 1) > 0.99
    assert model.score(X, y) > 0.1


def test_intervals_of_responses_cover_new_responses(dtype):
    random = np.random.default_rng(3)
    X = random.normal(size=(2000, 2)).astype(dtype)
    y = 10 + 3 * X[:, 0] + 2 * random.normal(size=2000)
    model = curvi.BayesianLinearRegression().fit(X[:500], y[:500])
    low, high = model.predict_interval(X[500:])
    mean, sd = model.predict(X[500:], return_std=True)
    np.testing.assert_array_equal(mean, model.predict(X[500:]))
    np.testing.assert_allclose(high - low, 2 * special.ndtri(0.95) * sd, rtol=1e-5)
    assert 0.87 < np.mean((y[500:] >= low) & (y[500:] <= high)) < 0.93
    assert model.noise_sd_ == pytest.approx(2, rel=0.1)
    assert model.intercept_ == pytest.approx(10, abs=0.4)
    fixed = curvi.BayesianLinearRegression(noise_scale=3.0).fit(X[:500], y[:500])
    assert fixed.noise_sd_ == pytest.approx(3)
    with pytest.raises(curvi.InputError, match="interval is"):
        model.predict_interval(X, interval=1.0)


@pytest.mark.float64_only
@pytest.mark.parametrize("standardize", [False, True])
def test_a_column_of_zeros_is_switched_off_and_does_not_drift(standardize):
    rng = np.random.default_rng(5)
    X = (rng.random((400, 6)) < 0.3).astype(float)
    X[:, 4] = 0.0
    y = rng.logistic(size=400) < 2 * X[:, 0] - 1
    model = curvi.BayesianLogisticRegression(
        prior="ard", standardize=standardize, random_state=0
    ).fit(X, y)
    assert model.converged_
    assert abs(model.coef_[0, 4]) < 1e-6
    assert model.coef_sd_[0, 4] < 10
    assert not model.selected_[0, 4]


@pytest.mark.float64_only
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_the_sd_of_the_intercept_is_that_of_its_draws(covariance):
    rng = np.random.default_rng(6)
    X = rng.normal(loc=[3.0, -1.0], size=(80, 2))
    y = X @ [1.0, -2.0] + rng.normal(size=80)
    model = curvi.BayesianLinearRegression(covariance=covariance).fit(X, y)
    draws = model.sample(20_000).intercept
    assert model.intercept_sd_ == pytest.approx(draws.std(), rel=0.03)  # six standard errors


DRAWN = {
    "linear": (curvi.BayesianLinearRegression, 2.0, lambda rng, t: rng.normal(t)),
    "logistic": (
        curvi.BayesianLogisticRegression,
        0.2,
        lambda rng, t: rng.uniform(size=t.size) < special.expit(t),
    ),
    "poisson": (curvi.BayesianPoissonRegression, 0.1, lambda rng, t: rng.poisson(np.exp(t))),
}


@pytest.mark.float64_only
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("name", DRAWN)
def test_intervals_of_an_intercept_next_to_switched_off_features_cover_it(name, standardize):
    kind, intercept, draw = DRAWN[name]
    covered = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(80, 4))
        y = draw(rng, intercept + 0.4 * X[:, 0])
        model = kind(prior="ard", standardize=standardize, num_starts=1).fit(X, y)
        error = np.abs(model.intercept_ - intercept)
        covered += int(np.all(error < 1.96 * model.intercept_sd_))
    assert covered >= 33  # 38 are expected


PATHS = {
    "dense": {},
    "full": {"covariance": "full"},
    "low-rank": {"covariance": "low-rank", "rank": 1},
    "dsvi": {"method": "dsvi", "max_iter": 1000},
    "sparse": {},
    "blocks": {},
}


@pytest.mark.float64_only
@pytest.mark.parametrize("path", PATHS)
def test_every_way_to_fit_a_relevance_prior_leaves_the_intercept_on(path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = 5 + X[:, 0] + 2 * rng.normal(size=200)
    model = curvi.BayesianLinearRegression(
        prior="ard", num_starts=1, random_state=0, noise_scale=2.0, **PATHS[path]
    )
    if path == "blocks":
        model.fit_blocks([(X[:90], y[:90]), (X[90:], y[90:])])
    else:
        model.fit(sparse.csr_matrix(X) if path == "sparse" else X, y)
    assert model.intercept_sd_ == pytest.approx(2 / 200**0.5, rel=0.1)


@pytest.mark.float64_only
def test_intercepts_of_several_classes_are_left_on():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 2)), np.arange(90) % 3
    model = curvi.BayesianLogisticRegression(prior="ard", num_starts=1).fit(X, y)
    assert not model.selected_.all()
    assert model.intercept_sd_.min() > 0.1


@pytest.mark.float64_only
def test_a_large_intercept_is_not_shrunk_by_a_relevance_prior():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = 1000 + 30 * X[:, 0] + 10 * rng.normal(size=80)
    model = curvi.BayesianLinearRegression(prior="ard", standardize=False, random_state=0).fit(X, y)
    assert model.converged_
    assert abs(model.intercept_ - 1000) < 4 * model.intercept_sd_ < 8
    assert model.noise_sd_ == pytest.approx(10, rel=0.3)
