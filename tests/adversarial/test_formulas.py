"""A formula that would run code, wherever one is taken: in a call, a command, or a stored model."""

from __future__ import annotations

import importlib
import os

import pytest

import curvi
from curvi.io._format import read_file, write_file
from tests.adversarial.commands import Refusal, command
from tests.adversarial.formulas import ATTACK, table, watched
from tests.adversarial.outcomes import refused

pytestmark = pytest.mark.float64_only
PLAIN = "y ~ abs(x) + exp(x) + (1 | g)"


def strange(events, folder):
    """All but what is done to files of the test; a folder is emptied by descriptors of files."""
    ours = [f"{folder}", *(f"'{one.name}'" for one in folder.iterdir())]
    files = ("open", "os.mkdir", "os.listdir", "shutil.rmtree")
    gone = ("os.rmdir", "os.remove", "os.scandir")
    return [
        (event, arguments)
        for event, arguments in events
        if event not in gone and not (event in files and any(name in arguments for name in ours))
    ]


@pytest.fixture(scope="module")
def frame():
    return table()


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr("curvi.mixed._checks.warn_user", lambda *_: None)


@pytest.mark.filterwarnings("ignore")
def test_a_fit_refuses_it_and_runs_nothing(frame):
    curvi.MixedModel(PLAIN, num_points=64).fit(frame)  # what is imported at first use
    for given in (frame, lambda: iter([frame])):
        for model in (curvi.MixedModel(ATTACK), curvi.MixedModel(ATTACK, likelihood="poisson")):
            with watched() as events:
                refused(lambda model=model, given=given: model.fit(given), curvi.InputError)
            assert events == []


@pytest.mark.filterwarnings("ignore")
def test_a_command_refuses_it_and_opens_no_more_than_its_table(frame, tmp_path, monkeypatch):
    path, within = tmp_path / "t.csv", []
    frame.to_csv(path, index=False)
    fit_formula = importlib.import_module("curvi.cli._mixed").fit_formula

    def inner(*given, **options):
        with watched() as events:
            within.append(events)
            return fit_formula(*given, **options)

    monkeypatch.setattr("curvi.cli._mixed.fit_formula", inner)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    refused(lambda: command("fit", str(path), "--formula", "y ~ zz + (1 | g)"), Refusal, "zz")
    with watched() as outer:  # the library that reads arguments compiles its own annotations
        refused(lambda: command("fit", str(path), "--formula", ATTACK), Refusal, "formula")
    assert len(within) == 2
    assert strange(within[1], tmp_path) == []
    for event, arguments in outer:
        assert event in ("compile", "exec", "open"), (event, arguments)
        assert not any(piece in arguments for piece in ("__globals__", "chr(", "'zz'")), arguments


def replaced(value, old, new):
    """A document with one text in the place of another, wherever it stands."""
    if isinstance(value, dict):
        return {key: replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, old, new) for item in value]
    return new if value == old else value


@pytest.mark.filterwarnings("ignore")
def test_a_stored_model_with_its_text_runs_nothing(frame, tmp_path):
    curvi.MixedModel(PLAIN, num_points=64).fit(frame).save(tmp_path / "plain")
    document, arrays = read_file(tmp_path / "plain")
    forged = replaced(document, PLAIN, ATTACK)
    assert str(forged).count("__globals__") > 2
    write_file(tmp_path / "forged", forged, arrays)
    expected = curvi.load(tmp_path / "plain").predict(frame)
    with watched() as events:
        model = curvi.load(tmp_path / "forged")
        found = model.predict(frame)
        text = model.summary()
    assert strange(events, tmp_path) == []
    assert (found == expected).all()
    assert "__globals__" in text  # it is text to be shown
    with watched() as events:
        refused(lambda: model.partial_fit(frame), curvi.InputError, "formula")
    assert events == []


@pytest.mark.filterwarnings("ignore")
def test_a_stored_tree_with_the_attack_as_a_name_is_refused_or_a_missing_column(frame, tmp_path):
    curvi.MixedModel(PLAIN, num_points=64).fit(frame).save(tmp_path / "plain")
    document, arrays = read_file(tmp_path / "plain")
    for old, word in (("exp", "no function"), ("x", "no column")):
        write_file(tmp_path / "forged", replaced(document, old, ATTACK), arrays)
        with watched() as events:
            refused(lambda: curvi.load(tmp_path / "forged"), curvi.InputError, word)
        assert strange(events, tmp_path) == []


def test_the_watch_sees_what_runs(tmp_path):
    with watched() as events:
        eval("1 + 1")  # noqa: S307  what the watch is for
        os.system("true")  # noqa: S605
        (tmp_path / "f").write_text("")
    assert {"compile", "exec", "os.system", "open"} <= {name for name, _ in events}
