"""Columns that are easily meant otherwise: numbers as text, the response again, nested groups."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pandas as pd
import pytest

import curvi

from .tables import generator

pytestmark = pytest.mark.float64_only


@pytest.fixture
def frame(key):
    """Two hundred and forty rows in twenty groups, in five groups of groups."""
    rng = generator(key, 32)
    g, x = np.repeat(np.arange(20), 12), rng.normal(size=240)
    y = 1 + x + rng.normal(size=20)[g] + rng.normal(size=240)
    table = pd.DataFrame({"y": y, "x": x, "z": rng.normal(size=240), "g": g, "wide": g // 4})
    return table.assign(text=[f"{v:.3f}" for v in x], same=[f"s{v}" for v in g])


def both(table):
    """A table, and the same in parts."""
    return table, lambda: iter([table[:90], table[90:]])


def announced(formula, table):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        curvi.MixedModel(formula, num_points=64).fit(table)
    return [str(one.message) for one in caught if one.category is not curvi.MisfitWarning]


@pytest.mark.parametrize("formula", ["y ~ x + (text | g)", "y ~ text + (1 | g)"])
@pytest.mark.parametrize("kind", ["plain", "comma", "category", "spaces"])
def test_a_column_of_numbers_as_text_is_refused_at_once(frame, formula, kind):
    text = frame.text
    text = {"comma": text.str.replace(".", ","), "category": text.astype("category"),
            "spaces": " " + text + " "}.get(kind, text)  # fmt: skip
    for given in both(frame.assign(text=text)):
        start = time.monotonic()
        with pytest.raises(curvi.InputError, match=r"numbers as text.*pd.to_numeric.*C\(text\)"):
            curvi.MixedModel(formula).fit(given)
        assert time.monotonic() - start < 5


def test_a_few_numbers_as_text_are_announced_and_labels_are_not(frame):
    few = frame.assign(text=(frame.index % 3).astype(str), label=frame.index % 3)
    for formula in ("y ~ text + (1 | g)", "y ~ x + (1 + text | g)"):
        for given in both(few):
            assert sum("numbers as text" in said for said in announced(formula, given)) == 1
    assert announced("y ~ C(text) + (1 | g)", few) == []
    assert announced("y ~ text + (1 | g)", few.assign(text=few.label.astype("category"))) == []
    assert announced("y ~ x + (1 | text)", few) == []


def test_effects_that_would_take_hours_are_refused_with_what_to_do(frame):
    for bar in ("C(text) | g", "C(text) || g"):
        for given in both(frame):
            with pytest.raises(curvi.InputError, match=r"that would take hours.*\(1 \| group:"):
                curvi.MixedModel(f"y ~ x + ({bar})").fit(given)


@pytest.mark.parametrize("formula", ["y ~ z + (x | g)", "y ~ x + (1 | g)", "y ~ z*x + (1 | g)"])
@pytest.mark.parametrize("size", [1e-200, 1e-320, 1e200])
def test_sizes_beyond_double_precision_are_refused_in_bars_too(frame, formula, size):
    for given in both(frame.assign(x=size * frame.x)):
        with pytest.raises(curvi.InputError, match="beyond double precision"):
            curvi.MixedModel(formula).fit(given)


def test_arithmetic_that_fails_is_an_error_of_input(frame, monkeypatch):
    for error in (ZeroDivisionError("division"), np.linalg.LinAlgError("singular")):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr("curvi.mixed._inference._fit_standard", fail)
        with pytest.raises(curvi.InputError, match=f"cannot be computed.*{error}.*rescale"):
            curvi.MixedModel("y ~ x + (1 | g)").fit(frame)


@pytest.mark.parametrize(
    "formula",
    ["y ~ y + (1 | g)", "y ~ x + (1 | y)", "y ~ x + (y | g)", "y ~ log(y) + (1 | g)",
     "y ~ x:y + (1 | g)", "y ~ x + (1 | g/y)", "log(y) ~ I(y > 0) + (1 | g)",
     "y ~ x + offset(y) + (1 | g)", "proportion(y, n) ~ y + (1 | g)",
     "binary(y, 1) ~ y + (1 | g)", "y['1'] ~ x + (y | g)"],
)  # fmt: skip
def test_the_response_on_the_right_is_refused_by_name(frame, formula):
    with pytest.raises(curvi.InputError, match="has the response 'y' on the right"):
        curvi.MixedModel(formula).fit(frame)


def test_trials_may_be_a_predictor(frame):
    counts = frame.assign(n=5 + frame.g % 3, y=frame.g % 5)
    curvi.MixedModel("proportion(y, n) ~ log(n) + (1 | wide)", likelihood="binomial").design(counts)


@pytest.mark.parametrize(
    ("formula", "sentence"),
    [
        ("y ~ x + (1 + x + twice | g)", "'twice' in the groups of g is a combination of x"),
        ("y ~ x + (1 + x + twice || g)", "'twice' in the groups of g is a combination of x"),
        ("y ~ x + (1 + x + z + total | g)", "'total' in the groups of g is a combination of x, z"),
        ("y ~ same + (1 | g)", "same is a fixed effect, and tells the groups of g apart"),
        ("y ~ C(g) + (1 | g)", "g is a fixed effect and a group"),
        ("y ~ C(g) + (1 | wide)", "g is a fixed effect, and tells the groups of wide apart"),
        ("y ~ same:half + (1 | g)", "same:half is a fixed effect, and tells the groups of g"),
    ],
)
def test_what_the_rows_cannot_tell_apart_is_announced_once(frame, formula, sentence):
    more = frame.assign(twice=2 * frame.x, total=frame.x + frame.z, half=[*"ab"] * 120)
    for given in both(more):
        assert sum(sentence in said for said in announced(formula, given)) == 1


def test_coarser_fixed_effects_and_other_columns_are_not_announced(frame):
    for formula in ("y ~ C(wide) + (1 | g)", "y ~ g + (1 | g)", "y ~ x*z + (1 + x*z | g)",
                    "y ~ poly(x, 3) + (poly(x, 2) | g)"):  # fmt: skip
        assert announced(formula, frame) == []


def test_an_order_that_is_lost_is_announced_wherever_the_category_stands(frame):
    dtype = pd.CategoricalDtype(["low", "mid", "high"])
    table = frame.assign(c=pd.Series(np.resize(["low", "mid", "high"], 240), dtype=dtype))
    for formula in ("y ~ c + (1 | g)", "y ~ C(c) + (1 | g)", "y ~ x + (c | wide)",
                    "y ~ S(c) + (1 | g)"):  # fmt: skip
        assert sum("have no order" in said for said in announced(formula, table)) == 1
    table = table.assign(o=table.c.cat.as_ordered())
    for formula in ("y ~ C(c, Treatment('low')) + (1 | g)", "y ~ C(o) + o + (1 | c)"):
        assert not any("have no order" in said for said in announced(formula, table))


@pytest.mark.parametrize("name", ["x", "g", "y"])
@pytest.mark.parametrize("boxed", [False, True])
def test_complex_columns_are_refused_by_name(frame, name, boxed):
    values = frame[name] + 1j
    table = frame.assign(**{name: values.astype(object) if boxed else values})
    for given in both(table):
        for likelihood in ("gaussian", "poisson"):
            with pytest.raises(curvi.InputError, match=f"column '{name}' holds complex numbers"):
                curvi.MixedModel("y ~ x + (1 | g)", likelihood=likelihood).fit(given)
