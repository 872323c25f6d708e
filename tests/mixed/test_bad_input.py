"""Hostile tables and formulas: a clear sentence, or a treatment that the manual describes."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import curvi
from curvi.mixed import MixedModel
from curvi.mixed._checks import collinear
from curvi.mixed._report import cautions, khat_of
from tests.mixed.tables import table

pytestmark = pytest.mark.float64_only


@pytest.fixture
def frame():
    """A table without faults."""
    return table(np.random.default_rng(0), groups=8, rows=5)


def refused(frame, formula, sentence, **options):
    with pytest.raises(curvi.InputError, match=sentence):
        MixedModel(formula, **options).fit(frame)


@pytest.mark.parametrize(
    ("formula", "sentence"),
    [
        ("y", "0 signs ~"),
        ("y ~ x ~ g", "2 signs ~"),
        ("y ~ ", "nothing on the right"),
        ("y ~ x + (1 | g", "does not close"),
        ("y ~ x) + (1 | g)", "not open"),
        ("y ~ x | g", "parentheses of its own"),
        ("y ~ x (1 | g)", "join terms by"),
        ("y ~ (1 | g) x", "join terms by"),
        ("y ~ x * (1 | g)", "join terms by"),
        ("y ~ x + ( | g)", "a term is expected"),
        ("y ~ x + (1 | log(g))", "compute anything else beforehand"),
        ("y ~ x + (1 | g) + (1 | g)", "twice"),
        ("y ~ x", "no group term"),
        ("y ~ x + (0 | g)", "has no columns"),
        ("y ~ xx + (1 | g)", "no column 'xx'; did you mean 'x'"),
        ("y ~ x + (1 + log(nn) | g)", "no column 'nn'; did you mean 'n'"),
        ("y ~ 0 + (1 | g)", "neither an intercept"),
        ("y ~ x + (1 | gg)", "did you mean 'g'"),
        ("why ~ x + (1 | g)", "no column 'why'"),
        ("y ~ __import__('os') + (1 | g)", "underscore"),
        ("y ~ open(x) + (1 | g)", "calls 'open'"),
        ("y ~ log.__class__.mro() + (1 | g)", "underscore"),
        ("y ~ scale.get('np') + (1 | g)", "calls 'scale.get'"),
    ],
)
def test_a_formula_that_cannot_be_used_is_refused_with_the_reason(frame, formula, sentence):
    refused(frame, formula, sentence)


def test_a_refused_fit_leaves_the_earlier_one_as_it_was(frame):
    model = MixedModel("y ~ x + (1 | g)").fit(frame)
    before = model.predict(frame)
    with pytest.raises(curvi.InputError, match="no column 'zz'"):
        model.set_params(formula="y ~ zz + (1 | g)").fit(frame)
    with pytest.raises(curvi.InputError, match="is missing in row"):
        model.partial_fit(frame.assign(x=np.nan))
    np.testing.assert_array_equal(model.predict(frame), before)
    assert model.formula_ == "y ~ x + (1 | g)"


def test_an_interrupted_fit_leaves_the_earlier_one_as_it_was(frame, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    model = MixedModel("y ~ x + (1 | g)").fit(frame)
    before, text = model.predict(frame), model.summary()
    monkeypatch.setattr("curvi.mixed._report.cautions", interrupt)  # late, half of it is there
    with pytest.raises(KeyboardInterrupt):
        model.fit(frame.assign(y=2 * frame["y"]))
    np.testing.assert_array_equal(model.predict(frame), before)
    assert model.summary() == text


def test_missing_values_are_refused_with_their_column_and_row(frame):
    gap = frame.assign(g=frame["g"].where(frame.index != 7))
    refused(gap, "y ~ x + (1 | g)", "group column 'g' is missing in row 7")
    gap = frame.assign(x=frame["x"].where(frame.index != 3))
    refused(gap, "y ~ x + (1 | g)", "column 'x' is missing in row 3")
    refused(frame.assign(x=np.inf), "y ~ x + (1 | g)", "'x' is inf in row 0")
    refused(frame.iloc[:0], "y ~ x + (1 | g)", "no rows")


@pytest.mark.parametrize(
    ("likelihood", "values", "sentence"),
    [
        ("poisson", 0.5, "needs counts: whole numbers"),
        ("poisson", -1.0, "needs counts: whole numbers"),
        ("negative-binomial", 1.5, "needs counts: whole numbers"),
        ("bernoulli", 1.0, "needs two"),
        ("gaussian", 2.0, "nothing varies"),
        ("student-t", 2.0, "nothing varies"),
        ("binomial", 1.0, "proportion"),
    ],
)
def test_a_response_that_the_likelihood_cannot_give_is_refused(frame, likelihood, values, sentence):
    refused(frame.assign(y=values), "y ~ x + (1 | g)", sentence, likelihood=likelihood)


def test_more_successes_than_trials_are_refused(frame):
    bad = frame.assign(y=7, n=5)
    refused(bad, "proportion(y, n) ~ x + (1 | g)", "cannot be evaluated", likelihood="binomial")


def test_options_that_do_not_exist_are_refused(frame):
    refused(frame, "y ~ x + (1 | g)", "choose one of", likelihood="cauchy")
    refused(frame, "y ~ x + (1 | g)", "link is", link="logit")
    refused(frame, "y ~ x + (1 | g)", "prior_scale", prior_scale=-1.0)
    refused(frame, "y ~ x + (1 | g)", "at least 64", num_points=3)
    refused(np.zeros((3, 2)), "y ~ x + (1 | g)", "DataFrame or a dict")


@pytest.mark.parametrize(
    ("change", "formula", "sentence"),
    [
        ({"g": "one"}, "y ~ x + (1 | g)", "single level"),
        ({"z": 3.0}, "y ~ x + z + (1 | g)", "is constant"),
        ({}, "y ~ x + (1 + n | g)", "does not vary within"),
        ({"z": lambda f: 3 * f.x - 1}, "y ~ x + z + (1 | g)", "'z' is a combination of x"),
        ({"z": lambda f: f.x * 1e50}, "y ~ z + x + (1 | g)", "'x' is a combination of z"),
        ({"h": lambda f: "same " + f.g}, "y ~ x + (1 | g) + (1 | h)", "under two names"),
        ({}, "y ~ x + g + (1 | g)", "g is a fixed effect and a group"),
        ({"x": lambda f: f.x.round(0).astype(str)}, "y ~ x + (1 | g)", "numbers as text"),
        (
            {"c": lambda f: pd.Categorical(np.where(f.x > 0, "a", "b"), ["b", "a"])},
            "y ~ c + (1 | g)",
            "'a' is the first of them, not 'b'",
        ),
        (
            {f"w{i}": np.random.default_rng(i).normal(size=40) for i in range(41)},
            f"y ~ {' + '.join(f'w{i}' for i in range(41))} + (1 | g)",
            "42 fixed effects",
        ),
        ({"t": lambda f: 2000 + f.x}, "y ~ t + (1 + t || g)", "far from its values"),
        ({"t": lambda f: 2000 + f.x}, "y ~ t + (1 | g) + (0 + t | g)", "far from its values"),
    ],
)
def test_what_the_data_cannot_tell_is_announced_and_fitted(frame, change, formula, sentence):
    hostile = frame.assign(**change)
    for given in (hostile, lambda: iter([hostile[:13], hostile[13:]])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = MixedModel(formula, num_points=256).fit(given)
        assert [sentence in str(warning.message) for warning in caught].count(True) == 1
        assert model.converged_
        assert np.all(np.isfinite(model.coef_sd_))


def test_groups_and_columns_that_differ_are_not_announced(frame):
    other = frame.assign(z=frame.x**2, h=np.arange(len(frame)) % 8, t=frame.x + 4)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=curvi.MisfitWarning)  # of few points
        MixedModel("y ~ x + z + (1 | g) + (1 | h)", num_points=256).fit(other)
        MixedModel("y ~ C(h) + (1 + t || g)", num_points=256).fit(other)


@pytest.mark.parametrize("size", [1e200, 1e-200])
@pytest.mark.parametrize("name", ["y", "x"])
def test_numbers_whose_squares_are_beyond_double_precision_are_refused(frame, name, size):
    hostile = frame.assign(**{name: frame[name] * size})
    for given in (hostile, lambda: iter([hostile[:13], hostile[13:]])):
        refused(given, "y ~ x + (1 + x | g)", "beyond double precision; give it in another unit")


def test_an_offset_beside_which_the_response_is_lost_is_refused(frame):
    for likelihood, left in [("gaussian", "y"), ("binomial", "proportion(n, n)")]:
        refused(frame.assign(o=1e20 * frame.x), f"{left} ~ x + offset(o) + (1 | g)",
                "the offset has values of size", likelihood=likelihood)  # fmt: skip


def test_a_fixed_factor_beyond_the_memory_budget_is_refused_before_it_is_evaluated():
    rows = 20_000
    wide = pd.DataFrame({"y": np.arange(rows) % 7, "c": np.arange(rows) % 10_000, "g": 0})
    wide["g"] = np.arange(rows) % 50
    for c, term in [(wide.c.astype(str) + "x", "c"), (wide.c, "C(c)")]:
        with (
            curvi.memory_budget("2 GiB"),
            pytest.raises(curvi.MemoryBudgetError, match=r"\(1 \| c\)"),
        ):
            MixedModel(f"y ~ {term} + (1 | g)").fit(wide.assign(c=c))


@pytest.mark.filterwarnings("ignore")
def test_pareto_k_is_a_number_or_none_and_above_its_limit_the_fit_warns(frame, monkeypatch):
    for seed in range(3):
        rare = frame.assign(r=np.arange(len(frame)))
        model = MixedModel("y ~ x + (1 | g) + (1 | r)", num_points=64, random_state=seed).fit(rare)
        heavy = model.khat_ > 0.7 and model.relative_ess_ < 0.5
        assert heavy <= any("importance weights" in text for text in model.warnings_)
    monkeypatch.setattr("curvi.mixed._design.LARGE_REST", 1)
    assert MixedModel("y ~ x + (1 | g)").fit(frame).khat_ is None


@pytest.mark.parametrize(("heavy", "warned"), [(0.0, False), (20, False), (200, True)])
def test_heavy_tails_are_a_warning_unless_half_of_the_points_are_effective(frame, heavy, warned):
    posterior = MixedModel("y ~ x + (1 | g)", num_points=1024).fit(frame).posterior_
    rank = np.arange(1, 1025)  # of the largest weights, whose tail is that of a Pareto with k = 1
    weights = 1 + heavy / rank - 1e-4 * rank
    ratios, weights = np.log(weights), weights / weights.sum()
    share = 1 / (1024 * np.sum(weights**2))
    assert (khat_of(ratios) > 0.7) == (heavy > 0)
    assert (share < 0.5) == warned
    assert weights.max() < 0.044 or warned
    said = cautions(posterior, posterior.fixed(), np.ones(2) * 1e9, ratios, share)
    assert any("heavy tails (Pareto k" in text for text in said) == warned


def test_groups_that_are_seen_once_are_fitted(frame):
    single = frame.assign(g=np.arange(len(frame)))
    with pytest.warns(UserWarning, match="g has one row per level"):
        model = MixedModel("y ~ x + (1 | g)", num_points=256).fit(single)
    assert model.converged_
    assert len(model.group_effects_["g"]) == len(frame)


def test_perfect_separation_is_held_by_the_prior(frame):
    split = frame.assign(y=(frame["x"] > 0).astype(int))
    model = MixedModel("y ~ x + (1 | g)", likelihood="bernoulli", num_points=256).fit(split)
    assert model.converged_
    assert 0 < model.coef_[1] < 20
    assert model.score(split) == 1.0


def test_new_rows_without_a_column_or_with_a_new_category_are_refused(frame):
    model = MixedModel("y ~ x + c + (1 | g)", num_points=128).fit(
        frame.assign(c=np.where(frame["x"] > 0, "high", "low"))
    )
    with pytest.raises(curvi.InputError, match="no column 'c'"):
        model.predict(frame)
    with pytest.raises(curvi.InputError, match="new rows"):
        model.predict(frame.assign(c="middle"))
    with pytest.raises(curvi.InputError, match="no column 'g'"):
        model.predict(frame.drop(columns="g").assign(c="low"))
    with pytest.raises(curvi.InputError, match=r"interval is 1\.5"):
        model.predict(frame.assign(c="low"), interval=1.5)
    with pytest.raises(curvi.InputError, match="'x' holds text"):
        model.predict(frame.assign(c="low", x="a"))


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("y ~ f + (1 | g)", "3200 fixed effects"),
        ("y ~ a:b + (1 | g)", "3420 fixed effects"),
        ("y ~ 1 + (f | g)", "3200 effects per level of g"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_columns_that_would_take_hours_are_refused_before_any_is_computed(formula, said, whole):
    count = np.arange(6720)
    texts = {"f": count % 3200, "a": count % 60, "b": count % 56 + count // 3360, "g": count % 7}
    frame = pd.DataFrame({name: [f"l{code}" for code in codes] for name, codes in texts.items()})
    frame["y"] = 1.0 * (count % 11)
    refused(frame if whole else lambda: iter([frame]), formula, said)


def test_a_column_that_others_give_is_found_wherever_it_stands_among_many():
    rng = np.random.default_rng(0)
    for column in (1, 40, 119):
        X = rng.normal(size=(200, 120))
        assert collinear(X.T @ X) is None
        X[:, column] = X[:, 0] * 3 - X[:, column // 2] if column > 1 else 2 * X[:, 0]
        X[:, 77] = 0.0
        assert collinear(X.T @ X) == (column, sorted({0, column // 2}))
