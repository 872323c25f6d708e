"""Regressions on hostile tables and options: a sentence, or the right answer."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import sparse, special
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import curvi
from curvi._core.errors import InputError, MemoryBudgetError
from tests.adversarial.outcomes import handled, refused, warned

pytestmark = pytest.mark.float64_only

MODELS = {
    "logistic": curvi.BayesianLogisticRegression,
    "linear": curvi.BayesianLinearRegression,
    "poisson": curvi.BayesianPoissonRegression,
}
X = np.random.default_rng(0).normal(size=(30, 2)) + np.array([0.5, 0.0])
Y = {
    "logistic": (X[:, 0] > 0.5 * X[:, 1]).astype(int),
    "linear": X @ [1.0, -2.0] + 0.1 * np.sin(np.arange(30.0)),
    "poisson": np.arange(30) % 5,
}
SIZES = [1e-300, 1e-170, 1e200, 1e300]


def same(one, other):
    return np.allclose(one, other, rtol=1e-6, atol=1e-9)


NUMBER = [-1, 0, np.nan, np.inf, True, "a", [1.0, 2.0], np.ones(2)]
SWITCH = [0, 1, "maybe", None, np.nan, np.ones(2)]
COUNT = [-1, 0, 2.5, True, "a", np.inf, np.ones(2)]
WRONG = {
    "prior": [None, "flat", 1, np.ones(2)],
    "covariance": [None, "dense", np.ones(2)],
    "method": [None, "adam", np.ones(2)],
    "prior_scale": [*NUMBER, None, 1e-200, 1e200],
    "intercept_prior_scale": [*NUMBER, 1e-200, 1e200],
    "tol": NUMBER,
    "fit_intercept": SWITCH,
    "standardize": SWITCH,
    "rank": COUNT,
    "num_starts": COUNT,
    "batch_size": COUNT,
    "max_iter": COUNT,
    "random_state": [-1, 2**70, "a", 1.5, True, np.random.default_rng(0)],
    "verbose": [-1, 0.5, "a", None, np.ones(2)],
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_option_is_named(name, option):
    for value in WRONG[option]:
        refused(lambda: MODELS[name](**{option: value}).fit(X, Y[name]), InputError, option)  # noqa: B023


def test_a_noise_that_cannot_be_squared_is_refused():
    for value in [*NUMBER, 1e-200, 1e200]:
        model = curvi.BayesianLinearRegression(noise_scale=value)
        refused(lambda: model.fit(X, Y["linear"]), InputError, "noise_scale")  # noqa: B023


ROWS = {
    "labels of several kinds": ("logistic", np.array(["a", 1, None] * 10, object), "several kinds"),
    "one class": ("logistic", np.zeros(30), "one class"),
    "dates": ("linear", np.array(["2020-01-01"] * 30, "datetime64[D]"), "datetime64"),
    "strings": ("linear", np.array(["a"] * 30), "numbers"),
    "negative counts": ("poisson", -np.arange(30), "negative"),
}


@pytest.mark.parametrize("case", ROWS)
def test_wrong_responses_are_refused(case):
    name, y, word = ROWS[case]
    refused(lambda: MODELS[name]().fit(X, y), InputError, word)


def test_blocks_with_labels_of_two_kinds_are_refused():
    y = Y["logistic"]
    blocks = [(X, y), (X, y.astype(str))]
    refused(lambda: MODELS["logistic"]().fit_blocks(blocks), InputError, "strings")


def test_weights_without_a_finite_sum_are_refused():
    weight = np.full(30, 1e308)
    fit = MODELS["logistic"]().fit
    refused(lambda: fit(X, Y["logistic"], weight), InputError, "sample_weight")


@pytest.mark.parametrize("table", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MODELS)
def test_the_unit_of_the_columns_changes_nothing(name, size, table):
    usual = MODELS[name]().fit(table(X), Y[name])
    model = handled(lambda: MODELS[name]().fit(table(size * X), Y[name]), lambda m: m.converged_)
    assert same(model.coef_ * size, usual.coef_)
    assert same(model.intercept_, usual.intercept_)
    assert same(model.predict(table(size * X)), usual.predict(table(X)))


@pytest.mark.parametrize("size", SIZES)
def test_the_unit_of_the_columns_changes_nothing_in_blocks(size):
    usual = MODELS["linear"]().fit(X, Y["linear"])
    blocks = [(size * X[:7], Y["linear"][:7]), (size * X[7:], Y["linear"][7:])]
    handled(
        lambda: MODELS["linear"]().fit_blocks(blocks), lambda m: same(m.coef_ * size, usual.coef_)
    )


@pytest.mark.parametrize("size", SIZES)
def test_the_unit_of_the_responses_changes_nothing(size):
    usual = MODELS["linear"]().fit(X, Y["linear"])
    model = handled(
        lambda: MODELS["linear"]().fit(X, size * Y["linear"]),
        lambda m: same(m.noise_sd_ / size, usual.noise_sd_),
    )
    assert same(model.coef_ / size, usual.coef_)
    ends = np.array(model.predict_interval(X[:3])) / size
    assert same(ends, usual.predict_interval(X[:3]))
    plain = MODELS["linear"](standardize=False)
    refused(lambda: plain.fit(X, size * Y["linear"]), InputError, "standardize")


@pytest.mark.parametrize("size", [1e-310, 1e-322])
def test_coefficients_beyond_the_largest_number_are_warned_about(size):
    warned(
        lambda: MODELS["linear"]().fit(size * X, Y["linear"]), ConvergenceWarning, "coef_", "units"
    )


@pytest.mark.parametrize("size", [1e-170, 1e200])
def test_relevances_beyond_the_range_of_numbers_are_warned_about(size):
    model = MODELS["linear"](prior="ard", num_starts=1)
    warned(lambda: model.fit(size * X, Y["linear"]), ConvergenceWarning, "relevance_")


@pytest.mark.parametrize("table", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("size", [1e160, 1e200, 1e307])
def test_probabilities_of_distant_rows_have_the_right_limit(size, table):
    # Far out, E[sigmoid(t)] is P(t > 0), which depends on the direction of the row alone.
    direction = np.array([[1.0, 0.2], [-1.0, 0.2]])
    far = table(np.vstack([size * direction, X[:1]]))
    model = MODELS["logistic"](covariance="diagonal").fit(X, Y["logistic"])
    slope, sd = direction @ model.coef_[0], np.sqrt(direction**2 @ model.coef_sd_[0] ** 2)
    right = [*special.ndtr(slope / sd), model.predict_proba(X[:1])[0, 1]]
    handled(lambda: model.predict_proba(far)[:, 1], lambda p: same(p, right))
    full = MODELS["logistic"](covariance="full").fit(X, Y["logistic"])
    less = full.predict_proba(np.vstack([1e20 * direction, X[:1]]))
    handled(lambda: full.predict_proba(far), lambda p: same(p, less))


def test_probabilities_of_several_classes_of_distant_rows_have_the_right_limit():
    model = MODELS["logistic"]().fit(X, np.arange(30) % 3)
    right = model.predict_proba([[1e20, 1e19]])
    handled(lambda: model.predict_proba([[1e200, 1e199]]), lambda p: same(p, right))


def test_predictions_beyond_the_largest_number_are_not_silent():
    far = np.array([[0.0, 0.0], [1.7e308, -1.7e308]])
    linear = MODELS["linear"]().fit(X, Y["linear"])
    refused(lambda: linear.predict(far), InputError, "row 1", "overflows")
    poisson = MODELS["poisson"]().fit(X, Y["poisson"])
    warned(lambda: poisson.predict(1e3 * X), RuntimeWarning, "infinite")
    warned(lambda: poisson.predict_interval(1e6 * X), RuntimeWarning, "infinite")


@pytest.mark.parametrize("name", MODELS)
def test_every_method_needs_a_fit(name):
    methods = {"sample": (3,), "plot_coefficients": (), "score": (X, Y[name])}
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        methods[method] = (X,)
    for method in ("predict_interval", *methods):
        if hasattr(MODELS[name], method):
            call = getattr(MODELS[name](), method)
            refused(lambda: call(*methods.get(method, (X,))), NotFittedError, "fit")  # noqa: B023


def test_what_would_not_fit_into_memory_is_refused_before_it_is_made():
    model = MODELS["logistic"]().fit(X, Y["logistic"])
    refused(lambda: model.sample(10**11), MemoryBudgetError, "sample")
    refused(lambda: model.sample(3, seed="a"), InputError, "seed")
    wide = sparse.random(30, 10**5, density=1e-4, format="csr", random_state=0)
    full = MODELS["logistic"](covariance="full")
    refused(lambda: full.fit(wide, Y["logistic"]), MemoryBudgetError, "low-rank")
    batches = MODELS["logistic"](method="hfsgvi", batch_size=10**9)
    refused(lambda: batches.fit(X, Y["logistic"]), InputError, "batch_size", "30 rows")


PROGRAM = """
import sys, numpy as np, curvi
random = np.random.default_rng(0)
X = random.normal(size=(3000, 20))
model = curvi.BayesianLinearRegression(covariance="full").fit(X, X[:, 0] + random.normal(size=3000))
sys.stdout.write(model.coef_.tobytes().hex() + model.coef_sd_.tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_a_full_covariance_does_not_depend_on_the_number_of_cores():
    cores = sorted(os.sched_getaffinity(0))

    def bits(count):
        chosen = f"import os; os.sched_setaffinity(0, {set(cores[:count])})\n"
        command = [sys.executable, "-c", chosen + PROGRAM]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    assert bits(1) == bits(len(cores))


def twin_columns(table, rows, likelihood):
    """Two columns correlated at 0.999, one on its own, and responses to the first."""
    rng = np.random.default_rng(0)
    twin, noise, other = rng.normal(size=(3, rows))
    responses = {
        "logistic": (0.3 * twin + rng.logistic(size=rows) > 0).astype(int),
        "linear": 0.3 * twin + rng.normal(size=rows),
        "poisson": rng.poisson(np.exp(0.3 * twin)),
    }
    return table(np.column_stack([twin, twin + 0.045 * noise, other])), responses[likelihood]


@pytest.mark.parametrize("table", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", MODELS)
def test_sds_too_small_under_a_diagonal_that_was_asked_for_are_warned_about(name, table):
    features, y = twin_columns(table, 3000, name)
    model = MODELS[name](covariance="diagonal")
    said = ("2 of 3 features are too small", "by a factor of", "covariance='full'")
    warned(lambda: model.fit(features, y), curvi.MisfitWarning, *said)


def test_a_low_rank_with_fewer_factors_than_correlations_is_warned_about():
    features, y = twin_columns(np.asarray, 3000, "linear")
    several = np.column_stack([features, np.roll(features, 1, axis=0)])
    model = MODELS["linear"](covariance="low-rank", rank=1)
    handled(lambda: model.fit(features, y), lambda m: m.result_.sd_ratios.max() < 1.1)
    said = ("2 of 6 features are too small", "by a factor of", "covariance='full'")
    warned(lambda: model.fit(several, y), curvi.MisfitWarning, *said)


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_of_a_long_table_shows_sds_that_are_too_small(name):
    features, y = twin_columns(np.asarray, 60_000, name)
    model = MODELS[name](covariance="diagonal")
    warned(lambda: model.fit(features, y), curvi.MisfitWarning, "by a factor of 2")


def test_a_rare_indicator_of_a_long_table_is_not_taken_for_a_correlated_column():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400_000, 2))
    features[:, 1] = np.arange(400_000) % 40_001 == 1  # never in each twentieth row
    y = features[:, 0] + rng.normal(size=400_000)
    model = MODELS["linear"](covariance="diagonal")
    handled(lambda: model.fit(features, y), lambda m: m.result_.sd_ratios.max() < 1.1)


@pytest.mark.parametrize("values", [[1j] * 12, [1.0] * 11 + [1j]])
@pytest.mark.parametrize("dtype", [object, complex])
def test_complex_numbers_in_a_table_are_refused_by_the_name_of_their_column(values, dtype):
    table = pd.DataFrame({"a": np.arange(12.0), "odd": np.array(values, dtype)})
    plain = table.assign(odd=np.arange(12.0) ** 2)
    for kind in (curvi.BayesianLinearRegression, curvi.BayesianLogisticRegression):
        y = np.arange(12) % 2
        refused(lambda kind=kind, y=y: kind().fit(table, y), curvi.InputError, "column 'odd' of X")
        model = kind().fit(plain, y)
        refused(lambda model=model: model.predict(table), curvi.InputError, "column 'odd' of X")
