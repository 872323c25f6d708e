"""The estimators keep the contract of scikit-learn."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import curvi
from tests.copies import WAYS

ESTIMATORS = (
    curvi.BayesianLogisticRegression,
    curvi.BayesianPoissonRegression,
    curvi.BayesianLinearRegression,
)


@pytest.mark.float64_only
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_check_estimator_passes_without_exceptions(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn fits nonsense on purpose
        results = check_estimator(estimator(), on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert sum(result["status"] == "skipped" for result in results) <= 1
    assert not any(result["expected_to_fail"] for result in results)


@pytest.mark.float64_only  # the other pass checks types, and marks have none
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_constructor_stores_what_it_is_given(estimator):
    names = [name for name in inspect.signature(estimator).parameters if name != "self"]
    marks = {name: object() for name in names}
    model = estimator(**marks)
    assert all(getattr(model, name) is mark for name, mark in marks.items())


def test_a_pipeline_with_a_grid_search_finds_a_scale(dtype):
    random = np.random.default_rng(0)
    X = random.normal(size=(80, 3)).astype(dtype)
    y = np.where(X[:, 0] + 0.3 * random.normal(size=80) > 0, "yes", "no")
    pipeline = make_pipeline(StandardScaler(), curvi.BayesianLogisticRegression())
    name = "bayesianlogisticregression__prior_scale"
    search = GridSearchCV(pipeline, {name: [0.01, 1.0]}, cv=3, scoring="neg_log_loss").fit(X, y)
    assert search.best_params_ == {name: 1.0}
    assert search.score(X, y) > -0.4


FITTED = {
    "logistic": lambda X, y: curvi.BayesianLogisticRegression(random_state=3).fit(X, y > 0),
    "softmax": lambda X, y: curvi.BayesianLogisticRegression().fit(X, np.digitize(y, [-1, 1])),
    "poisson": lambda X, y: curvi.BayesianPoissonRegression(prior="ard").fit(X, np.exp(y) // 1),
    "linear": lambda X, y: curvi.BayesianLinearRegression(prior="ard").fit(X, y),
    "blocks": lambda X, y: curvi.BayesianLinearRegression().fit_blocks(lambda: iter([(X, y)])),
}


@pytest.mark.parametrize("name", FITTED)
def test_a_fitted_model_survives_pickle_joblib_and_copying(name, dtype):
    random = np.random.default_rng(1)
    X = random.normal(size=(40, 2)).astype(dtype)
    y = 2 * X[:, 0] + random.normal(size=40).astype(dtype)
    model = FITTED[name](X, y)
    for restore in WAYS:
        restored = restore(model)
        for method in ("predict", "predict_proba", "decision_function", "predict_interval"):
            if hasattr(model, method):
                one, other = getattr(model, method)(X), getattr(restored, method)(X)
                np.testing.assert_array_equal(one, other, err_msg=method)
        assert vars(restored).keys() == vars(model).keys()
        np.testing.assert_array_equal(restored.coef_sd_, model.coef_sd_)
        assert restored.coef_.dtype == dtype
        for one, other in zip(restored.sample(3), model.sample(3), strict=True):
            np.testing.assert_array_equal(one, other)
        assert restored.result_.outcome is model.result_.outcome
        assert restored.result_.family == model.result_.family
        assert (restored.elbo_, restored.n_iter_) == (model.elbo_, model.n_iter_)
        assert restored.get_params() == model.get_params()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_clone_predicts_the_same(estimator, dtype):
    random = np.random.default_rng(1)
    X = random.normal(size=(40, 2)).astype(dtype)
    y = (X[:, 0] > 0).astype(int)
    model = estimator(random_state=3).fit(X, y)
    again = clone(model).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), again.predict(X))
    assert model.coef_.dtype == dtype
    # A classifier predicts labels, in the dtype that it was given.
    classifies = estimator is curvi.BayesianLogisticRegression
    assert again.predict(X).dtype == (y.dtype if classifies else dtype)


def test_names_of_pandas_columns_are_kept(dtype):
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame({"age": [1.0, 2, 3, 4], "dose": [0.0, 1, 0, 1]}).astype(str(dtype))
    model = curvi.BayesianPoissonRegression().fit(X, [1, 2, 3, 5])
    assert list(model.feature_names_in_) == ["age", "dose"]
    axes = model.plot_coefficients().axes
    assert [tick.get_text() for tick in axes[0].get_xticklabels()] == ["age", "dose"]
    assert axes[0].get_ylabel() == "estimated coefficient"


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_budget_of_one_step_warns_with_the_sentence(estimator):
    X = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.warns(Warning, match="raise max_iter") as caught:
        # A full covariance of a Gaussian likelihood begins at its optimum.
        model = estimator(max_iter=1, covariance="diagonal").fit(X, (X[:, 0] > 0).astype(int))
    assert [type(w.message).__name__ for w in caught] == ["ConvergenceWarning"]
    assert not model.converged_
