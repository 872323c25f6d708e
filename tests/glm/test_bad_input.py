"""Fifteen kinds of bad input, each rejected or handled correctly, in both precisions."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import DataConversionWarning

import curvi

DTYPES = (np.float32, np.float64)
ESTIMATORS = (
    curvi.BayesianLogisticRegression,
    curvi.BayesianPoissonRegression,
    curvi.BayesianLinearRegression,
)
pytestmark = pytest.mark.parametrize("kind", DTYPES)


def table(kind, rows=60):
    random = np.random.default_rng(5)
    X = random.normal(size=(rows, 3)).astype(kind)
    return X, (X[:, 0] + 0.5 * random.normal(size=rows) > 0).astype(int)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_what_is_not_finite_is_rejected(estimator, kind, bad, word):
    X, y = table(kind)
    X[17, 2] = bad
    with pytest.raises(ValueError, match=word):
        estimator().fit(X, y)
    X, y = table(kind)
    with pytest.raises(ValueError, match=word):
        estimator().fit(X, np.where(np.arange(60) == 3, bad, y))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_lengths_that_disagree_and_empty_tables_are_rejected(estimator, kind):
    X, y = table(kind)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        estimator().fit(X, y[:-1])
    with pytest.raises(ValueError, match="0 sample"):
        estimator().fit(X[:0], y[:0])
    with pytest.raises(ValueError, match="0 feature"):
        estimator().fit(X[:, :0], y)


def test_one_class_is_rejected(kind):
    X, y = table(kind)
    with pytest.raises(curvi.InputError, match="one class only"):
        curvi.BayesianLogisticRegression().fit(X, np.ones_like(y))
    with pytest.raises(curvi.InputError, match="one class only"):
        curvi.BayesianLogisticRegression().fit(X, y, sample_weight=y)


@pytest.mark.parametrize("labels", [(1, 2), (-1, 1), ("a", "b"), (False, True)])
def test_any_two_labels_give_the_same_model(kind, labels):
    X, y = table(kind)
    plain = curvi.BayesianLogisticRegression().fit(X, y)
    named = curvi.BayesianLogisticRegression().fit(X, np.asarray(labels)[y])
    np.testing.assert_array_equal(plain.coef_, named.coef_)
    assert set(named.predict(X)) == set(labels)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_column_of_responses_is_flattened_with_a_warning(estimator, kind):
    X, y = table(kind)
    with pytest.warns(DataConversionWarning):
        model = estimator().fit(X, y[:, None])
    np.testing.assert_array_equal(model.coef_, estimator().fit(X, y).coef_)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("factor", [1e6, 1e20, 1e-20])
def test_a_column_in_other_units_has_its_coefficient_in_those_units(estimator, kind, factor):
    X, y = table(kind)
    plain = estimator().fit(X, y)
    X[:, 1] *= factor
    scaled = estimator().fit(X, y)
    np.testing.assert_allclose(scaled.coef_.ravel()[1] * factor, plain.coef_.ravel()[1], rtol=2e-3)
    np.testing.assert_allclose(scaled.coef_.ravel()[::2], plain.coef_.ravel()[::2], rtol=2e-3)
    assert scaled.converged_


def test_columns_too_large_to_be_squared_are_rejected_unless_standardised(kind):
    X, y = table(kind)
    X[:, 1] *= 1e20 if kind == np.float32 else 1e160
    with pytest.raises(curvi.InputError, match="column 1 of X is too large"):
        curvi.BayesianLogisticRegression(standardize=False).fit(X, y)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_duplicate_column_shares_the_coefficient_and_a_constant_one_has_none(estimator, kind):
    X, y = table(kind)
    X = np.column_stack([X, X[:, 0], np.full(60, 7, kind)])
    model = estimator().fit(X, y)
    coef = model.coef_.ravel()
    assert model.converged_
    np.testing.assert_allclose(coef[0], coef[3], rtol=1e-3)
    assert abs(coef[4]) < 1e-4
    assert model.coef_sd_.ravel()[4] > 0.5 * model.coef_sd_.max()  # the prior's


@pytest.mark.parametrize("prior", ["normal", "ard"])
def test_separable_data_have_finite_coefficients(kind, prior):
    X, _ = table(kind)
    model = curvi.BayesianLogisticRegression(prior=prior, random_state=0).fit(X, X[:, 0] > 0)
    assert model.converged_
    assert np.isfinite(model.coef_).all()
    assert abs(model.coef_).max() < 100
    assert model.score(X, X[:, 0] > 0) > 0.95


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_objects_that_are_numbers_are_read_and_others_rejected(estimator, kind):
    X, y = table(kind)
    model = estimator().fit(X.astype(object), y)
    np.testing.assert_allclose(model.coef_, estimator().fit(X, y).coef_, rtol=1e-2, atol=1e-4)
    words = X.astype(object)
    words[0, 0] = "tall"
    with pytest.raises(ValueError, match="could not convert string"):
        estimator().fit(words, y)


def test_negative_counts_are_rejected(kind):
    X, y = table(kind)
    with pytest.raises(curvi.InputError, match=r"y\[4\] is -1.0; counts must not be negative"):
        curvi.BayesianPoissonRegression().fit(X, np.where(np.arange(60) == 4, -1, y))


def test_responses_without_noise_end_at_the_least_noise(kind):
    X, _ = table(kind)
    model = curvi.BayesianLinearRegression().fit(X, 2 * X[:, 0] - X[:, 1] + 3)
    np.testing.assert_allclose(model.coef_, [2, -1, 0], atol=1e-2)
    assert model.noise_sd_ < 0.01
    assert model.converged_


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"prior": "flat"}, "prior is 'flat'"),
        ({"prior_scale": 0.0}, "prior_scale is 0.0"),
        ({"covariance": "block"}, "covariance is 'block'"),
        ({"method": "adam"}, "method is 'adam'"),
        ({"num_starts": 0}, "num_starts is 0"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"batch_size": 10}, "batch_size needs a stochastic method"),
        ({"num_draws": 1}, "num_draws needs a stochastic method"),
        ({"num_draws": 0, "method": "hfsgvi"}, "num_draws"),
    ],
)
def test_parameters_out_of_range_are_rejected_by_name(kind, parameters, message):
    with pytest.raises(curvi.InputError, match=message):
        curvi.BayesianLogisticRegression(**parameters).fit(*table(kind))
