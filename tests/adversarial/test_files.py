"""Hostile files and terminals: what is read, what is written, and what is never touched."""

import contextlib
import dataclasses
import io
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

import curvi
from curvi._core import validation
from curvi._core.files import write_atomically
from curvi._core.text import printable, quoted
from curvi.cli import main
from curvi.datasets import DataFormatError, read_table
from curvi.datasets._golub import parse_intensities, parse_labels
from curvi.datasets._images import parse_idx, parse_mat
from curvi.datasets._libsvm import parse_libsvm
from curvi.diagnostics._correction import Attempt
from curvi.io._claims import NotStored
from tests.adversarial.commands import Refusal, command
from tests.adversarial.outcomes import handled, refused, warned
from tests.datasets import toys

pytestmark = pytest.mark.float64_only

TABLE = "a,y\n" + "\n".join(f"{x},{'yes' if x > 4 else 'no'}" for x in range(10)) + "\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TABLE)
    return path


def folder(path):
    path.mkdir()


def loop(path):
    path.symlink_to(path)


PLACES = {
    "missing": (lambda path: None, "cannot be read"),
    "folder": (folder, "cannot be read"),
    "named pipe": (os.mkfifo, "is a pipe or a device"),
    "link to a device": (lambda path: path.symlink_to("/dev/null"), "is a pipe or a device"),
    "broken link": (lambda path: path.symlink_to("nowhere"), "cannot be read"),
    "link to itself": (loop, "cannot be read"),
}


@pytest.mark.parametrize(("make", "words"), PLACES.values(), ids=PLACES)
def test_what_is_not_a_file_is_refused_at_once(tmp_path, make, words):
    path = tmp_path / "t.csv"
    make(path)
    refused(lambda: read_table(path, "y"), DataFormatError, str(path), words)


def test_a_file_without_permission_is_refused(table, monkeypatch):
    table.chmod(0)
    if os.access(table, os.R_OK):  # root may read everything
        monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))
    refused(lambda: read_table(table, "y"), DataFormatError, str(table), "cannot be read")


def test_a_link_to_a_table_is_read(table):
    link = table.with_name("link.csv")
    link.symlink_to(table)
    handled(lambda: read_table(link, "y"), lambda found: found.X.shape == (10, 1))


def test_a_path_with_a_zero_byte_is_refused(tmp_path):
    refused(lambda: read_table(tmp_path / "a\0b", "y"), DataFormatError, "\\x00", "cannot be read")


SECRET = b"hunter2 correct-horse:battery\nstaple,hunter2\n"
PARSERS = {
    "libsvm": lambda content: parse_libsvm(content, "toy", **toys.LIBSVM_SHAPE),
    "libsvm entries": lambda content: parse_libsvm(b"1 " + content, "toy", **toys.LIBSVM_SHAPE),
    "idx": lambda content: parse_idx(content, "toy", shape=(3, 4)),
    "mat": lambda content: parse_mat(content, "toy", variable="x", shape=(3, 4)),
    "mat variables": lambda content: parse_mat(
        toys.mat(hunter2=toys.GREY), "toy", variable="x", shape=(3, 4)
    ),
    "intensities": lambda content: parse_intensities(
        toys.INTENSITIES.replace(b"12", b"hunter2"), "toy", **toys.INTENSITIES_SHAPE
    ),
    "labels": lambda content: parse_labels(
        b"patient,cancer\n" + content + b"3,ALL", "toy", num_patients=3
    ),
}


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
def test_a_file_in_the_place_of_a_data_set_is_not_quoted(parse):
    refused(lambda: parse(SECRET), DataFormatError, "toy")
    with pytest.raises(DataFormatError) as caught:
        parse(SECRET)
    for word in ("hunter2", "horse", "staple", SECRET[:4].hex(" ")):
        assert word not in str(caught.value)


def written(path):
    return {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()}


COMMANDS = {
    "fit": (["fit", "t.csv", "--target", "y"], "report.html"),
    "the bundled fit": (["fit"], "summary.txt"),
    "data list": (["data", "list"], "datasets.txt"),
    "data path": (["data", "path"], "paths.txt"),
    "reproduce": (["reproduce", "table1"], "table1.md"),
    "reproduce into a folder": (["reproduce", "frey"], "frey/frey.md"),
    "reproduce all": (["reproduce", "all"], "logistic.png"),
}


