"""``curvi data``: what is known, where it is, and where it belongs."""

import pytest

from curvi import datasets
from curvi.cli import main

pytestmark = pytest.mark.float64_only


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("CURVI_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_list_names_every_data_set(empty, capsys):
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [entry.name for entry in datasets.names()]
    assert all("  missing  " in line for line in lines)


def test_a_missing_file_comes_with_the_place_where_to_put_it(empty, capsys):
    assert main(["data", "path", "duke"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[4].rstrip(";") for line in lines] == [
        str(empty / "libsvm" / name) for name in ("duke.tr.bz2", "duke.val.bz2")
    ]
    assert all("downloaded from https://" in line for line in lines)


def test_a_file_in_its_place_is_found(empty, capsys):
    (empty / "libsvm").mkdir()
    place = empty / "libsvm" / "heart"
    place.write_text("")
    assert main(["data", "path", "heart"]) == 0
    assert capsys.readouterr().out == f"{place}\n"


def test_without_a_name_the_folders_are_printed(empty, monkeypatch, capsys):
    assert main(["data", "path"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == str(empty)
    monkeypatch.delenv("CURVI_DATA")
    assert main(["data", "path"]) == 0
    assert "CURVI_DATA is not set" in capsys.readouterr().out


def test_what_is_printed_is_also_written(empty, tmp_path, capsys):
    for arguments, name in ((["list"], "datasets.txt"), (["path"], "paths.txt")):
        assert main(["data", *arguments, "--out", str(tmp_path / "new")]) == 0
        assert (tmp_path / "new" / name).read_text() == capsys.readouterr().out


def test_an_unknown_name_is_refused(empty, capsys):
    assert main(["data", "path", "nope"]) == 2
    assert capsys.readouterr().err.startswith("curvi: name is 'nope'; choose one of 'a9a'")
