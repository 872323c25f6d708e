"""Cells of a table as text: which separator, decimal commas, what is missing, dates."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from curvi._core.errors import InputError
from curvi._core.memory import require_memory
from curvi._core.text import printable, quoted
from curvi.datasets._content import format_error, read_content

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}
MAX_TABLE_BYTES = 512 * 2**20
_MISSING = ("", "nan", "na", "n/a", "null", "none", "?")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{1,2}([./])\d{1,2}\5\d{2,4}( \d{1,2}:\d{2}(:\d{2})?)?",
    re.ASCII,
)


@dataclass(frozen=True)
class Cells:
    """The columns of a table as text, and what was found out about how it is written.

    Attributes
    ----------
    name : str
        The file, for messages.
    columns : dict of list of str
        Cells by the name of their column; decimal commas have become points.
    lines : list of int
        Line of the file on which every row ends.
    separator : str
        What stands between cells.
    decimal_comma : bool
        Whether numbers were written with commas.
    """

    name: str
    columns: dict[str, list[str]]
    lines: list[int]
    separator: str
    decimal_comma: bool

    def kept(self, rows: Iterable[int]) -> Cells:
        """Some of the rows."""
        order = list(rows)
        columns = {name: [cells[i] for i in order] for name, cells in self.columns.items()}
        lines = [self.lines[i] for i in order]
        return Cells(self.name, columns, lines, self.separator, self.decimal_comma)


def is_missing(cell: str) -> bool:
    """Whether a cell says that there is no value."""
    return cell.lower() in _MISSING


def is_number(cell: str) -> bool:
    """Whether a cell is a decimal number."""
    return NUMBER.fullmatch(cell) is not None


def is_date(cell: str) -> bool:
    """Whether a cell looks like a date."""
    return _DATE.fullmatch(cell) is not None


def find_separator(content: bytes, *, looked_at: int = 20) -> str:
    """The separator that cuts the first lines into the most cells, each line into as many.

    ``looked_at``: lines from which the separator is told.
    """
    head = content[: 2**20].decode("utf-8-sig", errors="replace").splitlines()[:looked_at]
    best, most = ",", 1
    for separator in SEPARATORS.values():
        try:
            rows = [row for row in csv.reader(head, delimiter=separator, strict=True) if row]
        except csv.Error:
            continue
        counts = {len(row) for row in rows}
        if len(counts) == 1 and most < (count := counts.pop()):
            best, most = separator, count
    return best


def separator_of(path: Path, chosen: str) -> str:
    """The separator of a file: the one that was chosen, or the one that is found in it."""
    if chosen in SEPARATORS:
        return SEPARATORS[chosen]
    return find_separator(read_content(path, str(path), max_bytes=MAX_TABLE_BYTES))


def read_cells(path: Path, *, separator: str, least: int = 2, text_growth: int = 40) -> Cells:
    """Read every cell of a table as text, within the limits of `curvi.datasets.read_table`.

    It has at least two columns, or one where ``least`` is 1.

    Raises
    ------
    InputError
        Numbers are written with commas and with points.
    DataFormatError
        The file is not such a table.

    ``text_growth``: memory of cells that are kept as text over the bytes of the file.
    """
    from curvi.datasets._table import check_header, check_text

    name = str(path)
    content = read_content(path, name, max_bytes=MAX_TABLE_BYTES)
    check_text(content, name)
    require_memory(text_growth * len(content), f"the table in {printable(name)}", "leave out rows")
    text = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=separator, strict=True)
    lines: list[int] = []
    try:
        header = [cell.strip() for cell in next(reader, [])]
        check_header(header, name, separator, least)
        columns: list[list[str]] = [[] for _ in header]
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                what = f"has {len(cells)} cells, but the header names {len(header)} columns"
                at = f"line {reader.line_num}"
                raise format_error(name, at, what, "give every line one cell per column")
            lines.append(reader.line_num)
            for column, cell in zip(columns, cells, strict=True):
                column.append(cell.strip())
    except csv.Error as error:
        raise format_error(
            name, f"line {reader.line_num}", f"is not valid CSV ({error})"
        ) from error
    if not lines:
        raise format_error(name, "", "has a header and no rows", "add rows below the header")
    table = dict(zip(header, columns, strict=True))
    comma = separator != "," and _has_decimal_commas(table, name)
    if comma:
        table = {key: [_with_point(cell) for cell in cells] for key, cells in table.items()}
    return Cells(name, table, lines, separator, comma)


def _has_decimal_commas(columns: dict[str, list[str]], name: str) -> bool:
    """Whether some column holds numbers with commas; refuses a table that has points as well."""
    commas = [key for key, cells in columns.items() if _all_numbers(cells, commas=True)]
    if not commas:
        return False
    for key, cells in columns.items():
        if any("." in cell for cell in cells) and _all_numbers(cells, commas=False):
            raise InputError(
                f"{printable(name)} has numbers with commas (column {quoted(commas[0])}) and with "
                f"points (column {quoted(key)}); write all of them in one way"
            )
    return True


def _all_numbers(cells: list[str], *, commas: bool) -> bool:
    """Whether all cells are numbers, and with ``commas`` at least one has a decimal comma."""
    known = [cell for cell in cells if not is_missing(cell)]
    has = any(_COMMA.fullmatch(cell) for cell in known)
    plain = all(NUMBER.fullmatch(c) or (commas and _COMMA.fullmatch(c)) for c in known)
    return bool(known) and plain and has is commas


def _with_point(cell: str) -> str:
    return cell.replace(".", "").replace(",", ".") if _COMMA.fullmatch(cell) else cell