@pytest.mark.parametrize(("arguments", "name"), COMMANDS.values(), ids=COMMANDS)
def test_no_command_replaces_a_file_unasked(table, monkeypatch, arguments, name):
    monkeypatch.chdir(table.parent)
    kept = table.parent / "out" / name
    kept.parent.mkdir(parents=True)
    kept.write_text("precious")
    said = f"{Path('out', name)} exists already"
    refused(lambda: command(*arguments, "--out", "out"), Refusal, said, "--overwrite")
    assert kept.read_text() == "precious"
    assert [p.name for p in kept.parent.iterdir()] == [kept.name]


FIT = ["fit", "t.csv", "--target", "y"]
OUTPUTS = {
    "a model over a file": ([*FIT, "--save", "kept"], "--overwrite"),
    "a model over the table": ([*FIT, "--save", "t.csv", "--overwrite"], "reads or writes"),
    "a model over a link to the table": ([*FIT, "--save", "l.csv", "--overwrite"], "reads or wr"),
    "a model over a page of the report": (
        [*FIT, "--out", "out", "--save", "out/config.json"], "reads or writes"),
    "a model over its checkpoint": (
        [*FIT, "--checkpoint", "new", "--save", "new"], "reads or writes"),
    "a checkpoint over the table": ([*FIT, "--checkpoint", "t.csv"], "reads or writes"),
    "a model in no folder": ([*FIT, "--save", "nowhere/model"], "no folder nowhere"),
    "a model in the place of a folder": ([*FIT, "--save", "folder"], "is a folder"),
    "a report over the table": (
        ["fit", "coefficients.csv", "--target", "y", "--out", ".", "--overwrite"], "reads or wr"),
    "predictions over a file": (["predict", "kept", "t.csv", "--out", "l.csv"], "reads or writes"),
    "predictions over the model": (
        ["predict", "kept", "t.csv", "--out", "kept", "--overwrite"], "reads or writes"),
    "predictions in no folder": (
        ["predict", "kept", "t.csv", "--out", "nowhere/p.csv"], "no folder nowhere"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_that_must_not_be_written_is_refused_before_any_work(
    table, monkeypatch, arguments, words
):
    monkeypatch.chdir(table.parent)
    Path("kept").write_text("precious")
    Path("coefficients.csv").write_text(TABLE)
    Path("l.csv").symlink_to(table)
    Path("folder").mkdir()
    before = written(table.parent)
    monkeypatch.setattr("curvi.cli._table.fit_table", lambda *_, **__: pytest.fail("it was fitted"))
    refused(lambda: command(*arguments), Refusal, words)
    assert written(table.parent) == before


def test_a_model_that_cannot_be_saved_leaves_the_report(table, monkeypatch):
    monkeypatch.chdir(table.parent)

    def full(*_):
        raise OSError(28, "No space left on device", "model")

    monkeypatch.setattr("curvi.io._objects.write_file", full)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main([*FIT, "--save", "model"]) == 2
    assert "No space left" in err.getvalue()
    assert Path("curvi-report.html").exists()
    assert "report" in out.getvalue()


def test_a_file_in_the_place_of_the_folder_is_refused_by_name(table):
    arguments = ["fit", str(table), "--target", "y", "--out", str(table)]
    refused(lambda: command(*arguments), Refusal, f"--out {table}", "choose another place")


def test_files_are_replaced_when_asked_and_links_are_not_followed(table):
    out = table.parent / "out"
    arguments = ["fit", str(table), "--target", "y", "--out", str(out)]
    command(*arguments)
    outside = table.parent / "outside"
    outside.write_text("precious")
    (out / "config.json").unlink()
    (out / "config.json").symlink_to(outside)
    refused(lambda: command(*arguments), Refusal, "config.json and 4 more exist already")
    command(*arguments, "--overwrite", "--seed", "9")
    assert outside.read_text() == "precious"
    assert '"seed": 9' in (out / "config.json").read_text()


def test_a_new_file_follows_the_umask_and_a_private_one_stays_private(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new", "x")
        (tmp_path / "private").write_text("old")
        (tmp_path / "private").chmod(0o600)
        write_atomically(tmp_path / "private", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600


def test_writing_never_sets_the_umask_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to all threads"))
    names = [f"{i}.txt" for i in range(8)]
    threads = [
        threading.Thread(target=write_atomically, args=(tmp_path / "same", name)) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written(tmp_path)["same"].decode() in names
    assert list(written(tmp_path)) == ["same"]


def run(arguments, **options):
    command = [sys.executable, "-m", "curvi", *arguments]
    return subprocess.run(command, capture_output=True, check=False, **options)


def test_the_package_runs_as_a_module_and_on_a_poor_terminal(tmp_path):
    name = os.fsdecode("t\xe9\x1b[2J".encode("latin-1") + b"\xff.csv")
    (tmp_path / name).write_text("a,y\n1,2\n\u0661,3\n")
    poor = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = run(["fit", name, "--target", "y"], cwd=tmp_path, env=poor)
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"\\x1b[2J" in done.stderr
    assert b"\\u0661' is not a number" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_reader_who_leaves_early_ends_the_command_quietly():
    command = f"{sys.executable} -m curvi data list | true; {sys.executable} -m curvi -h | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert done.stderr == b""


SENTENCES = {
    "seed": (["fit", "--seed", "x"], "curvi: --seed is 'x'; it must be a whole number; see curvi"),
    "real": (["fit", "--prior-scale", "x"], "curvi: --prior-scale is 'x'; it must be a number; "),
    "escape": (["fit", "--family", "\x1b[31m"], "\\x1b[31m"),
}


@pytest.mark.parametrize(("arguments", "words"), SENTENCES.values(), ids=SENTENCES)
def test_a_bad_option_is_named_with_its_value(arguments, words):
    refused(lambda: command(*arguments), Refusal, words)


def test_the_help_shows_that_a_table_is_optional():
    handled(lambda: command("fit", "--help"), lambda said: "[TABLE.csv]" in said.splitlines()[0])


@pytest.mark.parametrize("text", ["\x1b[0m", "\x7f", "\x9b31m", "\u202e", "\ud800", "a\r\nb", "\0"])
def test_control_characters_are_shown_and_not_obeyed(text):
    handled(lambda: printable(text), lambda shown: shown.isprintable() and "\\" in shown)


@pytest.mark.parametrize("text", ["plain", "Größe", "面積", "a b", "C:\\data", "x\u00a0y", "ε₀ 😀"])
def test_other_characters_stay(text):
    handled(lambda: printable(text), lambda shown: shown == text)


def test_names_in_errors_and_warnings_cannot_command_a_terminal():
    name = "\x1b[2Jx"
    refused(
        lambda: curvi.fit(lambda z: z[name], {name: np.array([np.nan])}),
        curvi.InputError,
        "\\x1b[2Jx",
        "starting position",
    )
    with jax.enable_x64(False):
        warned(lambda: validation.flat_position({name: np.zeros(2)}), UserWarning, "\\x1b[2Jx")


HOSTILE = "\x1b[2J\u202e\x9b31m\r\u2028"


def one_screen(text):
    """Text that a terminal shows as it is."""
    return all(line.isprintable() for line in text.split("\n"))


def test_the_sentences_of_a_file_cannot_command_a_terminal(tmp_path):
    result = curvi.fit(lambda x: -0.5 * (x**2).sum(), np.zeros(2), progress=False)
    rung = Attempt(HOSTILE, 0.0, 1.0, 1, 0.0, HOSTILE + "\nconverged")
    forged = dataclasses.replace(result, message=HOSTILE, rungs=(rung,))
    object.__setattr__(forged, "warnings", (HOSTILE,))
    object.__setattr__(forged, "alarms", (HOSTILE,))
    forged.save(tmp_path / "f")
    found = curvi.load(tmp_path / "f")
    texts = [found.message, *found.warnings, found.summary(names=[HOSTILE, "a\nb"]), repr(found)]
    texts += [str(curvi.NotConvergedWarning(HOSTILE)), repr(NotStored(HOSTILE))]
    for text in texts:
        assert one_screen(text), text
    assert "a\\nb" in texts[2]


def test_names_and_levels_of_a_table_cannot_command_a_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f'{x % 7},"l{x % 2}\x1b[2J\u202e",{x % 5}' for x in range(40)]
    Path("t.csv").write_text("\n".join(["a\x1b[31m,b\u202e,y", *rows]) + "\n")
    for more in (["--target", "y", "--model", "linear"], ["--formula", "y ~ 1 + (1 | `b\u202e`)"]):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(["fit", "t.csv", *more, "--no-report"])
        assert one_screen(out.getvalue() + err.getvalue())


def test_a_quotation_is_bounded():
    handled(lambda: quoted("x" * 10**6), lambda shown: len(shown) < 50 and shown.endswith("...'"))
