"""Tables with groups, for mixed models: numbers and names in columns of known kinds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from curvi.datasets._content import format_error
from curvi.datasets._golub import _fields as fields_of
from curvi.datasets._golub import _table as lines_of

_KINDS = {
    "whole": (re.compile(r"[+-]?[0-9]{1,9}"), np.int64),
    "real": (re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?"), np.float64),
    "name": (re.compile(r"[ -~]{1,40}"), np.str_),
}
Columns = tuple[tuple[str, str], ...]


def parse_columns(
    content: bytes, name: str, *, columns: Columns, num_rows: int
) -> tuple[np.ndarray, ...]:
    """One array per column: int64, float64 or text, as its kind says.

    Raises
    ------
    DataFormatError
        The first line does not name the columns, rows are missing or too many, or a cell is not
        of the kind of its column.
    """
    lines = lines_of(content, name, num_rows + 1)
    header = [column for column, _ in columns]
    if fields_of(lines[0], name, 1) != header:
        raise format_error(name, "line 1", f"does not read {','.join(header)}")
    cells = []
    for number, line in enumerate(lines[1:], 2):
        row = fields_of(line, name, number)
        if len(row) != len(columns):
            what = f"has {len(row)} fields, not {len(columns)}"
            raise format_error(name, f"line {number}", what)
        for cell, (column, kind) in zip(row, columns, strict=True):
            if not _KINDS[kind][0].fullmatch(cell):
                what = f"the field {column} is not a {kind}{'' if kind == 'name' else ' number'}"
                raise format_error(name, f"line {number}", what)
        cells.append(row)
    return tuple(
        np.array(list(values), _KINDS[kind][1])
        for values, (_, kind) in zip(zip(*cells, strict=True), columns, strict=True)
    )


def as_table(
    parts: Sequence[tuple[np.ndarray, ...]], *, columns: Columns, response: str
) -> dict[str, Any]:
    """The fields of `Dataset`: the table, its response as y, its other numbers as X.

    A dot in a name, as R has them, becomes an underscore.
    """
    import pandas as pd

    (arrays,) = parts
    names = [column.replace(".", "_") for column, _ in columns]
    table = pd.DataFrame(dict(zip(names, arrays, strict=True)))
    numeric = [
        name
        for name, (_, kind) in zip(names, columns, strict=True)
        if kind != "name" and name != response
    ]
    X = table[numeric].to_numpy(np.float64)
    return {
        "train": (X, arrays[names.index(response)]),
        "feature_names": tuple(numeric),
        "table": table,
    }
