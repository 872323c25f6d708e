"""The text format of LIBSVM: ``label index:value index:value ...``, one row per line."""

from __future__ import annotations

import re

import numpy as np

from curvi.datasets._content import DataFormatError, format_error

MAX_LINE = 2**20  # bytes; a row of 7129 features written with six decimals has about 10^5
# Quantifiers are possessive (++, *+), so that a bad line is rejected in linear time.
_NUMBER = rb"[+-]?+(?:\d{1,40}+(?:\.\d{0,40}+)?+|\.\d{1,40}+)(?:[eE][+-]?+\d{1,3}+)?+"
_LABEL = re.compile(_NUMBER)
_ENTRY = re.compile(rb"\d{1,9}+:" + _NUMBER)
_LINE = re.compile(_NUMBER + rb"(?:[ \t]++\d{1,9}+:" + _NUMBER + rb")*+[ \t]*+\r?+")


def parse_libsvm(
    content: bytes, name: str, *, num_rows: int, num_features: int
) -> tuple[np.ndarray, np.ndarray]:
    r"""Two-class rows as a dense float64 matrix and integer labels -1 and +1.

    NumPy converts the numbers once a regular expression has accepted every line. (The reader in
    scikit-learn would do it too, but it also accepts comments, ``qid:`` and what Python's
    ``float`` accepts, and does not know the line of a mistake.)

    Parameters
    ----------
    content
        The decompressed file.
    name
        The file, for messages.
    num_rows, num_features
        The shape that the file must have; indices run from 1 to `num_features`.

    Raises
    ------
    DataFormatError
        A line is empty, too long or not of the format; an index is out of range, repeated or out
        of order; a value overflows; a label is neither -1 nor +1; rows are missing or too many.

    Examples
    --------
    >>> X, y = parse_libsvm(b"+1 1:0.5 3:2\n-1 2:1e-1\n", "toy", num_rows=2, num_features=3)
    >>> X.tolist(), y.tolist()
    ([[0.5, 0.0, 2.0], [0.0, 0.1, 0.0]], [1, -1])
    """
    ends = content.count(b"\n")
    if ends > num_rows:  # before the lines are split: a file of newlines would fill the memory
        raise format_error(name, f"line {num_rows + 1}", f"more rows than the {num_rows} expected")
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    counts = np.array([_entries(line, name, i) for i, line in enumerate(lines, 1)], np.int64)
    if len(lines) != num_rows:
        what = f"the file ends after {len(lines)} rows of {num_rows}"
        raise format_error(name, f"line {len(lines)}", what)
    numbers = np.fromstring(content.replace(b":", b" "), dtype=np.float64, sep=" ")
    starts = np.cumsum(1 + 2 * counts) - (1 + 2 * counts)
    labels = numbers[starts]
    pairs = np.delete(numbers, starts).reshape(-1, 2)
    indices, values = pairs[:, 0].astype(np.int64), pairs[:, 1]
    rows = np.repeat(np.arange(num_rows), counts)
    _check(name, rows, indices, values, labels, num_features)
    X = np.zeros((num_rows, num_features))
    X[rows, indices - 1] = values + 0.0  # turns -0.0 into 0.0
    return X, labels.astype(np.int64)


def _entries(line: bytes, name: str, number: int) -> int:
    """The number of ``index:value`` entries of a line, once it is known to be well formed."""
    if len(line) > MAX_LINE:
        raise format_error(name, f"line {number}", f"is longer than {MAX_LINE} bytes")
    if _LINE.fullmatch(line) is None:
        raise _explain(line, name, number)
    return line.count(b":")


def _explain(line: bytes, name: str, number: int) -> DataFormatError:
    """Why a line does not match, by the place of its first wrong word.

    The word itself stays unsaid: a link may lead to a file that is not for everyone to read.
    """
    where, words = f"line {number}", line.split()
    if not words:
        return format_error(name, where, "is empty")
    if _LABEL.fullmatch(words[0]) is None:
        return format_error(name, where, "the label is not a number")
    for index, word in enumerate(words[1:], 2):
        if _ENTRY.fullmatch(word) is None:
            what = f"word {index} is not index:value with a whole index and a decimal value"
            return format_error(name, where, what)
    return format_error(name, where, "has characters other than words, spaces and tabs")


def _check(
    name: str,
    rows: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    labels: np.ndarray,
    num_features: int,
) -> None:
    """Validate the values of well-formed numbers, and name the first that is wrong."""
    unordered = np.zeros(rows.shape, bool)
    unordered[1:] = (rows[1:] == rows[:-1]) & (indices[1:] <= indices[:-1])
    outside = (indices < 1) | (indices > num_features)
    if (k := _first(outside)) is not None:
        what = f"index {indices[k]} is outside 1 to {num_features}"
    elif (k := _first(unordered)) is not None:
        what = f"index {indices[k]} follows {indices[k - 1]}; indices must increase"
    elif (k := _first(~np.isfinite(values))) is not None:
        what = f"the value of index {indices[k]} is too large for float64"
    elif (row := _first(np.abs(labels) != 1)) is not None:
        what = f"the label {labels[row]:g} is neither -1 nor +1"
        raise format_error(name, f"line {row + 1}", what)
    else:
        return
    raise format_error(name, f"line {rows[k] + 1}", what)


def _first(wrong: np.ndarray) -> int | None:
    """The place of the first True."""
    return int(np.argmax(wrong)) if wrong.any() else None
