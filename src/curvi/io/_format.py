"""One file: named arrays and a JSON document, in the safetensors format, complete or absent.

A file is a header and the bytes of its arrays. The header holds, beside the table of arrays that
every reader of safetensors understands, one document of curvi's own and a digest of everything.
Nothing in it is code, and nothing in it is trusted: :func:`read_file` compares every claim with
the size of the file before it allocates, and the digest before anything is used.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from curvi._core.errors import InputError
from curvi._core.files import sweep_temporaries, write_atomically

FORMAT = 1
_KEY = "curvi"
_LENGTH = 8  # bytes of the length of the header
_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "|b1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
}  # fmt: skip
_NO_BRACKETS = re.compile(r"[^\[\]{}]+")
_NAMES = {np.dtype(code): name for name, code in _TYPES.items()}


class Content(NamedTuple):
    """What a file holds: a document of plain JSON values, and arrays by name."""

    document: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write_file(path: Path, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a document and arrays, atomically; what an earlier crash left is removed.

    Raises
    ------
    OSError
        If the file cannot be written; one that was there before is then as it was.
    """
    from safetensors.numpy import save

    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    metadata = {"format": "np", _KEY: text, "digest": _digest(text, plain)}
    sweep_temporaries(path)
    write_atomically(path, save(plain, metadata))


def read_file(path: Path, *, most_header: int = 2**25) -> Content:
    """Read a file of :func:`write_file`; the memory is bounded by the size of the file.

    Raises
    ------
    InputError
        For a file that is not complete, not curvi's, or changed since it was written.
    OSError
        If it cannot be opened.

    ``most_header``: bytes of the header.
    """
    with _regular(path).open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        begin = stream.read(_LENGTH)
        length = int.from_bytes(begin, "little")
        if len(begin) < _LENGTH or length > size - _LENGTH:
            raise _broken(path, "it is of another kind, or ends before its header does")
        if length > most_header:
            raise _broken(path, f"its header claims {length} bytes, more than {most_header}")
        table = _parsed(stream.read(length), path)
        text, digest = _own_entries(table.pop("__metadata__", None), path)
        data = np.fromfile(stream, np.uint8)
    arrays = _arrays(table, data, path)
    if _digest(text, arrays) != digest:
        raise _broken(path, "its content does not match its digest")
    document = _parsed(text.encode(), path)
    if not isinstance(document.get("format"), int) or document["format"] < 1:
        raise _broken(path, "it names no version of the format")
    if document["format"] > FORMAT:
        raise InputError(
            f"{path} has format {document['format']} and this curvi reads up to {FORMAT}; load it "
            "with a newer curvi"
        )
    return Content(document, arrays)


def _regular(path: Path) -> Path:
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return path
    what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
    raise InputError(f"{path} is {what}; give a file that curvi has saved")


def _broken(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not a complete file of curvi: {why}")


def _parsed(raw: bytes, path: Path, *, deepest: int = 100) -> dict[str, Any]:
    """Bounded JSON: not too deep, no name twice, no number that is not finite.

    ``deepest``: brackets within each other.
    """
    try:
        text = raw.decode()
        if _depth(text) > deepest:
            raise _broken(path, f"its header is nested more than {deepest} levels deep")
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise _broken(path, "its header cannot be read") from error
    if not isinstance(found, dict):
        raise _broken(path, "its header is not a table")
    return found


def _depth(text: str) -> int:
    """Nesting of brackets outside strings, without recursion."""
    bare = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    brackets = _NO_BRACKETS.sub("", "".join(bare))
    steps = (1 if bracket in "[{" else -1 for bracket in brackets)
    return max(itertools.accumulate(steps), default=0)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _own_entries(metadata: Any, path: Path) -> tuple[str, str]:
    entries = metadata if isinstance(metadata, dict) else {}
    text, digest = entries.get(_KEY), entries.get("digest")
    if not isinstance(text, str) or not isinstance(digest, str):
        raise InputError(
            f"{path} was not saved by curvi: its header has no entry {_KEY!r}; read it with "
            "safetensors itself"
        )
    return text, digest


def _arrays(
    table: dict[str, Any], data: np.ndarray, path: Path, *, most_arrays: int = 100_000
) -> dict[str, np.ndarray]:
    """Views of the data, after the table has proved to describe all of it and nothing else.

    ``most_arrays``: arrays of one file.
    """
    if len(table) > most_arrays:
        raise _broken(path, f"it claims {len(table)} arrays, more than {most_arrays}")
    entries = {name: _entry(name, entry, path) for name, entry in table.items()}
    end = 0
    for name, (_, _, first, last) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if first != end:
            raise _broken(path, f"array {name!r} does not begin where the one before it ends")
        end = last
    if end != len(data):
        raise _broken(path, f"its arrays claim {end} bytes and it holds {len(data)}")
    return {
        name: data[first:last].view(dtype).reshape(shape)
        for name, (dtype, shape, first, last) in entries.items()
    }


def _entry(
    name: str, entry: Any, path: Path, *, most_dimensions: int = 64
) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """Dtype, shape and place of an array, which must agree.

    ``most_dimensions``: dimensions of an array.
    """
    try:
        dtype, shape = np.dtype(_TYPES[entry["dtype"]]), entry["shape"]
        first, last = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"the entry of array {name!r} cannot be read") from error
    counts = [*shape, first, last] if isinstance(shape, list) else [None]
    if not all(type(count) is int and 0 <= count < 2**62 for count in counts):
        raise _broken(path, f"array {name!r} has a shape or place that is no count")
    if len(shape) > most_dimensions or math.prod(shape) * dtype.itemsize != last - first:
        raise _broken(path, f"the shape of array {name!r} does not fit its place")
    return dtype, tuple(shape), first, last


def _digest(text: str, arrays: dict[str, np.ndarray]) -> str:
    """Of the document, and of name, dtype, shape and bytes of every array."""
    total = hashlib.sha256()
    for part in _parts(text, arrays):
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def _parts(text: str, arrays: dict[str, np.ndarray]) -> Iterable[bytes | memoryview]:
    yield text.encode()
    for name in sorted(arrays):
        array = arrays[name]
        yield f"{name}\n{_NAMES[array.dtype]}\n{list(array.shape)}".encode()
        yield array.reshape(-1).view(np.uint8).data
