"""Reports of series and of deep Markov models."""

import json

import jax
import numpy as np
import pytest

import curvi

pytestmark = pytest.mark.float64_only


def series(likelihood):
    rng = np.random.default_rng(1)
    y = {
        "gaussian": np.cumsum(rng.normal(size=40)),
        "poisson": rng.poisson(6, size=40).astype(float),
        "bernoulli": (rng.random(40) < 0.4).astype(float),
        "volatility": rng.normal(size=40),
    }[likelihood]
    y[7] = np.nan
    return y


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson", "bernoulli", "volatility"])
def test_the_report_of_a_series_has_the_numbers_of_the_model(likelihood, tmp_path):
    model = curvi.StateSpace(likelihood=likelihood).fit(series(likelihood))
    page = model.report(tmp_path / "report.html", 5, title="Some <series>")
    assert "Some &lt;series&gt;" in page.read_text()
    told = json.loads((tmp_path / "report.json").read_text())
    parts = {part["id"]: part for part in told["tabs"]} if "tabs" in told else told
    text = json.dumps(parts)
    for mean, _ in model.hyperparameters_.values():
        assert json.dumps(mean) in text
    if likelihood != "volatility":
        assert json.dumps(float(model.forecast(5).mean[2]))[:12] in text


def test_regressors_of_the_future_are_needed_for_a_forecast_and_not_for_a_report(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    model = curvi.StateSpace().fit(X[:, 0] + rng.normal(size=30), X)
    assert "Regression coefficients" in model.report(tmp_path / "a.html").read_text()
    with pytest.raises(curvi.InputError, match="give X of shape"):
        model.report(tmp_path / "b.html", 3)
    assert "Next step" in model.report(tmp_path / "b.html", 3, X=np.ones((3, 2))).read_text()


@pytest.mark.slow
def test_the_report_of_a_deep_markov_model_compares_with_one_without_memory(tmp_path):
    tunes = [np.tile(np.eye(3), (n, 1)) for n in (2, 3, 4)] * 4
    model = curvi.DeepMarkovModel(2, 4, max_epochs=2, annealing=1)
    with jax.numpy_dtype_promotion("standard"):  # optax.adam multiplies floats by integers
        model.fit(tunes)
    assert "Samples" in model.report(tmp_path / "plain.html").read_text()
    text = model.report(tmp_path / "given.html", tunes).read_text()
    assert "\N{MINUS SIGN}1.91" in text  # three notes, each in a third of the steps
    with pytest.raises(curvi.InputError, match="3 is expected"):
        model.report(tmp_path / "other.html", [np.ones((4, 2))])
