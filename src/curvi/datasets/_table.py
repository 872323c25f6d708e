"""A user's table of numbers: comma-separated text with a header, read strictly and with limits."""

from __future__ import annotations

import csv
import io
import math
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from curvi._core.errors import InputError
from curvi._core.memory import require_memory
from curvi._core.text import printable, quoted
from curvi.datasets._content import DataFormatError, format_error, read_content

MAX_TABLE_BYTES = 512 * 2**20
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MISSING = ("nan", "inf", "infinity", "na", "n/a", "null", "none", "?")


class CellError(DataFormatError):
    """A single cell that is no number; the table may still make sense with text in it."""


class Table(NamedTuple):
    """Columns of numbers, their names, and the target.

    Attributes
    ----------
    X : array, shape (rows, features)
        The features, finite float64 numbers.
    names : tuple of str
        The names of the features, from the header.
    target : tuple of str
        The target of each row, as it is written in the file.
    """

    X: np.ndarray
    names: tuple[str, ...]
    target: tuple[str, ...]


def read_table(
    path: Path, target: str, *, ignore: Sequence[str] = (), separator: str = ","
) -> Table:
    """Read a file of comma-separated values, plain or compressed with gzip or bzip2.

    The first line names the columns. Every other line has one cell per column: a finite decimal
    number, or for the target any text.

    Parameters
    ----------
    path
        The file, at most 512 MiB when unpacked.
    target
        The name of the column to be predicted.
    ignore
        The names of columns to leave out.
    separator
        The character between cells.

    Returns
    -------
    Table
        The remaining columns as numbers, and the target as text.

    Raises
    ------
    InputError
        The header has no column of a name that was given, or no feature is left.
    DataFormatError
        The file is not such a table; the message names line and column.
    """
    content = read_content(path, str(path), max_bytes=MAX_TABLE_BYTES)
    return parse_table(content, str(path), target, ignore=ignore, separator=separator)


def parse_table(
    content: bytes, name: str, target: str, *, ignore: Sequence[str] = (), separator: str = ",",
    growth: int = 12,
) -> Table:  # fmt: skip
    """Parse the bytes of a table; see `read_table`.

    The first line names the columns. Every other line has one cell per column: finite decimal
    numbers, but for the target, which may be text. Cells are stripped of blanks; empty lines are
    allowed at the end only.

    ``growth``: memory of a parsed table over the bytes of its text, for the shortest cells.
    """
    check_text(content, name)
    what = f"the table in {printable(name)}"
    require_memory(growth * len(content), what, "leave out rows or columns")
    text = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=separator, strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        check_header(header, name, separator)
        wanted, at = chosen_columns(header, name, target, ignore)
        values, labels = _rows(reader, name, header, wanted, at)
    except csv.Error as error:
        raise format_error(
            name, f"line {reader.line_num}", f"is not valid CSV ({error})"
        ) from error
    if not labels:
        raise format_error(name, "", "has a header and no rows", "add rows below the header")
    X = np.frombuffer(values).reshape(len(labels), len(wanted))
    return Table(X, tuple(header[i] for i in wanted), tuple(labels))


def check_text(content: bytes, name: str) -> None:
    """Refuse bytes that are not UTF-8 text."""
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise format_error(
            name, f"byte {error.start}", "is not UTF-8 text", "save the table as UTF-8"
        ) from error
    if (at := content.find(b"\0")) >= 0:
        raise format_error(name, f"byte {at}", "is a zero byte; this is not a text file")


