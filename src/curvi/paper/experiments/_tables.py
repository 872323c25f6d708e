"""Rows of numbers as CSV and Markdown, and the files of an experiment."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from curvi._core.files import write_atomically
from curvi._core.text import printable
from curvi.plots import png_bytes

Row = dict[str, Any]
QUICK = (
    "Quick settings: runs of one or two seconds with one setting per method, which say nothing "
    "about the paper's claims."
)
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are wide


def as_csv(rows: list[Row]) -> str:
    """CSV text of equal dictionaries, without text that a spreadsheet would run."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    lines: list[Iterable[Any]] = [list(rows[0]), *(row.values() for row in rows)]
    writer.writerows([_inert(cell) for cell in line] for line in lines)
    return stream.getvalue()


def _inert(cell: Any) -> Any:
    """The cell, printable, and with an apostrophe before what a spreadsheet would run."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(_FORMULA) else text
    return text


def as_markdown(rows: list[Row]) -> str:
    """A Markdown table of equal dictionaries."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)


def median_and_range(values: list[int] | list[float], digits: int = 0, *, huge: float = 1e7) -> str:
    """``median (lowest to highest)``, or the one value where all are equal.

    ``huge``: above which numbers are written as powers of ten.
    """
    lowest, middle, highest = (
        f"{value:.1e}" if abs(value) > huge else f"{value:.{digits}f}"
        for value in (min(values), statistics.median(values), max(values))
    )
    return middle if lowest == highest else f"{middle} ({lowest} to {highest})"


def write_files(out: Path, files: dict[str, Any], *, dpi: int = 120) -> list[Path]:
    """Write files, each complete or not at all: rows as .csv, figures as .png, text as it is.

    Parameters
    ----------
    out : Path
        Folder of the files.
    files : dict
        File names with their content.
    dpi : int
        Resolution of the figures.

    Returns
    -------
    list of Path
        The files, in the order given.
    """
    for name, content in files.items():
        if isinstance(content, list):
            write_atomically(out / name, as_csv(content))
        elif isinstance(content, str | bytes):
            write_atomically(out / name, content)
        else:
            write_atomically(out / name, png_bytes(content, dpi))
    return [out / name for name in files]
