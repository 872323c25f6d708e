"""Where a column has its zero, and in which unit it is, must not change what a model finds."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import curvi

from .tables import generator

pytestmark = pytest.mark.float64_only
FORMULA = "y ~ x + z + (1 + x | g)"
PATHS = ("table", "parts", "large")


def grouped(key, likelihood):
    """Intercepts and slopes that differ, so that every sd is known to be positive."""
    rng = generator(key, 3)
    g, x = np.repeat(np.arange(15), 8), np.tile(np.arange(8.0), 15)
    z, noise = rng.normal(size=120), rng.logistic(size=120)
    t = (0.5 * x - 1.5) + 1.5 * rng.normal(size=15)[g] + 0.6 * rng.normal(size=15)[g] * (x - 3.5)
    y = t + z + 0.3 * noise if likelihood == "gaussian" else t + z + noise > 0
    return pd.DataFrame({"y": y, "x": x, "z": z, "g": [f"g{i:02d}" for i in g]})


def fitted(frame, likelihood, path, monkeypatch):
    if path == "large":
        monkeypatch.setattr("curvi.mixed._design.LARGE_REST", 1)
    table = (lambda: (frame[i : i + 31] for i in range(0, 120, 31))) if path == "parts" else frame
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few points
        return curvi.MixedModel(FORMULA, likelihood=likelihood, num_points=128).fit(table)


def group_sds(model):
    rows = model.summary_table()
    return dict(zip(rows["name"], rows["mean"], strict=True))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_slopes_and_predictions_do_not_depend_on_zero_and_unit_of_a_column(
    key, likelihood, path, monkeypatch
):
    frame = grouped(key, likelihood)
    one = fitted(frame, likelihood, path, monkeypatch)
    unseen = frame.assign(g="new")
    for zero, unit in [(2000.0, 1e-9)] if path == "large" else [(2000.0, 1.0), (-8.0, 1e40)]:
        moved = frame.assign(x=(frame.x + zero) * unit)
        other = fitted(moved, likelihood, path, monkeypatch)
        np.testing.assert_allclose(other.coef_[1:] * [unit, 1], one.coef_[1:], rtol=1e-5)
        np.testing.assert_allclose(other.coef_sd_[1:] * [unit, 1], one.coef_sd_[1:], rtol=1e-5)
        sds = group_sds(one)["x|g"], group_sds(other)["x|g"] * unit
        assert sds[0] == pytest.approx(sds[1], rel=1e-5)
        for name, factor in [("x", unit), ("x sd", unit)]:
            mine, theirs = (m.group_effects_["g"][name] for m in (one, other))
            np.testing.assert_allclose(theirs * factor, mine, rtol=1e-4, atol=1e-5)
        # the line of a group at the first day, wherever its zero is
        np.testing.assert_allclose(
            other.coef_[0] + other.coef_[1] * zero * unit, one.coef_[0], rtol=1e-5, atol=1e-5
        )
        for rows, again in ((frame, moved), (unseen, moved.assign(g="new"))):
            found = other.predict(again, interval=0.9)
            np.testing.assert_allclose(found, one.predict(rows, interval=0.9), rtol=1e-5, atol=1e-5)
        assert other.log_evidence_ == pytest.approx(one.log_evidence_, rel=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_the_unit_of_a_response_is_the_unit_of_every_effect(key, path, monkeypatch):
    frame = grouped(key, "gaussian")
    one = fitted(frame, "gaussian", path, monkeypatch)
    for unit in (1e-60, 1e30):
        other = fitted(frame.assign(y=frame.y * unit), "gaussian", path, monkeypatch)
        np.testing.assert_allclose(other.coef_ / unit, one.coef_, rtol=1e-5)
        mine, theirs = (m.group_effects_["g"] for m in (one, other))
        np.testing.assert_allclose(theirs / unit, mine, rtol=1e-4, atol=1e-5)
        assert other.log_evidence_ == pytest.approx(
            one.log_evidence_ - len(frame) * np.log(unit), rel=1e-6
        )


def test_sds_and_correlations_are_those_where_the_columns_are_zero(key, monkeypatch):
    frame = grouped(key, "gaussian")
    model = fitted(frame.assign(x=frame.x + 20), "gaussian", "table", monkeypatch)
    draws = model.sample_posterior(20_000)
    effects = draws["effects"][0]
    sds = effects.std(axis=1)
    correlation = [np.corrcoef(draw.T)[0, 1] for draw in effects[:2000]]
    # 15 levels of one draw give a noisy sd; its mean over draws is near that of the population
    found = group_sds(model)
    assert np.mean(sds[:, 0]) == pytest.approx(found["Intercept|g"], rel=0.25)
    assert np.mean(sds[:, 1]) == pytest.approx(found["x|g"], rel=0.25)
    assert found["Intercept,x|g"] < -0.9 > np.mean(correlation)


def test_uncorrelated_effects_are_so_where_the_column_is_zero(key, monkeypatch):
    monkeypatch.setattr("tests.mixed.test_invariance.FORMULA", "y ~ x + (1 + x || g)")
    one = fitted(grouped(key, "gaussian"), "gaussian", "table", monkeypatch)
    assert one.posterior_.layout.factors[0][0].origin == (0.0, 0.0)


def test_an_update_keeps_where_the_priors_were_stated(key):
    frame = grouped(key, "gaussian")
    model = curvi.MixedModel(FORMULA, num_points=128)
    first = model.fit(frame[:80])._memory
    assert dict(first.common.centres) == pytest.approx(frame[["x", "z"]][:80].mean().to_dict())
    both = model.partial_fit(frame[80:].assign(x=frame.x + 4))._memory
    assert [both.common.centres, both.lefts[0].centres] == [
        first.common.centres, first.lefts[0].centres,
    ]  # fmt: skip
