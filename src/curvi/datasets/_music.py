"""Sequences of binary vectors: the cell arrays of a MATLAB 5 file, as polyphonic music comes.

A cell array is a variable whose numbers are replaced by one matrix element per cell. Counts and
lengths are bounded before anything is copied, and what is read must be exactly what is expected.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from curvi.datasets._content import MAX_BYTES, format_error
from curvi.datasets._images import (
    _HEADER,
    _INT32,
    _MATRIX,
    _ORDERS,
    _TEXT,
    _UINT32,
    _element,
    _grey_levels,
    _matrix,
    _next,
    _variables,
)

_CELL_CLASS = 1
MAX_CELLS = 4096


def parse_cells(
    content: bytes,
    name: str,
    *,
    variables: dict[str, int],
    width: int,
    max_bytes: int = MAX_BYTES,
) -> tuple[np.ndarray, ...]:
    """Sequences of 0/1 vectors, two arrays per variable: all steps below each other, and lengths.

    Parameters
    ----------
    content
        The file.
    name
        The file, for messages.
    variables
        The cell arrays to read, and how many cells each must have; others are skipped.
    width
        Columns of every cell; its rows are the steps of a sequence.
    max_bytes
        The most that all compressed variables together may decompress to.

    Returns
    -------
    tuple of arrays
        For each variable a uint8 array of shape (steps, width) and an int64 array of lengths.

    Raises
    ------
    DataFormatError
        The header is not that of a MATLAB 5 file, a part ends early or decompresses to too much, a
        variable is missing, repeated or not a cell array of that many cells, or a cell is not a
        matrix of zeros and ones with at least one row and `width` columns.
    """
    order = _ORDERS.get(content[_HEADER - 4 : _HEADER])
    if order is None:
        raise format_error(name, "byte 124", "this is not the header of a MATLAB 5 file")
    sequences: dict[str, list[np.ndarray]] = {}
    for offset, body in _variables(content, name, order, max_bytes):
        where = f"byte {offset}"
        label, shape, cells = _cell_array(body, name, where, order)
        if label not in variables:
            continue
        if label in sequences:
            raise format_error(name, where, f"the variable {label!r} is there twice")
        if shape is None or math.prod(shape) != variables[label]:
            what = f"{label} is not a cell array of {variables[label]} cells"
            raise format_error(name, where, what)
        sequences[label] = _sequences(cells, name, where, order, label, shape, width)
    missing = [label for label in variables if label not in sequences]
    if missing:
        raise format_error(name, "", f"there is no variable {missing[0]!r}")
    arrays: list[np.ndarray] = []
    for label in variables:
        lengths = np.asarray([len(sequence) for sequence in sequences[label]], np.int64)
        arrays += [np.concatenate(sequences[label]), lengths]
    return tuple(arrays)


def _cell_array(
    body: bytes, name: str, where: str, order: str
) -> tuple[str, tuple[int, ...] | None, bytes]:
    """Name, dimensions and the bytes of the cells; no dimensions for another kind of variable."""
    (kind, flags), rest = _next(body, name, where, order)
    if kind != _UINT32 or len(flags) != 8:
        raise format_error(name, where, "a variable does not begin with its flags")
    if struct.unpack_from(f"{order}I", flags)[0] & 0xFF != _CELL_CLASS:
        return _matrix(body, name, where, order)[2], None, b""
    (kind, sizes), rest = _next(rest, name, where, order)
    if kind != _INT32 or len(sizes) != 8:
        raise format_error(name, where, "a cell array has no proper dimensions")
    shape = struct.unpack(f"{order}2i", sizes)
    if min(shape) < 1 or math.prod(shape) > MAX_CELLS:
        raise format_error(name, where, f"a cell array has the shape {shape}")
    (kind, label), rest = _next(rest, name, where, order)
    if kind not in _TEXT:
        raise format_error(name, where, "a variable has no proper name")
    return label.decode("latin-1"), shape, rest


def _sequences(
    cells: bytes,
    name: str,
    where: str,
    order: str,
    label: str,
    shape: tuple[int, ...],
    width: int,
) -> list[np.ndarray]:
    """Every cell as a matrix of zeros and ones."""
    sequences, start = [], 0
    for index in range(math.prod(shape)):
        cell = f"{label}{{{index + 1}}}"
        head = cells[start : start + 8]
        if len(head) < 8:
            raise format_error(name, where, f"ends before {cell}")
        kind, length = struct.unpack(f"{order}II", head)
        end = start + 8 + length
        if kind != _MATRIX or end > len(cells):
            raise format_error(name, where, f"{cell} is not a complete matrix")
        element = _element(cells[start:end], name, where, order)[1]
        word, size, _, kind, numbers = _matrix(element, name, where, order)
        if len(size) != 2 or size[1] != width or not 1 <= size[0] <= len(numbers):
            raise format_error(name, where, f"{cell} has the shape {size}, not (steps, {width})")
        matrix = _grey_levels((word, size, cell, kind, numbers), name, where, order, size)
        if matrix.max() > 1:
            raise format_error(name, where, f"{cell} holds a {matrix.max()}, not zeros and ones")
        sequences.append(matrix)
        start = end
    if start != len(cells):
        raise format_error(name, where, f"bytes follow the last cell of {label}")
    return sequences
