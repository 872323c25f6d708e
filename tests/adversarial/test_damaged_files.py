"""Files that are not what their name says: one sentence with the name, from every reader."""

import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

import curvi
from curvi.io import frames, rows
from tests.adversarial.commands import Refusal, command
from tests.adversarial.outcomes import handled, refused

pytestmark = pytest.mark.float64_only

CONTENTS = {
    "bad.parquet": b"PAR1junkPAR1",
    "empty.parquet": b"",
    "bad.npy": b"\x93NUMPYjunk",
    "empty.npy": b"",
    "bad.npz": b"PK\x03\x04junk",
    "bad.csv": b"\xff\xfe\x00",
    "quote.csv": b'x,y\n1,2\n2,"3\n',
    "ragged.csv": b"x,y\n1,2\n2,3,4\n",
    "empty.csv": b"",
    "bad.csv.gz": b"\x1f\x8b\x08junk",
    "cut.csv.gz": gzip.compress(b"x,y\n1,2\n" * 99)[:-9],
    "bad.curvi": b"junk",
}


@pytest.fixture
def damaged(tmp_path):
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("name", CONTENTS)
def test_a_command_names_a_damaged_table(damaged, name):
    for option in (["--target", "y"], ["--formula", "y ~ x + (1 | g)"]):
        refused(
            lambda o=option: command("fit", str(damaged / name), *o, "--no-report"), Refusal, name
        )


def test_a_command_names_a_damaged_model(damaged):
    refused(
        lambda: command("predict", str(damaged / "bad.curvi"), str(damaged / "bad.csv")),
        Refusal,
        "bad",
    )


@pytest.mark.parametrize("name", [n for n in CONTENTS if n.endswith((".parquet", ".npy"))])
def test_rows_of_a_damaged_file_are_refused_by_its_name(damaged, name):
    refused(lambda: rows(damaged / name), curvi.InputError, name, "intact copy")


@pytest.mark.parametrize("name", [n for n in CONTENTS if n.endswith((".parquet", ".csv"))])
def test_frames_of_a_damaged_file_are_refused_by_its_name(damaged, name):
    refused(lambda: list(frames(damaged / name)()), curvi.InputError, name, "intact copy")


def test_a_file_damaged_in_the_middle_is_refused_where_it_is_read(tmp_path):
    path = tmp_path / "middle.parquet"
    pd.DataFrame({"x": np.arange(1000.0), "y": np.arange(1000.0)}).to_parquet(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:10] + b"\xff" * 190 + whole[200:])
    for read in (lambda: list(rows(path)()), lambda: list(frames(path)())):
        refused(read, curvi.InputError, "middle.parquet", "intact copy")


def test_a_long_text_that_a_small_file_repeats_is_never_written_out(tmp_path):
    """In Parquet it is stored once, with the number of its rows."""
    path, rows_of = tmp_path / "t.parquet", np.arange(50_000) % 7
    text = pa.DictionaryArray.from_arrays(np.zeros(50_000, np.int32), ["x" * 5_000_000])
    parquet.write_table(pa.table({"a": text, "y": rows_of}), path, compression="zstd")
    assert path.stat().st_size < 500_000
    for option in (["--target", "y"], ["--formula", "y ~ 1 + (1 | a)"]):
        said = ("t.parquet", "250000000000 bytes of text")
        refused(lambda o=option: command("fit", str(path), *o, "--no-report"), Refusal, *said)
    refused(lambda: rows(path, target="y"), curvi.InputError, "'a'", "no numbers")
    refused(lambda: list(rows(path, target="a")()), curvi.InputError, "t.parquet")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_that_a_table_lacks_is_named(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    frame = pd.DataFrame({"x": [1.0]})
    frame.to_csv(path) if suffix == ".csv" else frame.to_parquet(path)
    read = frames(path, columns=["x", "z"])
    refused(lambda: list(read()), curvi.InputError, f"t{suffix}", "no column 'z'")


def test_a_file_that_is_absent_stays_an_error_of_the_system(tmp_path):
    for name in ("no.parquet", "no.npy"):
        with pytest.raises(FileNotFoundError, match=name):
            rows(tmp_path / name)


def test_a_model_of_one_feature_predicts_a_table_of_that_column_alone(tmp_path):
    x = np.arange(9.0)
    pd.DataFrame({"x": x, "y": 2 * x + np.cos(x)}).to_csv(tmp_path / "fit.csv", index=False)
    saved, table = str(tmp_path / "m.curvi"), str(tmp_path / "fit.csv")
    command("fit", table, "--target", "y", "--no-report", "--save", saved)
    new = tmp_path / "new.csv"
    new.write_text("x\n1\n\n7\n")
    handled(lambda: command("predict", saved, str(new)), lambda said: len(said.splitlines()) == 3)
    new.write_text("z\n1\n")
    refused(lambda: command("predict", saved, str(new)), Refusal, "'x'")


COMPLEX = np.arange(12.0).reshape(6, 2) + 1j
HELD = {"array": COMPLEX, "objects": COMPLEX.astype(object), "list": COMPLEX.tolist()}


@pytest.mark.parametrize("held", HELD)
def test_complex_numbers_are_refused_by_the_name_of_what_holds_them(held):
    X, real = HELD[held], COMPLEX.real
    column = np.asarray(X)[:, 0]
    table = {"y": real[:, 0], "x": column, "g": np.arange(6) % 3}
    calls = {
        "X": lambda: curvi.BayesianLinearRegression().fit(X, real[:, 0]),
        "y": lambda: curvi.BayesianLogisticRegression().fit(real, column),
        "sample_weight": lambda: curvi.BayesianLinearRegression().fit(real, real[:, 0], column),
        "block 0: X": lambda: curvi.BayesianLinearRegression().fit_blocks([(X, real[:, 0])]),
        "X holds": lambda: curvi.VAE(latent=1, max_epochs=1).fit(X),
        "sequences[0]": lambda: curvi.DeepMarkovModel(2).fit([X]),
        "column 'x'": lambda: curvi.MixedModel("y ~ x + (1 | g)").fit(table),
        "X holds complex": lambda: curvi.StateSpace().fit(real[:, 0], X),
    }
    for name, call in calls.items():
        refused(call, curvi.InputError, name, "complex numbers")
