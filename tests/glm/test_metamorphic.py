"""What must not matter does not, and what must change changes as it should."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import curvi

ESTIMATORS = (
    curvi.BayesianLogisticRegression,
    curvi.BayesianPoissonRegression,
    curvi.BayesianLinearRegression,
)
CLASSES = pytest.mark.parametrize("classes", [2, 3])


def table(dtype, classes=2, rows=70):
    random = np.random.default_rng(11)
    X = random.normal(size=(rows, 3)) * [1, 2, 0.5] + [0, 1, -3]
    score = X[:, 0] + 0.7 * random.normal(size=rows)
    return X.astype(dtype), np.digitize(score, [0.0, 0.8][: classes - 1])


def close(first, second, dtype):
    tolerance = 1e-6 if dtype == np.float64 else 5e-3
    for name in ("coef_", "coef_sd_", "intercept_"):
        a, b = getattr(first, name), getattr(second, name)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)
    np.testing.assert_allclose(first.elbo_, second.elbo_, rtol=tolerance)


@CLASSES
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_row_twice_is_a_row_of_weight_two(estimator, classes, dtype):
    X, y = table(dtype, classes)
    weight = np.where(np.arange(70) % 3 == 0, 2, 1)
    doubled = np.repeat(np.arange(70), weight)
    weighted = estimator().fit(X, y, sample_weight=weight)
    close(weighted, estimator().fit(X[doubled], y[doubled]), dtype)


@CLASSES
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rows_of_weight_zero_change_nothing(estimator, classes, dtype):
    X, y = table(dtype, classes)
    weight = np.where(np.arange(70) < 60, 1, 0)
    X[60:] *= 1000
    kept = estimator().fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(kept.coef_, estimator().fit(X[:60], y[:60]).coef_)


@CLASSES
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_order_of_rows_and_columns_does_not_matter(estimator, classes, dtype):
    X, y = table(dtype, classes)
    random = np.random.default_rng(0)
    rows, columns = random.permutation(70), np.array([2, 0, 1])
    plain = estimator().fit(X, y)
    moved = estimator().fit(X[rows][:, columns], y[rows])
    moved.coef_ = moved.coef_[..., np.argsort(columns)]
    moved.coef_sd_ = moved.coef_sd_[..., np.argsort(columns)]
    close(plain, moved, dtype)


@pytest.mark.parametrize("prior", ["normal", "ard"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_scaled_and_shifted_column_has_a_scaled_coefficient(estimator, prior, dtype):
    X, y = table(dtype)
    plain = estimator(prior=prior, num_starts=1).fit(X, y)
    other = X.copy()
    other[:, 1] = 8 * other[:, 1] - 40
    scaled = estimator(prior=prior, num_starts=1).fit(other, y)
    np.testing.assert_allclose(scaled.predict(other), plain.predict(X), rtol=2e-3)
    factors = np.array([1, 8, 1])
    np.testing.assert_allclose(scaled.coef_ * factors, plain.coef_, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(scaled.elbo_, plain.elbo_, rtol=1e-4)


def test_swapped_labels_flip_every_sign(dtype):
    X, y = table(dtype)
    plain = curvi.BayesianLogisticRegression().fit(X, y)
    swapped = curvi.BayesianLogisticRegression().fit(X, 1 - y)
    swapped.coef_, swapped.intercept_ = -swapped.coef_, -swapped.intercept_
    close(plain, swapped, dtype)
    np.testing.assert_allclose(plain.predict_proba(X), swapped.predict_proba(X)[:, ::-1], atol=1e-4)


def test_responses_in_other_units_scale_the_linear_model(dtype):
    X, _ = table(dtype)
    y = X[:, 0] + 0.1 * X[:, 2] ** 2
    plain = curvi.BayesianLinearRegression().fit(X, y)
    scaled = curvi.BayesianLinearRegression().fit(X, 1000 * y + 5)
    np.testing.assert_allclose(scaled.coef_, 1000 * plain.coef_, rtol=1e-2, atol=1)
    np.testing.assert_allclose(scaled.noise_sd_, 1000 * plain.noise_sd_, rtol=1e-2)
    np.testing.assert_allclose(scaled.elbo_, plain.elbo_ - 70 * np.log(1000), rtol=1e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_sparse_table_gives_the_fit_of_the_dense_one(estimator, dtype):
    X, y = table(dtype)
    X = np.where(np.abs(X) > 1, X, 0).astype(dtype)
    dense = estimator().fit(X, y)
    thin = estimator().fit(sparse.csc_array(X), y)
    assert thin.converged_
    tolerance = 1e-5 if dtype == np.float64 else 1e-2
    np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        thin.predict(sparse.csr_array(X)), dense.predict(X), rtol=tolerance, atol=tolerance
    )


@pytest.mark.float64_only
def test_entries_of_a_sparse_table_that_share_a_place_are_summed_and_the_table_is_left_alone():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(40, 3))
    y = rng.logistic(size=40) < X[:, 0]
    halves = sparse.csr_array(
        (np.repeat(X.ravel() / 2, 2), np.tile([2, 2, 1, 1, 0, 0], 40), np.arange(0, 241, 6)),
        shape=(40, 3),
    )
    before = halves.indices.copy()
    split = curvi.BayesianLogisticRegression().fit(halves, y)
    np.testing.assert_array_equal(halves.indices, before)
    whole = curvi.BayesianLogisticRegression().fit(sparse.csr_array(X[:, ::-1]), y)
    np.testing.assert_allclose(split.coef_, whole.coef_, rtol=1e-6)
    np.testing.assert_allclose(split.coef_sd_, whole.coef_sd_, rtol=1e-6)
    np.testing.assert_allclose(split.predict_proba(halves), whole.predict_proba(X[:, ::-1]))


@pytest.mark.float64_only
def test_without_an_intercept_a_far_away_response_is_still_explained():
    rng = np.random.default_rng(9)
    X = np.abs(rng.normal(size=(200, 2))) + 5
    y = 1000 + rng.normal(size=200)
    model = curvi.BayesianLinearRegression(fit_intercept=False).fit(X, y)
    best = np.linalg.lstsq(X, y, rcond=None)[0]
    assert model.converged_
    np.testing.assert_allclose(model.predict(X), X @ best, rtol=0.02)
