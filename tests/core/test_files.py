"""A file is complete or absent."""

import os

import pytest

from curvi._core.files import write_atomically

pytestmark = pytest.mark.float64_only


def test_text_and_bytes_arrive_whole_and_leave_nothing_beside_them(tmp_path):
    write_atomically(tmp_path / "a.txt", "ε\n")
    write_atomically(tmp_path / "a.txt", b"new")
    assert (tmp_path / "a.txt").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_failure_before_the_rename_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def broken(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
