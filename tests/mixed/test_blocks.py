"""A Gaussian model of a table in parts: the fit of the whole table, without its rows."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest

import curvi
from curvi.likelihoods import likelihood_of
from curvi.mixed._blocks import learn
from curvi.mixed._formula import parse
from curvi.mixed._standard import standardised
from curvi.mixed._sums import sums_of
from curvi.mixed._table import Scales

from .test_numerics import generator

pytestmark = pytest.mark.float64_only
FORMULAS = (
    "y ~ x + kind + (1 | g)",
    "y ~ scale(x) + C(year) + kind + offset(z) + (1 + x || g) + (1 | s)",
)


@pytest.fixture
def frame(key):
    rng = generator(key)
    g, s, n = np.sort(rng.integers(0, 20, 300)), rng.integers(0, 6, 300), 300
    table = {
        "x": rng.normal(3, 2, n),
        "year": rng.integers(2000, 2004, n),
        "z": rng.normal(size=n),
        "kind": np.where(np.arange(n) > 250, "late", rng.choice(["a", "b"], n)),  # in the end alone
        "g": [f"g{i:02d}" for i in g],
        "s": s,
    }
    y = 100 + (1 + rng.normal(size=20)[g]) * table["x"]  # every sd is known to be positive
    y = y + 3 * rng.normal(size=20)[g] + 2 * rng.normal(size=6)[s]
    return pd.DataFrame({**table, "y": y + table["z"] + 0.5 * rng.normal(size=n)})


def parts_of(frame, size):
    return lambda: (frame[i : i + size] for i in range(0, len(frame), size))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("large", [False, True])
def test_parts_of_any_size_give_the_fit_of_the_whole_table(frame, monkeypatch, formula, large):
    if large:
        monkeypatch.setattr("curvi.mixed._design.LARGE_REST", 1)
        monkeypatch.setattr("curvi.mixed._large.part_of.__defaults__", (None, 120))
    whole = curvi.MixedModel(formula, num_points=64).fit(frame)
    for size in (17, 299):
        found = curvi.MixedModel(formula, num_points=64).fit(parts_of(frame, size))
        assert found.feature_names_ == whole.feature_names_
        assert found.n_rows_ == 300
        np.testing.assert_allclose(found._scales, whole._scales, rtol=1e-12)
        np.testing.assert_allclose(found.coef_, whole.coef_, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.coef_sd_, whole.coef_sd_, rtol=1e-7)
        assert found.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-8)
        for name, effects in whole.group_effects_.items():
            assert list(found.group_effects_[name].index) == list(effects.index)
            np.testing.assert_allclose(found.group_effects_[name], effects, atol=1e-7)
        np.testing.assert_allclose(found.predict(frame), whole.predict(frame), rtol=1e-8)


def test_sums_of_parts_are_those_of_the_table(frame):
    formula = "y ~ 0 + kind + center(x) + (1 + x | g/s)"
    design, layout = curvi.MixedModel(formula).design(frame)
    expected = sums_of(standardised(design, layout)[0])  # the coordinates of a fit
    for size in (7, 40, 300):
        found = learn(
            parse(formula), parts_of(frame, size), likelihood_of("gaussian", None), Scales()
        )
        pairs = [(found.summed.sums.gram.toarray(), expected.gram.toarray()),
                 (found.summed.sums.target, expected.target)]  # fmt: skip
        for mine, theirs in pairs:
            np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-11 * np.abs(theirs).max())
        assert found.summed.sums.square == pytest.approx(expected.square, rel=1e-12)
        np.testing.assert_allclose(found.design.scales, design.scales, rtol=1e-11)
        for mine, theirs in zip(found.layout.factors, layout.factors, strict=True):
            assert [b.columns for b in mine] == [b.columns for b in theirs]
            for one, other in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(one.scales, other.scales, rtol=1e-11)


def test_the_same_warnings_and_refusals(frame):
    constant = frame.assign(w=frame.g.str[1:].astype(float), one=2.0)
    said = []
    for table in (constant, parts_of(constant, 50)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            curvi.MixedModel("y ~ one + (1 + w | g)", num_points=64).fit(table)
        said.append({str(w.message) for w in caught if "alone" in str(w.message)})
    assert said[0] == said[1]
    assert len(said[0]) >= 2
    model = curvi.MixedModel("y ~ x + (1 | g)")
    for name, value, text in [
        ("x", np.nan, "is missing"),
        ("y", np.inf, "is inf"),
        ("x", np.inf, "is inf"),
    ]:
        bad = frame.copy()
        bad.loc[123, name] = value
        for table in (bad, parts_of(bad, 50)):
            with pytest.raises(curvi.InputError, match=f"{name}' {text} in row 123"):
                model.fit(table)
    with pytest.raises(curvi.InputError, match="in every row"):
        model.fit(parts_of(frame.assign(y=1.0), 50))
    with pytest.raises(curvi.InputError, match="no column 'nope'"):
        curvi.MixedModel("y ~ nope + (1 | g)").fit(parts_of(frame, 50))
    with pytest.raises(curvi.InputError, match="all rows at once"):
        curvi.MixedModel("y ~ poly(x, 2) + (1 | g)").fit(parts_of(frame, 50))
    with pytest.raises(curvi.InputError, match=r"curvi\.io\.frames"):
        model.fit(curvi.io.RowBlocks(lambda: iter([(np.ones((3, 2)), np.ones(3))])))
    shorter = iter([frame, frame[:200]])
    with pytest.raises(curvi.InputError, match="second pass"):
        model.fit(lambda: iter([next(shorter)]))


@pytest.mark.filterwarnings("ignore")
def test_what_needs_rows_says_that_they_are_gone(frame, tmp_path):
    model = curvi.MixedModel(FORMULAS[1], num_points=64).fit(parts_of(frame, 60))
    model.save(tmp_path / "m.curvi")
    again = curvi.load(tmp_path / "m.curvi")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    for one in (model, again):
        with pytest.raises(curvi.InputError, match="rows are not kept"):
            one.partial_fit(frame)
        with pytest.raises(curvi.InputError, match="rows are not kept"):
            one.log_likelihood(one.sample_posterior(10))
    assert "came in parts" in model.report(tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_knows_its_rows(frame, tmp_path):
    model = curvi.MixedModel(FORMULAS[0], num_points=64)
    path = tmp_path / "run"
    once = model.fit(parts_of(frame, 60), checkpoint=path).coef_
    np.testing.assert_array_equal(model.fit(parts_of(frame, 60), checkpoint=path).coef_, once)
    with pytest.raises(curvi.InputError, match="data"):
        model.fit(parts_of(frame.assign(x=frame.x[::-1].to_numpy()), 60), checkpoint=path)


def test_memory_is_that_of_a_part_and_not_of_all_rows():
    def parts(count):
        def source():
            for index in range(count):
                rng = np.random.default_rng(index)
                x, g = rng.normal(size=(2000, 8)), rng.integers(0, 30, 2000)
                columns = {f"x{i}": x[:, i] for i in range(8)}
                yield pd.DataFrame({**columns, "g": g, "y": x[:, 0] + rng.normal(size=2000)})

        return source

    formula = parse("y ~ " + " + ".join(f"x{i}" for i in range(8)) + " + (1 | g)")
    peaks = []
    for count in (2, 2, 20):  # the first imports and warms up
        tracemalloc.start()
        found = learn(formula, parts(count), likelihood_of("gaussian", None), Scales())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found.summed.sums.rows == 2000 * count
    assert peaks[2] < 1.2 * peaks[1]  # all rows alone would be twenty times 160 kB


@pytest.mark.filterwarnings("ignore")
def test_a_model_on_a_design_of_points_resumes_to_the_same_bits(key, monkeypatch, tmp_path):
    rng = generator(key)
    g, h, x = rng.integers(0, 40, 400), rng.integers(0, 15, 400), rng.normal(size=400)
    rate = np.exp(0.3 * x + 0.5 * rng.normal(size=40)[g] + 0.4 * rng.normal(size=15)[h])
    table = pd.DataFrame({"y": rng.poisson(rate), "x": x, "g": g, "h": h})
    monkeypatch.setattr("curvi.mixed._design.LARGE_REST", 1)
    monkeypatch.setattr("curvi.mixed._large.part_of.__defaults__", (None, 150))
    model = curvi.MixedModel("y ~ x + (1 | g) + (1 | h)", likelihood="poisson")
    once = model.fit(table).posterior_
    for _ in range(2):
        again = model.fit(table, checkpoint=tmp_path / "run").posterior_
        np.testing.assert_array_equal(again.rest, once.rest)
        np.testing.assert_array_equal(again.level_mean, once.level_mean)
        np.testing.assert_array_equal(again.weights, once.weights)
