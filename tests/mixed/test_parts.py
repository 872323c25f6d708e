"""A table that comes in parts is the table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import curvi
from curvi.mixed._parts import collected

pytestmark = pytest.mark.float64_only


@pytest.fixture
def frame():
    generator = np.random.default_rng(0)
    schools = np.asarray(["north", "east", "south", "west", "mid", "far"])
    group = generator.integers(0, 6, 90)
    x, kind = generator.normal(size=90), generator.choice(["b", "a"], 90)
    y = x + (kind == "b") + generator.normal(size=6)[group] + 0.5 * generator.normal(size=90)
    return pd.DataFrame({"y": y, "x": x, "kind": kind, "school": schools[group], "unused": y})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_read_in_parts_gives_the_fit_of_the_table(frame, tmp_path, monkeypatch, suffix):
    pytest.importorskip("pyarrow")
    path = tmp_path / f"t{suffix}"
    if suffix == ".csv":
        frame.to_csv(path, index=False, float_format="%.17g")
    else:
        frame.to_parquet(path)
    monkeypatch.setattr("curvi.io._frames._ROWS", 20)
    parts = curvi.io.frames(path)
    assert len(list(parts())) == 5
    model = curvi.MixedModel("y ~ x + kind + (1 | school)", num_points=64)
    whole = model.fit(frame)
    expected, names, effects = whole.coef_, whole.feature_names_, whole.group_effects_
    found = model.fit(parts)
    assert found.feature_names_ == names
    assert np.allclose(found.coef_, expected, rtol=1e-12)
    assert list(found.group_effects_["school"].index) == list(effects["school"].index)


@pytest.mark.parametrize(
    "values",
    [
        ["007", "7", "007", "A"],
        ["A", "B", "007", "7"],
        ["1", "2", "2.5", ""],
        ["True", "False", "1", "0"],
        ["", "", "x", "07"],
    ],
)
def test_levels_of_a_csv_in_parts_are_those_of_the_file(tmp_path, monkeypatch, values):
    path = tmp_path / "t.csv"
    path.write_text("g,y\n" + "".join(f"{value},1\n" for value in values), encoding="utf-8")
    whole = pd.read_csv(path)
    monkeypatch.setattr("curvi.io._frames._ROWS", 2)
    found = collected(curvi.io.frames(path)(), {"g", "y"})
    assert found["y"].dtype == whole["y"].dtype
    assert found["g"].astype(whole["g"].dtype).equals(whole["g"])


@pytest.mark.parametrize("ordered", [True, False])
def test_categories_keep_their_order(frame, tmp_path, monkeypatch, ordered):
    names = pd.CategoricalDtype(["low", "mid", "unused", "high"], ordered=ordered)
    level = pd.Series(np.resize(["mid", "high", "low", "mid", "mid"], 90), dtype=names)
    whole = frame.assign(level=level)
    assert collected([whole[:2], whole[2:]], {"level"})["level"].equals(level)
    pytest.importorskip("pyarrow")
    whole.to_parquet(tmp_path / "t.parquet", row_group_size=30)
    monkeypatch.setattr("curvi.io._frames._ROWS", 20)
    found = collected(curvi.io.frames(tmp_path / "t.parquet")(), {"level"})["level"]
    assert list(found.cat.categories) == list(names.categories)
    assert found.equals(level)


def test_only_columns_of_the_formula_are_kept_and_parts_must_agree(frame):
    kept = collected([frame[:40], frame[40:]], {"y", "school"})
    assert list(kept.columns) == ["y", "school"]
    assert kept["school"].cat.codes.dtype == np.int8
    assert list(kept["school"].astype(str)) == list(frame["school"])
    with pytest.raises(curvi.InputError, match="part 1 has the columns"):
        collected([frame[:40], frame[40:][["y"]]], {"y", "school"})
    with pytest.raises(curvi.InputError, match="text in part 1"):
        collected([frame[:40], frame[40:].assign(y="one")], {"y", "school"})
    with pytest.raises(curvi.InputError, match="numbers in part 1"):
        collected([frame[:40], frame[40:].assign(school=7)], {"y", "school"})
    with pytest.raises(curvi.InputError, match="no rows"):
        collected(iter(()), {"y"})
    with pytest.raises(curvi.InputError, match="no rows"):
        collected([frame[:0]], {"y"})
    with pytest.raises(curvi.InputError, match="suffix"):
        curvi.io.frames("t.xlsx")


@pytest.mark.filterwarnings("ignore")
def test_parts_of_which_nothing_was_chosen_are_left_out(frame):
    nothing = frame[:0].astype(object)  # as a filter may leave it
    parts = [nothing, frame[:40], nothing, frame[40:]]
    assert len(collected(parts, {"y", "school"})) == 90
    formula = "y ~ x + kind + (1 | school)"
    whole = curvi.MixedModel(formula, num_points=64).fit(frame)
    found = curvi.MixedModel(formula, num_points=64).fit(lambda: iter(parts))
    np.testing.assert_allclose(found.predict(frame), whole.predict(frame), rtol=1e-8)


@pytest.mark.parametrize("read", [curvi.io.frames, curvi.io.rows])
def test_a_parquet_file_is_not_read_ahead_as_a_whole(tmp_path, monkeypatch, read):
    arrow = pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    numbers = np.random.default_rng(0).normal(size=(200_000, 8))
    pd.DataFrame(numbers, columns=list("abcdefgh")).to_parquet(path, row_group_size=10_000)
    monkeypatch.setattr("curvi.io._frames._ROWS", 10_000)
    monkeypatch.setattr("curvi.io._rows._NUMBERS", 80_000)
    monkeypatch.setattr("curvi.io._rows._AHEAD", 1)
    before, rows, held = arrow.total_allocated_bytes(), 0, []
    for part in read(path)():
        rows += len(part if read is curvi.io.frames else part[0])
        held.append(arrow.total_allocated_bytes() - before)
    assert rows == 200_000
    assert max(held) < numbers.nbytes / 2
