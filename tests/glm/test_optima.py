"""Several optima of a relevance prior: how many starts, what is selected, what is averaged."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import special

import curvi
from curvi.glm._posterior import Posterior

MODELS = {
    "logistic": (
        curvi.BayesianLogisticRegression,
        lambda rng, t: rng.uniform(size=t.size) < special.expit(3 * t),
    ),
    "linear": (curvi.BayesianLinearRegression, lambda rng, t: 5 + t + rng.normal(size=t.size)),
    "poisson": (curvi.BayesianPoissonRegression, lambda rng, t: rng.poisson(np.exp(t))),
}


def twins(name, dtype, rows=100):
    """Pairs of columns that stand for each other, of which the first pair matters."""
    rng = np.random.default_rng(1)
    base = rng.normal(size=(rows, 2))
    X = np.column_stack([base, base + 0.1 * rng.normal(size=base.shape)]).astype(dtype)
    return X, MODELS[name][1](rng, base[:, 0])


def fitted(name, X, y, **options):
    model = MODELS[name][0](prior="ard", random_state=0, **({"num_starts": 8} | options))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    return model, [w for w in caught if w.category is curvi.MisfitWarning]


def optima_of(model):
    """An estimator for each of the optima alone, the best first."""
    fit, found = replace(model.result_, others=()), []
    for one in (fit, *model.result_.others):
        found.append(type(model)(**model.get_params()))
        vars(found[-1]).update(vars(model))
        found[-1].result_ = replace(fit, q=one.q, elbo=one.elbo, noise=one.noise)
        columns = model._posterior.columns
        found[-1]._posterior = Posterior.of(columns, fit.family, one.q)
    return found


@pytest.mark.float64_only
@pytest.mark.parametrize("seed", range(3))
def test_what_is_selected_is_the_support_but_for_chance(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(600, 30)) * np.exp(rng.normal(size=30))  # units do not matter
    t = (X / X.std(axis=0))[:, :4] @ [1.0, -1.0, 1.0, -1.0]
    y = rng.uniform(size=600) < special.expit(t)
    model, said = fitted("logistic", X, y, num_starts=None)
    assert not said
    assert len(model.elbos_) == 4  # which agree
    assert model.selected_[0, :4].all()
    assert model.selected_[0, 4:].sum() <= 4  # a z-value of about two: one of 26 is expected


@pytest.mark.float64_only
def test_a_coefficient_is_selected_where_the_bound_is_a_nat_lower_without_it():
    """With orthogonal columns and known noise the bound without a column is its own fit's."""
    rng = np.random.default_rng(0)
    X = np.linalg.qr(rng.normal(size=(100, 4)))[0] * 10
    y = X @ [0.30, 0.24, 0.18, 0.0] + np.linalg.qr(np.c_[X, rng.normal(size=100)])[0][:, 4] * 10
    options = {"num_starts": 1, "noise_scale": 1.0, "fit_intercept": False, "standardize": False}
    model, _ = fitted("linear", X, y, **options)
    for j in range(4):
        without, _ = fitted("linear", np.delete(X, j, axis=1), y, **options)
        z = 10 * X[:, j] @ y / 100
        expected = 0.5 * (z**2 - 1 - np.log(z**2)) if z**2 > 1 else 0.0
        assert model.elbo_ - without.elbo_ == pytest.approx(expected, abs=1e-3)
        assert model.selected_[j] == (expected > 1.0)
    assert model.selected_.tolist() == [True, True, False, False]


@pytest.mark.float64_only
@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_averages_over_the_optima_with_the_weights_of_their_bounds(name, tmp_path):
    X, y = twins(name, float)
    model, said = fitted(name, X, y)
    assert len(said) == 1
    assert "optima" in str(said[0].message)
    each = optima_of(model)
    elbos = np.array([one.result_.elbo for one in each])
    weights = np.exp(elbos - elbos[0]) / np.exp(elbos - elbos[0]).sum()
    np.testing.assert_allclose(weights[1:], [one.weight for one in model.result_.others])
    new = np.random.default_rng(2).normal(size=(20, 4))  # where twins differ
    predict = "predict_proba" if name == "logistic" else "predict"
    parts = np.array([getattr(one, predict)(new) for one in each])
    assert np.ptp(parts, axis=0).max() > 0.05
    expected = np.tensordot(weights, parts, 1)
    np.testing.assert_allclose(getattr(model, predict)(new), expected, rtol=1e-10)

    draws = model.sample(4000)
    coefs = draws.coef.reshape(4000, -1)
    means = np.array([np.ravel(one._slopes(one._posterior.mean)) for one in each])
    error = 5 * coefs.std(axis=0) / 4000**0.5
    assert np.all(np.abs(coefs.mean(axis=0) - weights @ means) < error + 1e-6)

    model.save(tmp_path / "model")
    again = curvi.load(tmp_path / "model")
    np.testing.assert_array_equal(getattr(again, predict)(new), getattr(model, predict)(new))
    np.testing.assert_array_equal(again.sample(5).coef, model.sample(5).coef)


