"""Tables as users have them: types that change between tables, large means, extreme columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import curvi
from curvi.latent import Mixture, Proposal, weigh, white_points
from curvi.likelihoods import Bernoulli, Binomial, likelihood_of
from curvi.mixed import MixedModel
from tests.mixed.tables import generator, table

pytestmark = pytest.mark.float64_only


def numbered(rng, **options):
    """A table whose groups are numbers."""
    frame = table(rng, groups=6, rows=8, **options)
    return frame.assign(g=frame["g"].str[-3:].astype(int))


def fit(formula, frame, **options):
    return MixedModel(formula, num_points=128, **options).fit(frame)


def test_a_missing_group_does_not_make_strangers_of_the_other_groups(key):
    frame = numbered(generator(key, 40))
    model = fit("y ~ x + (1 | g)", frame)
    gap = frame.assign(g=frame["g"].where(frame.index != 0))
    assert gap["g"].dtype.kind == "f"
    np.testing.assert_array_equal(model.predict(gap)[1:], model.predict(frame)[1:])


def test_a_score_does_not_depend_on_the_type_of_the_response(key):
    frame = numbered(generator(key, 41), likelihood="bernoulli")
    frame["y"] = np.where(np.arange(len(frame)) < 2, [0, 1] * (len(frame) // 2), frame["y"])
    model = fit("y ~ x + (1 | g)", frame.astype({"y": int}), likelihood="bernoulli")
    assert model.classes_ == ("0", "1")
    assert model.score(frame.astype({"y": float})) == model.score(frame.astype({"y": int}))
    with pytest.raises(curvi.InputError, match="fitted to 0 and 1"):
        model.score(frame.assign(y="maybe"))


@pytest.mark.parametrize("kind", ["category", object])
def test_groups_and_categories_that_are_numbers_survive_files_and_updates(key, kind, tmp_path):
    frame = numbered(generator(key, 42))
    frame["c"] = pd.Categorical(np.arange(len(frame)) % 3, categories=[2, 0, 1], ordered=True)
    frame["g"] = frame["g"].astype(kind)
    model = fit("y ~ x + c + (1 | g)", frame)
    model.save(tmp_path / "model")
    again = curvi.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    again.partial_fit(frame.head(5))
    assert len(again.group_effects_["g"]) == len(model.group_effects_["g"])
    assert again.feature_names_ == model.feature_names_ == ["Intercept", "x", "c[0]", "c[1]"]


def test_an_update_keeps_which_effects_are_correlated(key):
    rng = generator(key, 43)
    frame = numbered(rng, slope_sd=0.5).assign(b=lambda t: rng.integers(0, 4, len(t)))
    model = fit("y ~ x + (1 + x || b) + (1 + x | g)", frame)
    before = [(g.name, g.blocks) for g in model.posterior_.groupings]
    model.partial_fit(frame.head(4))
    assert [(g.name, g.blocks) for g in model.posterior_.groupings] == before


def test_a_large_mean_changes_the_intercept_and_nothing_else(key):
    frame = numbered(generator(key, 44))
    options = {"intercept_prior_scale": 1e9}
    near = fit("y ~ x + (1 | g)", frame, **options)
    far = fit("y ~ x + (1 | g)", frame.assign(y=frame["y"] + 1e7), **options)
    move = np.array([1e7, 0.0])
    np.testing.assert_allclose(far.coef_ - move, near.coef_, atol=1e-4)
    np.testing.assert_allclose(far.coef_sd_, near.coef_sd_, rtol=1e-8)


def test_the_prior_of_the_intercept_knows_the_offset(key):
    frame = numbered(generator(key, 45), likelihood="poisson").assign(size=1e6)
    model = fit("y ~ x + offset(log(size)) + (1 | g)", frame, likelihood="poisson")
    assert abs(model.coef_[0]) < model._scales[0]
    with pytest.raises(curvi.InputError, match="not finite"):
        model.predict(frame.assign(size=-1.0))


def test_binary_rows_have_their_exact_likelihood_however_far_the_predictor(key):
    rng = generator(key, 46)
    t = rng.uniform(-300, 300, (2, 20, 3))
    y, starts = rng.integers(0, 2, 20).astype(float), np.array([0, 9])
    extra = np.zeros((2, 1, 1, 0))
    found = Bernoulli().level_sums(t.copy(), y, np.ones(20), extra, starts)
    exact = Binomial().level_sums(t.copy(), y, np.ones(20), extra, starts)
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    assert np.all(found <= 0)


def test_successes_need_not_be_known_to_predict_and_trials_must_be_counts(key):
    frame = numbered(generator(key, 47), likelihood="binomial")
    model = fit("proportion(y, n) ~ x + (1 | g)", frame, likelihood="binomial")
    np.testing.assert_array_equal(model.predict(frame.assign(y=np.nan)), model.predict(frame))
    with pytest.raises(curvi.InputError, match="trials are nan"):
        model.predict(frame.assign(n=np.nan))


def test_looking_at_the_design_of_another_table_leaves_a_fitted_model_alone(key):
    frame = numbered(generator(key, 48))
    model = fit("y ~ x + (1 | g)", frame)
    before = model.log_likelihood(model.sample_posterior(5))
    model.design(frame.assign(y=-frame["y"]))
    np.testing.assert_array_equal(model.log_likelihood(model.sample_posterior(5)), before)


def test_the_rules_of_the_priors_are_those_of_the_likelihood():
    assert "2.5 sd(y) / sd(x)" in repr(MixedModel("y ~ x + (1 | g)"))
    assert "sd(y)" not in repr(MixedModel("y ~ x + (1 | g)", likelihood="poisson"))


def test_levels_that_read_alike_are_refused(key):
    frame = numbered(generator(key, 49))
    frame["a"] = np.where(frame.index % 2, "u:v", "u")
    frame["b"] = np.where(frame.index % 2, "w", "v:w")
    with pytest.raises(curvi.InputError, match="read alike"):
        fit("y ~ x + (1 | a:b)", frame)


def test_a_mixture_of_kernels_is_sampled_in_all_of_its_density(key):
    rng, size = generator(key, 50), 4
    wide = Proposal(np.zeros(size), 1.3 * np.eye(size), np.ones(size), np.ones(size))
    sds = []
    for seed in range(16):
        mixture = Mixture(wide, rng.standard_normal((64, size)), 0.5 * np.eye(size))
        points, log_q = mixture.at(white_points(1024, size, seed))
        weights = weigh(points, -0.5 * (points**2).sum(axis=1), log_q).weights
        sds.append(np.sqrt(weights @ (points - weights @ points) ** 2))
    # of a standard normal: components that see a slice of their density give 0.08
    assert np.sqrt(np.mean((np.array(sds) - 1) ** 2, axis=0)).max() < 0.04


@pytest.mark.parametrize(
    ("likelihood", "link"), [("bernoulli", "logit"), ("bernoulli", "probit"), ("poisson", "log")]
)
@pytest.mark.parametrize("sd", [0.5, 3.0])
def test_expected_responses_of_groups_that_differ_widely_are_integrals(likelihood, link, sd):
    kind = likelihood_of(likelihood, link)
    mean = np.array([[-3.0, 0.0, 2.0]])
    found = kind.expected_mean(mean, np.full((1, 3), sd**2), np.ones(3))
    x = np.linspace(-14, 14, 20001)[:, None]
    density = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    exact = np.trapezoid(kind.mean(mean + sd * x, np.ones(3)) * density, x, axis=0)
    np.testing.assert_allclose(found[0], exact, rtol=1e-4)


def test_a_large_mean_changes_nothing_else_in_a_sparse_system(key, monkeypatch):
    monkeypatch.setattr("curvi.mixed._design.LARGE_REST", 1)
    rng = generator(key, 51)
    a, b, x = rng.integers(0, 40, 300), rng.integers(0, 20, 300), rng.standard_normal(300)
    y = x + rng.standard_normal(40)[a] + rng.standard_normal(20)[b]
    frame = pd.DataFrame({"y": y + 0.8 * rng.standard_normal(300), "x": x, "a": a, "b": b})
    near, far = (
        fit("y ~ x + (1 | a) + (1 | b)", frame.assign(y=frame["y"] + m), intercept_prior_scale=1e9)
        for m in (0.0, 1e6)
    )
    assert far.converged_
    assert near.converged_
    np.testing.assert_allclose(far.coef_ - [1e6, 0.0], near.coef_, atol=1e-3)
