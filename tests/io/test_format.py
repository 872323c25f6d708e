"""A file is complete or refused, and refusing it costs no more than its own size."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import tracemalloc

import jax
import numpy as np
import pytest
import safetensors.numpy

import curvi
from curvi._core import files
from curvi.io._format import read_file, write_file

pytestmark = pytest.mark.float64_only

DOCUMENT = {"format": 1, "kind": "test", "value": [1, "zwei", None, {"deep": [0.1, True]}]}
ARRAYS = {
    "a": np.arange(12.0).reshape(3, 4),
    "scalar": np.asarray(2.5, np.float32),
    "empty": np.zeros((0, 3), np.int32),
    "flags": np.asarray([True, False]),
}


@pytest.fixture
def path(tmp_path):
    write_file(tmp_path / "file", DOCUMENT, ARRAYS)
    return tmp_path / "file"


def same(content):
    return content.document == DOCUMENT and all(
        np.array_equal(content.arrays[name], array) and content.arrays[name].dtype == array.dtype
        for name, array in ARRAYS.items()
    )


def with_header(path, change):
    """The file with another header, its data as they were."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = change(raw[8 : 8 + length])
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])


def test_a_file_gives_back_what_was_written(path):
    assert same(read_file(path))


def test_any_reader_of_safetensors_reads_the_arrays(path):
    found = safetensors.numpy.load_file(path)
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in ARRAYS.items()
    }


def test_every_flipped_byte_is_refused_or_harmless(path, key):
    whole = path.read_bytes()
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    places = generator.integers(len(whole), size=2000).tolist()
    harmless = 0
    with path.open("r+b", buffering=0) as stream:
        for place, bits in zip(places, generator.integers(1, 256, size=2000), strict=True):
            os.pwrite(stream.fileno(), bytes([whole[place] ^ int(bits)]), place)
            with contextlib.suppress(curvi.InputError):
                assert same(read_file(path)), f"byte {place} ^ {bits}"
                harmless += 1
            os.pwrite(stream.fileno(), whole[place : place + 1], place)
    assert same(read_file(path))
    assert harmless < 100  # blanks after the header may become other blanks


def test_every_truncation_is_refused(path, key):
    whole = path.read_bytes()
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    for length in generator.integers(len(whole), size=200):
        path.write_bytes(whole[:length])
        with pytest.raises(curvi.InputError, match="not a complete file"):
            read_file(path)


@pytest.mark.parametrize(
    ("change", "message"),
    {
        "a shape of terabytes": (lambda h: h.replace(b"[3,4]", b"[3,4000000000000]"), "shape"),
        "a place beyond the end": (lambda h: h.replace(b",96]", b",96000000000]"), "shape"),
        "a negative shape": (lambda h: h.replace(b"[3,4]", b"[-3,-4]"), "no count"),
        "a shape of fractions": (lambda h: h.replace(b"[3,4]", b"[1.5,8]"), "no count"),
        "a dtype of objects": (lambda h: h.replace(b'"F64"', b'"O"'), "cannot be read"),
        "deep JSON": (lambda h: b"[" * 100_000, "levels deep"),
        "brackets in strings": (lambda h: b'{"' + b"[" * 500 + b'\\"":{}}', "saved by curvi"),
        "no table": (lambda h: b"[1,2]", "not a table"),
        "a name twice": (lambda h: h[:1] + b'"a":{},"a":{},' + h[1:], "cannot be read"),
        "a number that is none": (lambda h: h[:1] + b'"a":NaN,' + h[1:], "cannot be read"),
        "other text": (lambda h: h.replace(b"zwei", b"drei"), "digest"),
        "bytes that are no text": (lambda h: b"\xff" * 40, "cannot be read"),
    }.values(),
)  # fmt: skip
def test_a_hostile_header_is_refused(path, change, message):
    with_header(path, change)
    with pytest.raises(curvi.InputError, match=message):
        read_file(path)


def test_a_header_that_claims_terabytes_allocates_nothing(path):
    raw = path.read_bytes()
    path.write_bytes((2**42).to_bytes(8, "little") + raw[8:])
    tracemalloc.start()
    with pytest.raises(curvi.InputError, match="ends before"):
        read_file(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6


def test_a_long_header_is_refused_even_where_the_file_is_as_long(tmp_path):
    with (tmp_path / "sparse").open("wb") as stream:
        stream.write((2**30).to_bytes(8, "little"))
        stream.truncate(2**31)
    with pytest.raises(curvi.InputError, match="header claims"):
        read_file(tmp_path / "sparse")


def test_a_file_of_another_program_a_folder_and_a_pipe_are_refused(tmp_path):
    safetensors.numpy.save_file({"a": np.zeros(3)}, tmp_path / "other")
    with pytest.raises(curvi.InputError, match="was not saved by curvi"):
        read_file(tmp_path / "other")
    with pytest.raises(curvi.InputError, match="is a folder"):
        read_file(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(curvi.InputError, match="no regular file"):
        read_file(tmp_path / "pipe")


def test_a_newer_format_is_refused_with_a_sentence(tmp_path):
    write_file(tmp_path / "file", DOCUMENT | {"format": 2}, {})
    with pytest.raises(curvi.InputError, match="newer curvi"):
        read_file(tmp_path / "file")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_file_before_and_nothing_else(path, monkeypatch, call):
    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os if call == "fsync" else files.Path, call, fails)
    with pytest.raises(OSError, match="No space left"):
        write_file(path, DOCUMENT | {"kind": "next"}, ARRAYS)
    monkeypatch.undo()
    assert same(read_file(path))
    assert list(path.parent.iterdir()) == [path]


def test_a_quota_is_an_error_of_the_system_and_leaves_the_file_before(path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, limit[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_file(path, DOCUMENT, {"x": np.zeros(2**14)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert same(read_file(path))
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(path):
    orphan, alien = path.with_name(".file-0123456789abcdef.tmp"), path.with_name(".file-x.tmp")
    living = path.with_name(".file-fedcba9876543210.tmp")
    for name in (orphan, alien, living):
        name.write_bytes(b"half")
    with living.open("rb") as stream:
        assert files._is_ours(stream.fileno())
        write_file(path, DOCUMENT, ARRAYS)
    assert not orphan.exists()
    assert living.exists()
    assert alien.exists()
    assert json.loads(json.dumps(read_file(path).document)) == DOCUMENT
