"""Moving the zero of a column must not change a model with products of it, or be announced."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import curvi
from curvi.mixed._formula import evaluate, parse

from .tables import generator

pytestmark = pytest.mark.float64_only
ORIGINS = (8.0, 100.0, 2000.0)


@pytest.fixture
def frame(key):
    """Days, levels and a covariate, with intercepts and slopes that differ between groups."""
    rng = generator(key, 31)
    g, t = np.repeat(np.arange(12), 9), np.tile(np.arange(9.0), 12)
    x, h = rng.normal(size=108), np.array(list("pqr"))[np.arange(108) % 3]
    y = t + x + 3 * rng.normal(size=12)[g] + rng.normal(size=12)[g] * t + rng.normal(size=108)
    return pd.DataFrame({"y": y, "t": t, "x": x, "h": h, "g": [f"g{code}" for code in g]})


def fitted(formula, table, **options):
    """A model, and what it and the fit announce."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = curvi.MixedModel(formula, num_points=64, **options).fit(table)
    return model, " ".join(str(one.message) for one in caught)


def compare(one, other, frame, moved, names):
    """Slopes, sds and predictions that must be the same."""
    tables = [model.summary_table().set_index(["kind", "name"]) for model in (one, other)]
    kinds = [key for key in tables[0].index if key[1].removesuffix("|g") in names]
    assert {name.removesuffix("|g") for _, name in kinds} == set(names)
    mine, theirs = (found.loc[kinds].to_numpy(float) for found in tables)
    np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-4 * np.abs(mine).max())
    for group in ({}, {"g": "new"}):
        rows = [table.head(20).assign(**group) for table in (frame, moved)]
        mine, theirs = (m.predict(r, interval=0.9) for m, r in zip((one, other), rows, strict=True))
        np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-4 * np.abs(mine).max().max())
    assert other.log_evidence_ == pytest.approx(one.log_evidence_, rel=1e-6)


CLOSED = {
    "y ~ t*h + (1 + t | g)": ["t", "t:h[q]", "t:h[r]"],
    "y ~ t*x + (1 | g)": ["t", "t:x"],
    "y ~ t*x*h + (1 | g)": ["t", "t:x", "t:x:h[q]"],
    "y ~ t*h + (1 + t*h | g)": ["t", "t:h[q]", "t:h[r]"],
    "y ~ t + I(t**2) + (1 + t | g)": ["I(t ** 2)"],
    "y ~ poly(t, 2, raw=True)*h + (1 | g)": ["poly(t, 2, raw=True)[1]"],
    "y ~ 0 + h + h:t + (1 | g)": ["h[p]:t", "h[q]:t"],
    "y ~ S(h)*t + (1 | g)": ["t", "S(h)[p]:t"],
    "y ~ t*log(x + 9) + (0 + h + t:h | g)": ["t", "t:log(x + 9)", "t:h[p]"],
    "y ~ poly(t, 2)*h + (1 | g)": ["poly(t, 2)[0]", "poly(t, 2)[1]:h[q]"],
    "y ~ bs(t, df=4) + (1 + center(t) | g)": ["bs(t, df=4)[1]", "center(t)"],
}


@pytest.mark.parametrize("formula", CLOSED)
def test_the_zero_of_a_column_in_products_does_not_matter(frame, formula):
    one, _ = fitted(formula, frame)
    for origin in ORIGINS if formula.count("h") == 2 else ORIGINS[2:]:
        moved = frame.assign(t=frame.t + origin)
        other, said = fitted(formula, moved)
        assert "has its zero" not in said
        compare(one, other, frame, moved, CLOSED[formula])


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson"])
def test_nor_does_it_for_other_likelihoods_and_for_several_columns(frame, likelihood):
    known = frame.assign(y=(frame.y > frame.y.median()).astype(int))
    one, _ = fitted("y ~ t*x + (1 | g)", known, likelihood=likelihood)
    moved = known.assign(t=known.t + 2000, x=known.x - 50)
    other, _ = fitted("y ~ t*x + (1 | g)", moved, likelihood=likelihood)
    compare(one, other, known, moved, ["t:x"])


def test_a_table_in_parts_has_the_same_priors_of_products(frame, monkeypatch):
    moved = frame.assign(t=frame.t + 2000)
    whole, _ = fitted("y ~ t*h + (1 + t*x | g)", moved)
    for large in (False, True):
        if large:
            monkeypatch.setattr("curvi.mixed._design.LARGE_REST", 1)
            whole, _ = fitted("y ~ t*h + (1 + t*x | g)", moved)
        parts, _ = fitted(
            "y ~ t*h + (1 + t*x | g)", lambda: (moved[i : i + 31] for i in range(0, 108, 31))
        )
        compare(whole, parts, moved, moved, ["t", "t:h[q]", "t:x"])