def check_header(
    header: list[str], name: str, separator: str, least: int = 2, *, most_columns: int = 100_000
) -> None:
    """Refuse a header without names, with equal names, or with fewer than at least needed.

    ``most_columns``: columns of a table.
    """
    if not any(header):
        raise format_error(name, "line 1", "is empty", "start with a line that names the columns")
    if len(header) > most_columns:
        raise format_error(
            name, "line 1", f"has more than {most_columns} columns", "leave some out"
        )
    if all(_NUMBER.fullmatch(cell) for cell in header):
        raise format_error(
            name, "line 1", "holds numbers only", "start with a line that names the columns"
        )
    if len(header) < least:
        hint = f"is the separator really {separator!r}? (--separator comma, semicolon or tab)"
        raise format_error(
            name, "line 1", "has one column, but a target and a feature are needed", hint
        )
    seen: set[str] = set()
    for number, cell in enumerate(header, 1):
        if not cell:
            raise format_error(name, "line 1", f"column {number} has no name", "name every column")
        if (shown := printable(cell)) in seen:
            what = f"two columns are called {quoted(cell)}"
            raise format_error(name, "line 1", what, "give every column a name of its own")
        seen.add(shown)


def chosen_columns(
    header: list[str], name: str, target: str, ignore: Sequence[str]
) -> tuple[list[int], int]:
    """The places of the features, and that of the target, by the names that a user has given."""
    for option, column in [("target", target), *(("ignore", column) for column in ignore)]:
        if column not in header:
            known = ", ".join(map(quoted, header[:10])) + (", ..." if len(header) > 10 else "")
            raise InputError(
                f"--{option} is {quoted(column)}, but the columns of {printable(name)} are: {known}"
            )
    if target in ignore:
        raise InputError(f"--ignore has the target {quoted(target)}; leave it out of one of them")
    wanted = [i for i, column in enumerate(header) if column != target and column not in ignore]
    if not wanted:
        raise InputError(f"no column of {printable(name)} is left beside the target; ignore fewer")
    return wanted, header.index(target)


def _rows(
    reader: Any, name: str, header: list[str], wanted: list[int], at: int, *,
    most_shared: int = 10_000,
) -> tuple[array[float], list[str]]:  # fmt: skip
    values: array[float] = array("d")  # eight bytes a number, and not an object a row
    labels: list[str] = []
    known: dict[str, str] = {}  # one text for all rows of a class
    blank = 0
    for cells in reader:
        line = reader.line_num
        if not cells:
            blank = blank or line
            continue
        if blank:
            raise format_error(name, f"line {blank}", "is empty", "remove it, or fill it in")
        if len(cells) != len(header):
            what = f"has {len(cells)} cells, but the header names {len(header)} columns"
            raise format_error(name, f"line {line}", what, "give every line one cell per column")
        label = cells[at].strip()
        if not label or label.lower().lstrip("+-") in _MISSING:
            raise _bad_cell(name, line, header[at], label)
        labels.append(known.setdefault(label, label) if len(known) < most_shared else label)
        values.extend(_numbers(cells, name, line, header, wanted))
    return values, labels


def _numbers(
    cells: list[str], name: str, line: int, header: list[str], wanted: list[int]
) -> list[float]:
    """The features of one line; Python's own notation for numbers is wider than decimal."""
    text = "".join(cells)
    if "_" not in text and text.isascii():  # all but these oddities are left to float()
        try:
            numbers = [float(cells[i]) for i in wanted]
        except ValueError:
            numbers = [math.nan]
        if all(map(math.isfinite, numbers)):
            return numbers
    numbers = []
    for i in wanted:
        cell = cells[i].strip()
        if not _NUMBER.fullmatch(cell) or not math.isfinite(float(cell)):
            raise _bad_cell(name, line, header[i], cell)
        numbers.append(float(cell))
    return numbers


def _bad_cell(name: str, line: int, column: str, cell: str) -> CellError:
    return CellError(str(_cell_error(name, line, column, cell)))


def _cell_error(name: str, line: int, column: str, cell: str) -> DataFormatError:
    where = f"line {line}, column {quoted(column)}"
    if not cell:
        return format_error(name, where, "is empty", "fill it in, or drop the row")
    if cell.lower().lstrip("+-") in _MISSING:
        return format_error(name, where, f"is {cell}", "fill it in, or drop the row")
    if _NUMBER.fullmatch(cell):
        return format_error(name, where, f"{quoted(cell)} overflows", "rescale the column")
    remedy = "write text columns as numbers (0 and 1 for each category), or leave them out "
    return format_error(name, where, f"{quoted(cell)} is not a number", remedy + "with --ignore")