@pytest.mark.parametrize("name", ["linear", "poisson"])
def test_intervals_are_quantiles_of_the_mixture(name, dtype):
    X, y = twins(name, dtype)
    model, _ = fitted(name, X, y)
    assert model.result_.others
    new = np.array([[1.5, 0.0, -1.5, 0.0]], dtype)
    low, high = model.predict_interval(new, interval=0.8)
    draws = model.sample(40_000)
    t = draws.coef @ new[0].astype(float) + draws.intercept
    rng = np.random.default_rng(0)
    found = rng.poisson(np.exp(t)) if name == "poisson" else rng.normal(t, model.noise_sd_)
    assert np.mean(found < low) == pytest.approx(0.1, abs=0.015 if name == "linear" else 0.1)
    assert np.mean(found <= high) == pytest.approx(0.9, abs=0.015 if name == "linear" else 0.08)
    if name == "linear":
        mean, sd = model.predict(new, return_std=True)
        assert mean[0] == pytest.approx(found.mean(), abs=5 * found.std() / 200)
        assert sd[0] == pytest.approx(found.std(), rel=0.02)


@pytest.mark.float64_only
def test_a_file_with_weights_that_are_no_shares_is_refused(tmp_path):
    model, _ = fitted("logistic", *twins("logistic", float))
    few = replace(model.result_.others[0], weight=1.5)
    model.result_ = replace(model.result_, others=(few,))
    model.save(tmp_path / "model")
    with pytest.raises(curvi.InputError, match="no shares"):
        curvi.load(tmp_path / "model")


@pytest.mark.float64_only
def test_a_wide_table_gets_tens_of_starts_and_the_order_of_its_columns_hardly_matters():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 60))
    y = rng.uniform(size=40) < special.expit(4 * X[:, 0])
    order = rng.permutation(60)
    new = rng.normal(size=(200, 60))
    model, _ = fitted("logistic", X, y, num_starts=None)
    again, _ = fitted("logistic", X, y, num_starts=None)
    moved, _ = fitted("logistic", X[:, order], y, num_starts=None)
    assert len(model.elbos_) == 30
    np.testing.assert_array_equal(model.predict_proba(new), again.predict_proba(new))
    assert model.selected_[0, 0]
    assert moved.elbo_ == pytest.approx(model.elbo_, abs=0.1)
    gap = moved.predict_proba(new[:, order]) - model.predict_proba(new)
    assert np.sqrt(np.mean(gap**2)) < 0.05


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.float64_only
@pytest.mark.parametrize("standardize", [False, True])
def test_few_genes_are_selected_and_probabilities_of_new_patients_are_of_use(data_dir, standardize):
    data = curvi.datasets.load("leukemia", download=False)
    (X, y), (new, truth) = data.train, data.test
    for seed in range(3):
        options = {"standardize": standardize, "random_state": seed}
        right = {}
        for starts in (1, None):
            model, _ = fitted("logistic", X, y, num_starts=starts, **options)
            proba = model.predict_proba(new)
            right[starts] = np.log(proba[np.arange(len(truth)), (truth > 0).astype(int)]).mean()
        assert right[None] > max(right[1], np.log(0.5))
        assert np.sum(model.predict(new) != truth) <= 5
        assert model.selected_.sum() < 10
        assert len(model.result_.others) > 1


@pytest.mark.float64_only
def test_a_softmax_with_several_optima_is_loaded_as_it_was_saved(tmp_path):
    rng = np.random.default_rng(2)
    base = rng.normal(size=(60, 2))
    X = np.column_stack([base, base + 0.05 * rng.normal(size=base.shape)])
    y = np.digitize(base[:, 0] + 0.2 * rng.normal(size=60), [-0.5, 0.5])
    model = curvi.BayesianLogisticRegression(prior="ard", num_starts=4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y).save(tmp_path / "model")
    again = curvi.load(tmp_path / "model")
    assert len(again.result_.others) == len(model.result_.others)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
