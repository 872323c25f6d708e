"""Grey images of 0 to 255: the IDX format of MNIST, and one matrix of a MATLAB 5 file.

The MATLAB reader is written out because that of SciPy is meant for trusted files: it takes type
codes and lengths from the file as they come, so that one flipped bit can end the process, and it
decompresses without a limit. The tests compare the two on good files.

A MATLAB file is a header of 128 bytes and a sequence of elements; an element is a type code, a
length and that many bytes. A variable is an element of type 14, or one of type 15 that is such an
element compressed by zlib. It consists of elements itself: flags, dimensions, name and numbers.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from curvi.datasets._content import MAX_BYTES, decompress, format_error

MAX_VARIABLES = 64
_UNSIGNED_BYTE = 8
_HEADER = 128
_ORDERS = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}
_MATRIX, _COMPRESSED = 14, 15
_INT32, _UINT32 = 5, 6
_TEXT = (1, 2, 16)
_NUMBERS = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
_REAL_CLASSES = range(6, 16)  # double, single and the integers of 8 to 64 bits
_OPAQUE_CLASS = 17  # a MATLAB object: it has no dimensions, and it is never what we look for
_COMPLEX_OR_LOGICAL = 0x0A00

_Matrix = tuple[int, tuple[int, ...], str, int, bytes]


def parse_idx(content: bytes, name: str, *, shape: tuple[int, ...]) -> tuple[np.ndarray]:
    r"""An array of unsigned bytes of exactly the given shape.

    Raises
    ------
    DataFormatError
        The magic number is not ``0 0 8 len(shape)``, a size in the header is not that of
        `shape`, or the data are shorter or longer than the header says.

    Examples
    --------
    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "toy", shape=(3,))
    (array([7, 8, 9], dtype=uint8),)
    """
    magic = bytes([0, 0, _UNSIGNED_BYTE, len(shape)])
    start = 4 * (1 + len(shape))
    if content[:4] != magic:
        raise format_error(name, "byte 0", f"the magic number is not {magic.hex(' ')}")
    if len(content) < start:
        raise format_error(name, f"byte {len(content)}", f"the header of {start} bytes ends early")
    for axis, expected in enumerate(shape):
        offset = 4 * (1 + axis)
        size = int.from_bytes(content[offset : offset + 4], "big")
        if size != expected:
            what = f"the header gives axis {axis} the size {size}, not {expected}"
            raise format_error(name, f"byte {offset}", what)
    end = start + math.prod(shape)
    if len(content) < end:
        what = f"the data end after {len(content) - start} of {end - start} bytes"
        raise format_error(name, f"byte {len(content)}", what)
    if len(content) > end:
        raise format_error(name, f"byte {end}", f"{len(content) - end} bytes follow the data")
    return (np.frombuffer(content, np.uint8, offset=start).reshape(shape),)


def parse_mat(
    content: bytes, name: str, *, variable: str, shape: tuple[int, int], max_bytes: int = MAX_BYTES
) -> tuple[np.ndarray]:
    """The variable as a uint8 matrix of exactly the given shape.

    Parameters
    ----------
    content
        The file.
    name
        The file, for messages.
    variable
        The variable to read; others are skipped.
    shape
        Its shape.
    max_bytes
        The most that all compressed variables together may decompress to.

    Raises
    ------
    DataFormatError
        The header is not that of a MATLAB 5 file, a variable ends early or decompresses to too
        much, the variable is missing, repeated or of another class or shape, or it holds
        anything but whole numbers from 0 to 255.
    """
    order = _ORDERS.get(content[_HEADER - 4 : _HEADER])
    if order is None:
        raise format_error(name, "byte 124", "this is not the header of a MATLAB 5 file")
    arrays: list[np.ndarray] = []
    count = 0
    for offset, body in _variables(content, name, order, max_bytes):
        where = f"byte {offset}"
        matrix = _matrix(body, name, where, order)
        count += 1
        if matrix[2] == variable:
            arrays.append(_grey_levels(matrix, name, where, order, shape))
    if len(arrays) != 1:
        what = f"the variable {variable!r} is there {len(arrays)} times, among {count} variables"
        raise format_error(name, "", what)
    return (arrays[0],)


def _variables(
    content: bytes, name: str, order: str, max_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """The offset and the decompressed body of every variable."""
    room, offset, count = max_bytes, _HEADER, 0
    while offset < len(content):
        where, count = f"byte {offset}", count + 1
        if count > MAX_VARIABLES:
            raise format_error(name, where, f"has more than {MAX_VARIABLES} variables")
        kind, body, end = _element(content[offset:], name, where, order)
        following = offset + end
        if kind == _COMPRESSED:
            element = decompress(zlib.decompressobj(), body, name, where, room, max_bytes)
            room -= len(element)
            kind, body, end = _element(element, name, where, order)
            if len(element) != end:
                raise format_error(name, where, "a compressed variable is longer than it states")
        if kind != _MATRIX:
            raise format_error(name, where, f"an element of type {kind} where a variable belongs")
        yield offset, body
        offset = following


def _element(data: bytes, name: str, where: str, order: str) -> tuple[int, bytes, int]:
    """Type, bytes and end of the element that `data` begins with."""
    if len(data) < 8:
        raise format_error(name, where, "ends inside the head of an element")
    kind, length = struct.unpack_from(f"{order}II", data)
    start, room = 8, len(data) - 8
    if kind >> 16:  # up to four bytes are stored in place of the length
        kind, length, start, room = kind & 0xFFFF, kind >> 16, 4, 4
    if length > room:
        raise format_error(name, where, f"an element of {length} bytes ends after {room}")
    return kind, data[start : start + length], start + length


def _matrix(body: bytes, name: str, where: str, order: str) -> _Matrix:
    """Flags, dimensions and name of a variable, and the type and bytes of its numbers."""
    (kind, flags), rest = _next(body, name, where, order)
    if kind != _UINT32 or len(flags) != 8:
        raise format_error(name, where, "a variable does not begin with its flags")
    (word,) = struct.unpack_from(f"{order}I", flags)
    if word & 0xFF == _OPAQUE_CLASS:
        return word, (), "", 0, b""
    (kind, sizes), rest = _next(rest, name, where, order)
    if kind != _INT32 or len(sizes) % 4 or not 8 <= len(sizes) <= 128:
        raise format_error(name, where, "a variable has no proper dimensions")
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    (kind, label), rest = _next(rest, name, where, order)
    if kind not in _TEXT:
        raise format_error(name, where, "a variable has no proper name")
    kind, numbers = _next(rest, name, where, order)[0] if rest else (0, b"")
    return word, shape, label.decode("latin-1"), kind, numbers


def _next(data: bytes, name: str, where: str, order: str) -> tuple[tuple[int, bytes], bytes]:
    """The first element inside a variable, and what follows its padding to eight bytes."""
    kind, body, end = _element(data, name, where, order)
    return (kind, body), data[end + -end % 8 :]


def _grey_levels(
    matrix: _Matrix, name: str, where: str, order: str, expected: tuple[int, int]
) -> np.ndarray:
    word, shape, label, kind, data = matrix
    if word & 0xFF not in _REAL_CLASSES or word & _COMPLEX_OR_LOGICAL or kind not in _NUMBERS:
        raise format_error(name, where, f"{label} is not a full matrix of real numbers")
    if shape != expected:
        raise format_error(name, where, f"{label} has the shape {shape}, not {expected}")
    dtype = np.dtype(order + _NUMBERS[kind])
    if len(data) != math.prod(shape) * dtype.itemsize:
        what = f"{label} has {len(data)} bytes, not {math.prod(shape)} times {dtype.itemsize}"
        raise format_error(name, where, what)
    values = np.frombuffer(data, dtype).reshape(shape, order="F")
    with np.errstate(invalid="ignore"):  # a signalling NaN, which is refused below
        whole = (values >= 0) & (values <= 255) & (values == np.floor(values))
    if not whole.all():
        row, column = (int(i) for i in np.argwhere(~whole)[0])
        what = f"{label}[{row}, {column}] is {values[row, column]}, not a whole grey level"
        raise format_error(name, where, what)
    return np.ascontiguousarray(values, np.uint8)
