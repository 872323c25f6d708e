"""Columns of a formula: against formulae, independent of each other, and learned once."""

from __future__ import annotations

import contextlib
import io
import itertools
import random

import jax
import numpy as np
import pandas as pd
import pytest
from formulae import design_matrices
from formulae.environment import Environment

import curvi
from curvi.mixed import MixedModel
from curvi.mixed._expressions import NUMERIC
from curvi.mixed._formula import evaluate, parse

pytestmark = pytest.mark.float64_only


def table(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "y": rng.standard_normal(rows),
            "x": rng.standard_normal(rows),
            "z": rng.standard_normal(rows),
            "n": rng.integers(1, 9, rows),
            "odd name": rng.standard_normal(rows),
            "flag": rng.random(rows) < 0.5,
            "g": rng.permutation(np.resize(list("pqrs"), rows)).astype(object),
            "h": rng.permutation(np.resize(list("abc"), rows)).astype(object),
            "u": pd.Categorical(
                rng.permutation(np.resize(["low", "high", "mid"], rows)),
                categories=["low", "mid", "high"],
                ordered=True,
            ),
        }
    )


def by_formulae(right, frame):
    """Names and columns, offsets left out."""
    with contextlib.redirect_stdout(io.StringIO()):
        matrices = design_matrices(f"y ~ {right}", frame, env=Environment([{**NUMERIC}]))
    names, parts = [], []
    for term in matrices.common.terms.values():
        if term.kind != "offset":
            names += ["Intercept"] if term.kind == "intercept" else list(term.labels)
            parts.append(np.asarray(term.data, float).reshape(len(frame), -1))
    return names, np.column_stack(parts)


def ours(right, frame):
    matrices = evaluate(parse(f"y ~ {right} + (1 | g)"), frame)
    return matrices.common_columns(), matrices.evaluate(frame)[0]


SAME = (
    "x + z", "x * z", "0 + x", "x - 1", "h", "0 + h", "h * g", "h:g", "0 + h:g", "h:x", "x * h",
    "h * x * g", "x / h", "(x + z) / h", "(x + z + h)**2", "(h + g)**2 - h:g", "C(n)",
    "C(h, Treatment('b'))", "C(h, Sum)", "C(h, Sum('a'))", "S(h)", "0 + S(h)", "T(h, 'c')",
    "T(h, ref='b')", "I(x**2)", "{x + 1}", "I(x > 0)", "I(h == 'b')", "flag", "u", "0 + u + x",
    "poly(x, 3)", "poly(x, 3, raw=True)", "poly(x, degree=2)", "bs(x, df=5)",
    "0 + bs(x, df=4, degree=2, intercept=True)", "center(x)", "scale(x) * h", "standardize(x)",
    "log(abs(x)) + sqrt(n)", "offset(log(n)) + x", "`odd name` * h", "poly(center(x), 2):h",
    "I(x / 2 + z * 3)", "I(-x)",
)  # fmt: skip


@pytest.mark.parametrize("right", SAME)
def test_names_and_columns_are_those_of_formulae(right):
    frame = table()
    names, columns = by_formulae(right, frame)
    mine, found = ours(right, frame)
    assert mine == names
    assert np.allclose(found, columns, rtol=1e-9, atol=1e-9)


def spanned(terms, frame, constant):
    """Products of all indicators and numbers of every term: what a model of them can say."""
    parts = [np.ones((len(frame), int(constant)))]
    for term in terms:
        columns = np.ones((len(frame), 1))
        for name in term:
            values = frame[name]
            one = (
                values.to_numpy(float)[:, None]
                if values.dtype.kind == "f"
                else np.array([values == level for level in pd.unique(values)], float).T
            )
            columns = (columns[:, :, None] * one[:, None, :]).reshape(len(frame), -1)
        parts.append(columns)
    return np.column_stack(parts)


def test_columns_of_any_terms_are_independent_and_span_all_that_the_terms_say(key):
    rng = random.Random(int(jax.random.key_data(key)[-1]))  # noqa: S311  no secret
    frame = table(400)
    for _ in range(60):
        terms = [rng.sample("xzhgu", rng.randint(1, 3)) for _ in range(rng.randint(1, 4))]
        constant = rng.random() < 0.5
        right = " + ".join(["1" if constant else "0", *map(":".join, terms)])
        found, every = ours(right, frame)[1], spanned(terms, frame, constant)
        rank = np.linalg.matrix_rank(every)
        assert found.shape[1] == rank, right
        assert np.linalg.matrix_rank(np.column_stack([found, every])) == rank, right


def test_an_interaction_is_one_term_in_either_order():
    frame = table()
    once = ours("x + z + x:z + h:x", frame)
    twice = ours("x + z + x:z + z:x + h:x + x:h", frame)
    assert once[0] == twice[0]
    assert np.array_equal(once[1], twice[1])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-x**2", lambda x, z: -(x**2)),
        ("(-x)**2", lambda x, z: x**2),
        ("x - z - 1", lambda x, z: x - z - 1),
        ("x - (z - 1)", lambda x, z: x - (z - 1)),
        ("x / 2 / z", lambda x, z: x / 2 / z),
        ("x / (2 / z)", lambda x, z: x / (2 / z)),
        ("2 * x**-1", lambda x, z: 2 / x),
        ("x // 1 + z % 2", lambda x, z: x // 1 + z % 2),
        ("(x > z) * 3", lambda x, z: (x > z) * 3.0),
    ],
)
def test_arithmetic_is_that_of_python_and_is_written_so_that_it_reads_the_same(text, value):
    frame = table()
    names, found = ours(f"0 + I({text})", frame)
    expected = value(frame["x"].to_numpy(), frame["z"].to_numpy())
    assert np.allclose(found[:, 0], expected)
    assert np.array_equal(ours(f"0 + {names[0]}", frame)[1], found)  # its own name is a term


