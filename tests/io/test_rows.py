"""Rows of a file give the fit of the same rows in memory, block by block."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

import curvi
from curvi.glm._rows import in_chunks
from curvi.io import RowBlocks, rows
from curvi.io import _rows as reading

pytestmark = pytest.mark.float64_only


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(reading, "_NUMBERS", 40)  # blocks of ten rows
    generator = np.random.default_rng(0)
    X = generator.normal(size=(95, 4)).round(3)
    return X, (X[:, 0] > generator.normal(size=95)).astype(float)


def written(kind, folder, X, y):
    if kind == "npy":
        np.save(folder / "x.npy", X)
        np.save(folder / "y.npy", y)
        return rows(folder / "x.npy", target=folder / "y.npy")
    if kind == "libsvm":
        lines = [
            f"{label:g} " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row.tolist())) + " # x"
            for row, label in zip(X, y, strict=True)
        ]
        (folder / "t.svm").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return rows(folder / "t.svm", num_features=4)
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"y": y, **{f"x{j}": X[:, j] for j in range(4)}}
    parquet.write_table(pyarrow.table(columns), folder / "t.parquet", row_group_size=30)
    return rows(folder / "t.parquet", target="y")


@pytest.mark.parametrize("kind", ["npy", "parquet", "libsvm"])
def test_a_fit_of_blocks_is_the_fit_of_the_table(tmp_path, table, kind):
    X, y = table
    blocks = written(kind, tmp_path, X, y)
    parts = list(blocks())
    assert len(parts) > 3
    assert max(part[0].size for part in parts) <= 40
    assert np.array_equal(np.concatenate([part[0] for part in parts]), X)
    assert np.array_equal(np.concatenate([part[1] for part in parts]), y)
    assert blocks.num_rows in (None, 95)
    streamed = curvi.BayesianLogisticRegression(random_state=0).fit_blocks(blocks)
    whole = curvi.BayesianLogisticRegression(random_state=0).fit(X, y)
    assert np.allclose(streamed.coef_, whole.coef_, atol=1e-6)


def test_columns_of_parquet_keep_their_order_and_bad_ones_are_named(tmp_path, table):
    X, y = table
    blocks = written("parquet", tmp_path, X, y)
    assert blocks.columns == ("x0", "x1", "x2", "x3")
    assert blocks.num_rows == 95
    path = tmp_path / "t.parquet"
    turned = rows(path, target="y", columns=["x3", "x1"])
    assert np.array_equal(next(turned())[0], X[: len(next(turned())[0]), [3, 1]])
    with pytest.raises(curvi.InputError, match="no column 'z'"):
        rows(path, target="z")
    with pytest.raises(curvi.InputError, match="cannot be a feature"):
        rows(path, target="y", columns=["y"])
    (features,) = next(rows(path, columns=["x3", "x1"])())  # for an auto-encoder
    assert np.array_equal(features, X[: len(features), [3, 1]])
    with pytest.raises(curvi.InputError, match="target"):
        curvi.BayesianLogisticRegression(random_state=0).fit_blocks(rows(path))


def test_a_null_among_the_responses_of_parquet_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"x": [1.0, 2.0], "y": pyarrow.array([1, None])})
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(curvi.InputError, match=r"column 'y' .* missing values"):
        next(rows(tmp_path / "t.parquet", target="y")())


def test_rows_that_are_written_keep_their_fractions_and_missing_values(tmp_path):
    X, ys = np.zeros((2, 1)), [np.asarray([1, 2]), np.asarray([0.7, np.nan])]
    written = RowBlocks(lambda: ((X, y) for y in ys)).to_npy(tmp_path)
    assert np.array_equal(written.arrays[1], [1, 2, 0.7, np.nan], equal_nan=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.npy", "1.npy"]


def test_what_a_writer_that_was_killed_has_left_is_removed(tmp_path):
    for name in (".unfinished-killed", ".unfinished-alive"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.npy").touch()
    alive = os.open(tmp_path / ".unfinished-alive", os.O_RDONLY)
    fcntl = pytest.importorskip("fcntl")
    fcntl.flock(alive, fcntl.LOCK_EX)
    RowBlocks(lambda: iter([(np.zeros((1, 1)),)])).to_npy(tmp_path)
    os.close(alive)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".unfinished-alive", "0.npy"]


@pytest.mark.parametrize("second", [1, 3])
def test_a_source_that_fails_while_rows_are_written_leaves_no_file(tmp_path, second):
    lengths = iter([2, second])
    blocks = RowBlocks(lambda: iter([(np.zeros((1, 1)),)] * next(lengths)))
    with pytest.raises(curvi.InputError, match="must give the same rows"):
        blocks.to_npy(tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_of_other_kinds_and_damaged_text_are_refused(tmp_path):
    with pytest.raises(curvi.InputError, match=r"suffix '\.csv'"):
        rows(tmp_path / "t.csv")
    with pytest.raises(curvi.InputError, match="num_features"):
        rows(tmp_path / "t.svm")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    np.save(tmp_path / "y.npy", np.zeros(4))
    with pytest.raises(curvi.InputError, match="one response to each"):
        rows(tmp_path / "x.npy", target=tmp_path / "y.npy")
    for line, message in (("1 9:1", "no feature 9"), ("1 a:1", "line 1"), ("1 1:x", "line 1")):
        (tmp_path / "t.svm").write_text(line, encoding="utf-8")
        with pytest.raises(curvi.InputError, match=message):
            list(rows(tmp_path / "t.svm", num_features=2)())


def test_blocks_are_read_ahead_and_no_thread_is_left_behind():
    asked = []

    def source():
        for number in range(6):
            asked.append(number)
            yield np.full((1, 1), float(number)), np.zeros(1)

    blocks = RowBlocks(source)
    iterator = blocks()
    first = next(iterator)
    assert first[0][0, 0] == 0.0
    while len(asked) < 3:  # two more, without being asked
        pass
    iterator.close()
    gc.collect()
    assert len(asked) <= 4
    assert not [t for t in threading.enumerate() if "ThreadPoolExecutor" in t.name]
    assert [part[0][0, 0] for part in blocks()] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_an_error_of_the_source_is_raised_where_the_blocks_are_used():
    def source():
        yield np.zeros((1, 1)), np.zeros(1)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(RowBlocks(source)())


def test_predictions_of_a_long_table_are_made_in_chunks(table, monkeypatch):
    X, y = table
    model = curvi.BayesianLinearRegression(random_state=0).fit(X, y)
    (whole,) = model._predictors(X)
    monkeypatch.setitem(in_chunks.__kwdefaults__, "numbers", 40)
    (chunks,) = model._predictors(X)
    for part, expected in zip(chunks, whole, strict=True):
        assert np.allclose(part, expected, rtol=1e-13)
