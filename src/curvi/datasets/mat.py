"""One matrix of whole numbers in 0..255 from a MATLAB 5 file.

SciPy reads the file, but not before every compressed variable has been decompressed here within a
bound: the format allows a variable of a kilobyte that decompresses to a gigabyte.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib

import numpy as np

from curvi.datasets.content import MAX_BYTES
from curvi.datasets.errors import refusal

MAX_VARIABLES = 64
_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_BYTE_ORDER = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}
_PLAIN_CLASSES = ("double", "single", "uint8", "int8", "uint16", "int16", "uint32", "int32")


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
    plain = _decompressed(content, name, max_bytes)
    value = _variable(plain, name, variable, shape)
    if value.dtype != np.uint8:
        whole = np.isfinite(value) & (value >= 0) & (value <= 255) & (value == np.floor(value))
        if not whole.all():
            row, column = (int(i) for i in np.argwhere(~whole)[0])
            what = f"{variable}[{row}, {column}] is {value[row, column]}, not a whole grey level"
            raise refusal(name, "", what)
    return (np.ascontiguousarray(value, np.uint8),)


def _decompressed(content: bytes, name: str, max_bytes: int) -> bytes:
    """The same file with every compressed variable written out plainly."""
    order = _BYTE_ORDER.get(content[_HEADER - 4 : _HEADER])
    if len(content) < _HEADER or order is None:
        raise refusal(name, "byte 124", "this is not the header of a MATLAB 5 file")
    parts, room, offset = [content[:_HEADER]], max_bytes, _HEADER
    while offset < len(content):
        if len(parts) > MAX_VARIABLES:
            raise refusal(name, f"byte {offset}", f"has more than {MAX_VARIABLES} variables")
        if offset + 8 > len(content):
            raise refusal(name, f"byte {offset}", "the file ends inside the head of a variable")
        kind, length = struct.unpack_from(f"{order}II", content, offset)
        body = content[offset + 8 : offset + 8 + length]
        if len(body) < length:
            what = f"a variable of {length} bytes ends after {len(body)}"
            raise refusal(name, f"byte {offset}", what)
        element = content[offset : offset + 8 + length]
        if kind == _COMPRESSED:
            element = _inflate(body, name, offset, room)
            room -= len(element)
            kind = _declared(element, name, offset, order)
        if kind != _MATRIX:
            raise refusal(name, f"byte {offset}", f"element of type {kind} where a matrix belongs")
        parts.append(element)
        offset += 8 + length
    return b"".join(parts)


def _inflate(body: bytes, name: str, offset: int, room: int) -> bytes:
    """The content of a compressed variable, at most `room` bytes of it."""
    machine = zlib.decompressobj()
    try:
        element = machine.decompress(body, room + 1)
    except zlib.error as error:
        raise refusal(name, f"byte {offset}", f"cannot be decompressed ({error})") from error
    if len(element) > room:
        raise refusal(name, f"byte {offset}", "decompresses to more than it can honestly hold")
    if not machine.eof:
        raise refusal(name, f"byte {offset}", "a compressed variable ends early")
    return element


def _declared(element: bytes, name: str, offset: int, order: str) -> int:
    """The type of a decompressed element, once the length that it states is its own."""
    if len(element) < 8:
        raise refusal(name, f"byte {offset}", "a compressed variable is empty")
    kind, length = struct.unpack_from(f"{order}II", element)
    if length + 8 != len(element):
        what = f"a compressed variable states {length} bytes and has {len(element) - 8}"
        raise refusal(name, f"byte {offset}", what)
    return int(kind)


def _variable(plain: bytes, name: str, variable: str, shape: tuple[int, int]) -> np.ndarray:
    """The variable as SciPy reads it, after its class and shape have been checked."""
    from scipy.io import loadmat, whosmat

    try:
        listed = whosmat(io.BytesIO(plain))
    except Exception as error:
        raise refusal(name, "", f"its variables cannot be listed ({error})") from error
    found = [(size, kind) for label, size, kind in listed if label == variable]
    if len(found) != 1:
        labels = ", ".join(repr(label) for label, _, _ in listed) or "nothing"
        what = f"the variable {variable!r} is there {len(found)} times, among {labels[:200]}"
        raise refusal(name, "", what)
    if found[0][0] != shape or found[0][1] not in _PLAIN_CLASSES:
        what = f"{variable} is {found[0][1]} of shape {found[0][0]}, not grey levels of {shape}"
        raise refusal(name, "", what)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # SciPy only warns about an unreadable variable
            value = loadmat(io.BytesIO(plain), variable_names=[variable])[variable]
    except Exception as error:
        raise refusal(name, "", f"{variable} cannot be read ({error})") from error
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype.kind not in "uif":
        raise refusal(name, "", f"{variable} is not a real matrix of shape {shape}")
    return value