RIGHT = "poly(x, 2) + bs(z, df=4) + scale(n) * C(h, Sum) + u + offset(log(n)) + I(h == 'b'):x"


def test_what_was_learned_is_used_on_every_row_alone_and_after_loading(tmp_path):
    frame = table(80)
    model = MixedModel(f"center(y) ~ {RIGHT} + (1 + scale(x) | g)").fit(frame)
    model.save(tmp_path / "m")
    loaded = curvi.load(tmp_path / "m")
    whole = model.predict(frame)
    one_by_one = [loaded.predict(frame.iloc[[k]])[0] for k in range(0, 80, 7)]
    assert np.allclose(one_by_one, whole[::7], rtol=1e-12)
    assert loaded.score(frame.iloc[:20]) == pytest.approx(model.score(frame.iloc[:20]))
    y = frame["y"].to_numpy()[:20]
    errors = y - y.mean() - (model.predict(frame.iloc[:20]) - (y.mean() - frame["y"].mean()))
    assert loaded.score(frame.iloc[:20]) == pytest.approx(
        1 - errors @ errors / np.sum((y - y.mean()) ** 2)
    )


def test_the_text_of_a_formula_in_a_file_is_shown_and_computes_nothing(tmp_path):
    frame = table(80)
    model = MixedModel("y ~ poly(x, 2) + h + (1 | g)").fit(frame)
    expected = model.predict(frame)
    model.formula_ = "y ~ __import__('os').system('false') + (1 | g)"
    model.save(tmp_path / "m")
    loaded = curvi.load(tmp_path / "m")
    assert np.array_equal(loaded.predict(frame), expected)
    assert "__import__" in loaded.summary()
    with pytest.raises(curvi.InputError, match="has the name '__import__'"):
        loaded.partial_fit(frame)


@pytest.mark.parametrize(
    ("right", "words"),
    [
        ("log(h)", "text"), ("h + 1 - nothing", "not there"), ("I(3)", "name a column"),
        ("poly(h, 2)", "text"), ("bs(x, df=1)", "give 3 or more"), ("C(h, 'b')", "contrast"),
        ("T(h, 'q')", "no level 'q'"), ("poly(x, 2, 3, 4)", "3 at most"),
        ("log(x, z)", "1 at most"),
        ("poly(n, 20)", "different values"), ("I(h > 3)", "quotes"), ("offset(x):z", "added"),
        ("I(poly(x, 2) + 1)", "several columns"), ("I(C(h))", "is a term"),
        ("proportion(n, n)", "response"), ("x:(1 + z)", "beside the terms"),
        ("poly(x, degree=2, degree=3)", "argument"), ("log(x, base=2)", "argument"),
        ("C(h, Treatment(-'b'))", "number or a text"), ("bs(x, df=4, upper_bound='a')", "numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused_by_name(right, words):
    with pytest.raises(curvi.InputError, match=words):
        ours(right, table())


@pytest.mark.parametrize("trials", ["h", "'5'", "None"])
def test_trials_that_are_no_number_are_refused(trials):
    with pytest.raises(curvi.InputError, match="the number of trials is"):
        evaluate(parse(f"proportion(n, {trials}) ~ x + (1 | h)"), table())


def test_levels_that_were_not_seen_are_named():
    frame = table(80)
    model = MixedModel("y ~ h + C(n) + (1 | g)").fit(frame)
    for column, value in (("h", "new"), ("n", 99)):
        other = frame.head(3).assign(**{column: value})
        with pytest.raises(curvi.InputError, match=f"'{value}'"):
            model.predict(other)


def test_identifiers_of_many_digits_stay_apart():
    frame = table(60)
    frame["id"] = np.resize([2**60 + 1, 2**60 + 2, 2**60 + 3], 60)
    names, columns = ours("0 + C(id)", frame)
    assert len(names) == 3
    assert np.array_equal(columns.sum(axis=0), [20, 20, 20])


def test_a_crossing_of_many_levels_is_refused_before_it_is_made():
    frame = table(60)
    for name in "abc":
        frame[name] = [f"{name}{k}" for k in range(60)]
    with (
        curvi.memory_budget(10**6),
        pytest.raises(curvi.MemoryBudgetError, match="columns of a:b"),
    ):
        ours("a:b:c", frame)


def test_every_order_of_the_same_terms_spans_the_same():
    frame = table(200)
    ranks = {
        np.linalg.matrix_rank(ours(" + ".join(order), frame)[1])
        for order in itertools.permutations(["h", "h:g", "x", "h:x"])
    }
    assert len(ranks) == 1
