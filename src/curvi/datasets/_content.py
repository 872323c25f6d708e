"""Files to bytes, decompressed up to a size limit; arrays to checksums; the errors of both."""

from __future__ import annotations

import bz2
import hashlib
import os
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from curvi._core.errors import CurviError
from curvi._core.text import printable

REPLACE = "replace the file with an intact copy"
# The largest file that curvi knows, the training images of MNIST, has 47 million bytes inside.
MAX_BYTES = 64 * 2**20
# Parallel compressors write one stream per block. Each further stream copies the rest of the
# file, so their number is bounded as well.
_GZIP_WINDOW = 31  # zlib's code for "a gzip header and checksum around the data"
_GZIP, _BZIP2 = b"\x1f\x8b", b"BZh"
_NOT_READ = {
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ": "xz data",
    b"\x28\xb5\x2f\xfd": "zstd data",
}


class DataFormatError(CurviError, ValueError):
    """A data file is damaged, is not what its name says, or exceeds the size limit."""


class DataNotFoundError(CurviError, FileNotFoundError):
    """A data file is in none of the searched places; the message says where to put it."""


def format_error(name: str, where: str, what: str, remedy: str = REPLACE) -> DataFormatError:
    """The error of one file: its name, the place in it, what is wrong there, what to do.

    Parameters
    ----------
    name
        The file, as the user knows it.
    where
        ``"line 3"`` or ``"byte 16"``; empty when the whole file is meant.
    what
        What is wrong, as a clause.
    remedy
        What to do about it, as a clause.
    """
    where_in_file = f"{name}, {where}" if where else name
    return DataFormatError(printable(f"{where_in_file}: {what}; {remedy}"))


@runtime_checkable  # for annotation checkers
class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def read_content(path: Path, name: str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a file, decompressed if they are gzip or bzip2.

    The compression is recognised by the first bytes and not by the name, so that a file may be
    stored packed, unpacked or packed again.

    Raises
    ------
    DataFormatError
        The file or what is inside it exceeds `max_bytes`, ends early, fails the checksum of its
        compression, or has bytes after its end.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            is_file = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
            raw = stream.read(max_bytes + 1) if is_file else b""
    except (OSError, ValueError) as error:  # a zero byte in a path is a ValueError
        why = getattr(error, "strerror", None) or error
        raise format_error(name, "", f"cannot be read ({why})", "check the file") from error
    if not is_file:
        raise format_error(name, "", "is a pipe or a device", "save what it holds as a file")
    if len(raw) > max_bytes:
        raise format_error(name, "", f"is larger than {max_bytes} bytes, the most that is read")
    return inflate(raw, name, max_bytes=max_bytes)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to would wait for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def inflate(
    raw: bytes, name: str, *, max_bytes: int = MAX_BYTES, ratio: int = 200, small: int = 2**22,
    most_streams: int = 64,
) -> bytes:  # fmt: skip
    """Decompress gzip or bzip2 bytes into at most `max_bytes`; return others as they are.

    What is not `small` and expands more than `ratio` times repeats a few lines: a small file would
    keep a fit busy for many minutes.

    ``most_streams``: compressed streams that one file may hold.
    """
    for magic, kind in _NOT_READ.items():
        if raw.startswith(magic):
            raise format_error(
                name, "byte 0", f"is {kind}", "unpack it, or pack it with gzip or bzip2"
            )
    if not raw.startswith((_GZIP, _BZIP2)):
        return raw
    parts: list[bytes] = []
    remedy = REPLACE
    if (most := max(small, ratio * len(raw))) < max_bytes:
        max_bytes = most
        remedy = f"it grows more than {ratio} times: unpack it if it really repeats itself so"
    room, rest = max_bytes, raw
    for _ in range(most_streams):
        part, rest = _one_stream(rest, name, len(raw) - len(rest), room, max_bytes, remedy)
        parts.append(part)
        room -= len(part)
        if not rest:
            return b"".join(parts)
    raise format_error(name, "", f"consists of more than {most_streams} compressed streams")


def _one_stream(
    data: bytes, name: str, offset: int, room: int, max_bytes: int, remedy: str
) -> tuple[bytes, bytes]:
    """The first compressed stream of `data`, and the bytes after it."""
    decompressor: _Decompressor
    if data.startswith(_GZIP):
        decompressor = zlib.decompressobj(_GZIP_WINDOW)
    elif data.startswith(_BZIP2):
        decompressor = bz2.BZ2Decompressor()
    else:
        raise format_error(name, f"byte {offset}", "bytes follow the end of the compressed data")
    part = decompress(decompressor, data, name, f"byte {offset}", room, max_bytes, remedy)
    return part, decompressor.unused_data


def decompress(
    decompressor: _Decompressor, data: bytes, name: str, where: str, room: int, max_bytes: int,
    remedy: str = REPLACE,
) -> bytes:  # fmt: skip
    """Decompress one complete stream into at most `room` bytes, what is left of `max_bytes`."""
    try:
        # One byte more than allowed: zlib takes 0 for "no limit", and a stream that fills the
        # room exactly must still reach its end.
        part = decompressor.decompress(data, room + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise format_error(name, where, f"cannot be decompressed ({error})") from error
    if len(part) > room:
        raise format_error(name, where, f"decompresses to more than {max_bytes} bytes", remedy)
    if not decompressor.eof:
        raise format_error(name, where, "ends inside compressed data")
    return part


def digest(arrays: Iterable[np.ndarray]) -> str:
    """The sha256 of what was parsed: the dtype, shape and little-endian bytes of every array.

    It does not depend on compression, on line ends, or on how a number is written.
    """
    total = hashlib.sha256()
    for array in arrays:
        plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        total.update(f"{plain.dtype.str} {plain.shape}\n".encode())
        total.update(plain.tobytes())
    return total.hexdigest()
