"""The estimator: habits of scikit-learn, predictions, draws, files, figures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import curvi
from curvi.mixed import MixedModel
from tests.mixed.tables import generator, table

pytestmark = pytest.mark.float64_only


@pytest.fixture(scope="module")
def fitted():
    """Models that several tests read and none changes; the table is always the same."""
    rng = np.random.default_rng(3)
    frame = table(rng, slope_sd=0.5, groups=15, rows=8)
    normal = MixedModel("y ~ x + (1 + x | g)", num_points=256).fit(frame)
    binary = table(rng, likelihood="bernoulli", groups=15, rows=8)
    binary["y"] = np.where(binary["y"] > 0, "yes", "no")
    logistic = MixedModel("y ~ x + (1 | g)", likelihood="bernoulli", num_points=256).fit(binary)
    return {"gaussian": (normal, frame), "bernoulli": (logistic, binary)}


def test_a_model_shows_its_formula_likelihood_link_and_priors_before_it_is_fitted():
    text = repr(MixedModel("y ~ x + (1 | g)", likelihood="poisson", prior_scale=0.5))
    for part in ("y ~ x + (1 | g)", "poisson, log link", "N(0, 0.5^2)", "half-normal", "LKJ(2)"):
        assert part in text


def test_a_clone_has_the_same_parameters_and_is_not_fitted(fitted):
    model, _ = fitted["gaussian"]
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "posterior_")


def test_the_summary_has_priors_estimates_and_the_verdict(fitted):
    text = fitted["bernoulli"][0].summary()
    for part in ("P(y = yes)", "fixed effect x", "group sd Intercept|g", "15 levels of g"):
        assert part in text
    assert "Converged" in text


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_a_saved_model_predicts_the_same(fitted, kind, tmp_path):
    model, frame = fitted[kind]
    model.save(tmp_path / "model")
    again = curvi.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    pd.testing.assert_frame_equal(again.summary_table(), model.summary_table())
    assert again.get_params() == model.get_params()


def test_the_same_seed_gives_the_same_bits(fitted):
    model, frame = fitted["gaussian"]
    again = clone(model).fit(frame)
    np.testing.assert_array_equal(again.posterior_.rest, model.posterior_.rest)
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))


def test_the_order_of_rows_and_the_names_of_groups_change_nothing(fitted):
    model, frame = fitted["gaussian"]
    other = frame.sample(frac=1.0, random_state=0)
    other["g"] = other["g"].str.replace("level", "zone")
    again = clone(model).fit(other)
    np.testing.assert_allclose(again.coef_, model.coef_, rtol=1e-6)
    effects = model.group_effects_["g"].to_numpy()
    np.testing.assert_allclose(again.group_effects_["g"].to_numpy(), effects, rtol=1e-5, atol=1e-7)


def test_units_of_a_column_change_its_effect_and_nothing_else(fitted):
    model, frame = fitted["gaussian"]
    other = frame.assign(x=1000 * frame["x"])
    again = clone(model).fit(other)
    np.testing.assert_allclose(again.coef_ * [1, 1000], model.coef_, rtol=1e-5)
    np.testing.assert_allclose(again.predict(other), model.predict(frame), rtol=1e-5, atol=1e-6)


def test_an_array_with_groups_is_fitted_like_its_table(fitted):
    _, frame = fitted["gaussian"]
    X, g = frame[["x"]].to_numpy(), frame["g"].to_numpy()
    model = MixedModel(num_points=256).fit(X, frame["y"], groups={"g": g})
    same = MixedModel("y ~ x + (1 | g)", num_points=256).fit(frame)
    np.testing.assert_allclose(model.coef_, same.coef_, rtol=1e-9)


def test_new_groups_are_wider_than_known_ones_and_unknown_ones_lie_between_all(fitted):
    model, frame = fitted["gaussian"]
    row = frame.iloc[:1]
    rows = pd.concat([row, row.assign(g="never seen"), row.assign(g=None)])
    found = model.predict(rows, interval=0.9)
    width = (found["upper"] - found["lower"]).to_numpy()
    assert width[1] > 1.5 * width[0]
    assert width[2] > 1.5 * width[0]
    effects = model.group_effects_["g"]
    at = row["x"].iloc[0]
    everyone = model.coef_ @ [1, at] + (effects["Intercept"] + at * effects["x"]).mean()
    assert found["mean"].iloc[2] == pytest.approx(everyone, abs=1e-3)
    assert found["mean"].iloc[1] == pytest.approx(model.coef_ @ [1, at], abs=1e-3)


def test_intervals_of_responses_are_wider_than_those_of_their_expectation(fitted):
    model, frame = fitted["gaussian"]
    narrow, wide = (model.predict(frame, interval=0.9, kind=k) for k in ("mean", "response"))
    assert np.all(wide["upper"] - wide["lower"] > narrow["upper"] - narrow["lower"])
    inside = (frame["y"] > wide["lower"]) & (frame["y"] < wide["upper"])
    assert 0.8 < inside.mean() <= 1.0


def test_probabilities_are_means_over_draws(fitted):
    model, frame = fitted["bernoulli"]
    draws = model.sample_posterior(4000, seed=1)
    codes = model._rows(frame).codes[0]
    t = (
        draws["fixed"] @ np.stack([np.ones(len(frame)), frame["x"]])
        + draws["effects"][0][:, codes, 0]
    )
    # 4000 draws: a standard error of at most 0.5 / sqrt(4000) = 0.008
    np.testing.assert_allclose(model.predict(frame), (1 / (1 + np.exp(-t))).mean(axis=0), atol=0.03)
    assert 0.5 < model.score(frame) <= 1


def test_draws_have_the_moments_of_the_summary(fitted):
    model, _ = fitted["gaussian"]
    draws = model.sample_posterior(4000, seed=0)
    assert np.abs((draws["fixed"].mean(axis=0) - model.coef_) / model.coef_sd_).max() < 0.1
    effects = model.group_effects_["g"]
    mean, sd = draws["effects"][0].mean(axis=0), draws["effects"][0].std(axis=0)
    assert np.abs((mean[:, 0] - effects["Intercept"]) / effects["Intercept sd"]).max() < 0.12
    np.testing.assert_allclose(sd[:, 1], effects["x sd"], rtol=0.12)


def test_arviz_computes_leave_one_out_from_the_rows(fitted):
    import arviz

    model, frame = fitted["bernoulli"]
    data = model.to_arviz(500)
    assert data.log_likelihood["y"].shape == (1, 500, len(frame))
    loo = arviz.loo(data)
    elpd = getattr(loo, "elpd_loo", None)
    elpd = elpd if elpd is not None else loo.elpd
    oracle = model.log_likelihood(model.sample_posterior(500)).mean(axis=0).sum()
    assert elpd < 0
    assert abs(elpd - oracle) < 0.3 * len(frame)


def test_figures_are_drawn_for_effects_and_groups(fitted):
    model, _ = fitted["gaussian"]
    assert len(model.plot_effects().axes) == 4
    assert len(model.plot_groups().axes) == 2
    with pytest.raises(curvi.InputError, match="factor"):
        model.plot_groups("h")


@pytest.mark.parametrize(
    ("likelihood", "left"),
    [
        ("binomial", "proportion(y, n)"),
        ("poisson", "y"),
        ("negative-binomial", "y"),
        ("student-t", "y"),
    ],
)
def test_every_likelihood_is_fitted_with_a_good_verdict(key, likelihood, left):
    frame = table(generator(key), likelihood=likelihood, groups=25, rows=8)
    model = MixedModel(f"{left} ~ x + (1 | g)", likelihood=likelihood, num_points=256).fit(frame)
    assert model.converged_
    # five sds: no seed in a million
    assert abs(model.coef_[1] - 0.5) < 5 * model.coef_sd_[1] + 0.02
    assert np.all(np.isfinite(model.predict(frame, interval=0.5).to_numpy()))


def test_offsets_transformations_and_nested_groups_are_understood(key):
    rng = generator(key)
    frame = table(rng, likelihood="poisson", groups=24, rows=5)
    frame["school"] = frame["g"].str[-2:].astype(int) // 4
    frame["time"] = rng.integers(1, 9, len(frame))
    model = MixedModel(
        "y ~ scale(x) + offset(log(time)) + (1 | school/g)", likelihood="poisson", num_points=256
    ).fit(frame)
    assert set(model.group_effects_) == {"school", "school:g"}
    assert len(model.group_effects_["school:g"]) == 24
    twice = frame.assign(time=2 * frame["time"])
    np.testing.assert_allclose(model.predict(twice), 2 * model.predict(frame), rtol=1e-9)


def test_correlated_and_uncorrelated_slopes_are_told_apart(fitted):
    _, frame = fitted["gaussian"]
    apart = MixedModel("y ~ x + (1 + x || g)", num_points=128).fit(frame)
    assert "correlation" not in set(apart.summary_table()["kind"])
    together = fitted["gaussian"][0]
    assert "correlation" in set(together.summary_table()["kind"])


def test_updating_with_new_rows_gives_the_posterior_of_all_rows(fitted):
    _, frame = fitted["gaussian"]
    order = np.random.default_rng(0).permutation(len(frame))
    half = np.argsort(order) < 80
    # both halves have one mean: the prior is stated at that of the first
    frame = frame.assign(x=frame.x - frame.x.groupby(half).transform("mean"))
    first, second = frame.iloc[order[:80]], frame.iloc[order[80:]]
    options = {"prior_scale": 2.0, "intercept_prior_scale": 3.0, "group_sd_scale": 2.0}
    model = MixedModel("y ~ x + (1 | g)", noise_scale=1.0, num_points=512, **options)
    whole = clone(model).fit(frame)
    model.fit(first)
    before = model.coef_sd_[1]
    model.partial_fit(second)
    assert model.n_rows_ == len(frame)
    assert model.coef_sd_[1] < before
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-6)
    np.testing.assert_allclose(model.log_evidence_, whole.log_evidence_, atol=1e-6)


def test_an_update_keeps_the_priors_of_the_first_fit(fitted):
    _, frame = fitted["gaussian"]
    model = MixedModel("y ~ x + (1 | g)", num_points=128).fit(frame.iloc[:60])
    priors = model._priors()
    model.partial_fit(frame.iloc[60:].assign(y=lambda t: 100 * t["y"]))
    assert model._priors() == priors


@pytest.mark.parametrize("seed", range(3))
def test_a_report_does_not_blame_a_right_model_of_crossed_labels(seed, tmp_path):
    """Posterior means have seen the rows: in bins by them five shares of ten are off."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"p": np.repeat(np.arange(316), 24), "i": np.tile(np.arange(24), 316)})
    t = 1.4 * rng.normal(size=316)[table.p] + rng.normal(size=24)[table.i] - 0.2
    table["y"] = (rng.random(len(table)) < 1 / (1 + np.exp(-t))).astype(int)
    model = curvi.MixedModel(
        "y ~ 1 + (1 | p) + (1 | i)", likelihood="bernoulli", num_points=64
    ).fit(table)
    page = model.report(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "does not describe these data" not in page