OPEN = [
    ("y ~ 0 + t + (1 | g)", "the fixed effects depend"),
    ("y ~ 0 + t + (1 + t | g)", "the fixed effects depend"),
    ("y ~ t + (0 + t | g)", r"(0 + t | g) depend"),
    ("y ~ t*h + (1 + t:h | g)", r"(1 + t : h | g) depend"),
    ("y ~ t:h + (1 | g)", "the fixed effects depend"),
    ("y ~ I(t**2) + (1 | g)", "the fixed effects depend"),
    ("y ~ t:x + t + (1 | g)", "the fixed effects depend"),
    ("y ~ poly(t, 2, raw=True):h + (1 | g)", "the fixed effects depend"),
    ("y ~ t + (1 + t || g)", "far from its values"),
]


@pytest.mark.parametrize(("formula", "sentence"), OPEN)
def test_a_model_that_depends_on_a_zero_far_away_is_announced(frame, formula, sentence):
    moved = frame.assign(t=frame.t + 2000)
    assert fitted(formula, moved)[1].count("far from its values") == 1
    assert sentence in fitted(formula, moved)[1]
    if "poly" not in formula:  # which asks for all rows
        assert sentence in fitted(formula, lambda: iter([moved[:50], moved[50:]]))[1]
    assert "far from its values" not in fitted(formula, frame)[1]


def test_an_update_keeps_the_zeros_of_products(frame, tmp_path):
    model, _ = fitted("y ~ t*h + (1 + t*x | g)", frame[:80])
    first = model._memory.common.centres
    assert dict(first)["t"] == frame.t[:80].mean()
    model.save(tmp_path / "m")
    for one in (model, curvi.load(tmp_path / "m")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.partial_fit(frame[80:])
        assert one._memory.common.centres == first
    later, _ = fitted("y ~ t*h + (1 + t*x | g)", frame)
    assert np.all(np.abs(later.coef_ - model.coef_) < later.coef_sd_)


def test_draws_and_effects_of_groups_are_those_where_columns_are_zero(frame):
    moved = frame.assign(t=frame.t + 100)
    (one, _), (other, _) = (fitted("y ~ t*h + (1 + t | g)", rows) for rows in (frame, moved))
    draws = [model.sample_posterior(500) for model in (one, other)]
    columns = [model.design(rows)[0] for model, rows in ((one, frame), (other, moved))]
    assert columns[0].names == columns[1].names
    names = list(one.posterior_.names)
    h, th = names.index("h[q]"), names.index("t:h[q]")
    fixed = [draw["fixed"] for draw in draws]
    np.testing.assert_allclose(fixed[1][:, h] + 100 * fixed[1][:, th], fixed[0][:, h], atol=1e-6)
    levels = [draw["effects"][0] for draw in draws]
    line = levels[1][..., 0] + 100 * levels[1][..., 1]
    np.testing.assert_allclose(line.mean(0), levels[0][..., 0].mean(0), atol=0.5)
    np.testing.assert_allclose(
        other.log_likelihood(draws[1]).mean(), one.log_likelihood(draws[0]).mean(), rtol=0.01
    )


def test_columns_around_their_centres_are_the_columns_of_a_moved_table(frame):
    for formula in CLOSED:
        matrices = evaluate(parse(formula), frame)
        X, _, lefts = matrices.evaluate(frame)
        near = frame.assign(**{n: frame[n] - m for n, m in matrices.common.centres})
        moved = matrices.evaluate(near)[0]
        found = matrices.centred(X, lefts, frame)[0]
        # and combine the columns that are there
        combined = np.array(X)
        for other, place, weight in matrices.common.within:
            combined[:, place] += weight * X[:, other]
        np.testing.assert_allclose(found, combined, atol=1e-9)
        if "log" not in formula:
            np.testing.assert_allclose(found, moved, atol=1e-9)


@pytest.mark.parametrize("formula", ["y ~ t + I(t**2) + (1 | g)", "y ~ poly(t, 2) + (1 | g)"])
def test_a_power_far_from_zero_varies_by_what_its_column_does(frame, formula):
    frame["t"] = (frame["t"] - 4) / 4
    far = frame.assign(t=frame["t"] + 2.0**23)  # which rounds no value of t
    (near, _), (moved, said) = fitted(formula, frame), fitted(formula, far)
    assert "constant" not in said
    np.testing.assert_allclose(moved.coef_sd_[2], near.coef_sd_[2], rtol=1e-4)
    np.testing.assert_allclose(moved.predict(far), near.predict(frame), atol=0.5)


def test_a_power_of_which_rounding_leaves_nothing_is_refused_by_name(frame):
    far = frame.assign(t=frame["t"] / 8 + 2.0**30)
    evaluate(parse("y ~ t*x + (1 + t*x | g)"), far)  # x is near zero
    for formula in ("y ~ t + I(t**2) + (1 | g)", "y ~ x + (1 + t + I(t**2) | g)"):
        with pytest.raises(curvi.InputError, match=r"I\(t \*\* 2\).*center\(t\)"):
            evaluate(parse(formula), far)
