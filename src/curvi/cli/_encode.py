"""From the cells of a user's table to numbers: categories, dates, identifiers, missing values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi._core.text import listed, printable, quoted
from curvi.datasets import (
    CellError,
    Cells,
    Table,
    chosen_columns,
    is_date,
    is_missing,
    is_number,
    read_cells,
    read_table,
    separator_of,
)

_ID_NAME = re.compile(r"(^|[_ .-])(id|nr|no|index|key|uuid|row)$|^(id|index)[_ .-]", re.IGNORECASE)


@dataclass(frozen=True)
class Prepared:
    """A table of numbers, how its columns were made, and what the user should know about it."""

    table: Table
    recipe: dict[str, Any]  # kept with the model, so that new tables are encoded alike
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)


def prepare(
    path: Path, target: str, *, ignore: Sequence[str], separator: str, missing: str
) -> Prepared:
    """Read a table for a regression.

    Numbers stay as they are. Text of at most 30 levels becomes indicators against the most
    frequent level. Dates, and text that differs in nearly every row, are left out and pointed out.

    Raises
    ------
    InputError
        Cells are missing and nothing was said about them, or a column mixes numbers and text.
    """
    between = separator_of(path, separator)
    try:
        table = read_table(path, target, ignore=ignore, separator=between)
    except CellError as error:
        cells = read_cells(path, separator=between)
        return _of_cells(cells, target, ignore, missing, error)
    recipe = {"target": target, "columns": [{"name": name} for name in table.names]}
    return Prepared(table, recipe, _identifiers(table), _written(between, comma=False))


def _of_cells(
    cells: Cells, target: str, ignore: Sequence[str], missing: str, error: CellError
) -> Prepared:
    wanted, _ = chosen_columns(list(cells.columns), cells.name, target, ignore)
    names = [list(cells.columns)[i] for i in wanted]
    kinds = {name: _kind(cells.columns[name]) for name in names}
    if any(kind == "mixed" for kind in kinds.values()):
        raise error
    left = {name: kind for name, kind in kinds.items() if kind in ("dates", "identifier", "empty")}
    names = [name for name in names if name not in left]
    if not names:
        raise InputError(f"no column of {printable(cells.name)} can be used: {_left_out(left)}")
    cells, facts, notes = handle_missing(cells, [*names, target], missing)
    _refuse_missing(cells, [target], "the target has to be known: use --missing drop")
    columns = [_column(name, cells.columns[name]) for name in names]
    X = np.column_stack([encoded(column, cells) for column in columns])
    table = Table(X, tuple(indicator_names(columns)), tuple(cells.columns[target]))
    if left:
        notes = (*notes, _left_out(left))
    texts = [c for c in columns if "levels" in c]
    if texts:
        facts["text columns"] = "; ".join(
            f"{c['name']} against {c['levels'][0]} ({len(c['levels'])} levels)" for c in texts
        )
    written = _written(cells.separator, comma=cells.decimal_comma)
    recipe = {"target": target, "columns": columns}
    return Prepared(table, recipe, (*notes, *_identifiers(table)), written | facts)


def _kind(cells: list[str], *, most_levels: int = 30) -> str:
    known = [cell for cell in cells if not is_missing(cell)]
    if not known:
        return "empty"
    numbers = sum(map(is_number, known))
    if numbers == len(known):
        return "numbers" if np.isfinite([float(cell) for cell in known]).all() else "mixed"
    if all(map(is_date, known)):
        return "dates"
    if numbers:
        return "mixed"
    levels = len(set(known))
    return "text" if levels <= most_levels and levels <= max(2, len(known) // 2) else "identifier"


def _column(name: str, cells: list[str]) -> dict[str, Any]:
    """How a column is encoded: numbers with their mean, or text with its levels."""
    known = [cell for cell in cells if not is_missing(cell)]
    if all(map(is_number, known)):
        return {"name": name, "mean": float(np.mean([float(cell) for cell in known]))}
    counts = Counter(cell if not is_missing(cell) else "(missing)" for cell in cells)
    levels = sorted(counts, key=lambda level: (-counts[level], level))
    return {"name": name, "levels": [levels[0], *sorted(levels[1:])]}


def indicator_names(columns: list[dict[str, Any]]) -> list[str]:
    """Names of the encoded columns: ``colour=red`` for an indicator."""
    out: list[str] = []
    for column in columns:
        levels = column.get("levels")
        out += [f"{column['name']}={level}" for level in levels[1:]] if levels else [column["name"]]
    return out


def encoded(column: dict[str, Any], cells: Cells) -> np.ndarray:
    """A column as numbers, (rows, 1) or one indicator for every level but the first.

    Raises
    ------
    InputError
        A cell is neither a number nor a level that is known.
    """
    name = column["name"]
    if name not in cells.columns:
        raise InputError(
            f"{printable(cells.name)} has no column {quoted(name)}, which the model needs"
        )
    found, levels = cells.columns[name], column.get("levels")
    if levels is None:
        out = np.empty((len(found), 1))
        for row, cell in enumerate(found):
            if is_missing(cell) and "mean" in column:
                out[row] = column["mean"]
                continue
            if not is_number(cell):
                where = f"line {cells.lines[row]}, column {quoted(name)}"
                raise InputError(
                    f"{printable(cells.name)}: {where}: {quoted(cell)} is not a number"
                )
            out[row] = float(cell)
        return out
    places = {level: place for place, level in enumerate(levels)}
    codes = np.empty(len(found), int)
    for row, cell in enumerate(found):
        level = "(missing)" if is_missing(cell) else cell
        if level not in places:
            where = f"line {cells.lines[row]}, column {quoted(name)}"
            known = ", ".join(map(quoted, levels[:8]))
            raise InputError(
                f"{printable(cells.name)}: {where}: {quoted(cell)} is not among the levels of the "
                f"fit ({known})"
            )
        codes[row] = places[level]
    return (codes[:, None] == np.arange(1, len(levels))).astype(float)


def handle_missing(
    cells: Cells, names: list[str], missing: str
) -> tuple[Cells, dict[str, str], tuple[str, ...]]:
    """Leave out rows with missing cells, or keep them to be filled in; refuse them by default."""
    empty = {name: [i for i, cell in enumerate(cells.columns[name]) if is_missing(cell)]
             for name in names}  # fmt: skip
    rows = sorted({i for places in empty.values() for i in places})
    if not rows:
        return cells, {}, ()
    counts = {name: len(places) for name, places in empty.items() if places}
    said = listed([f"{printable(name)} {count}" for name, count in counts.items()], 3)
    if missing == "drop":
        kept = sorted(set(range(len(cells.lines))) - set(rows))
        if not kept:
            raise InputError("every row has a missing cell; fill them in, or --ignore a column")
        note = f"{len(rows)} of {len(cells.lines)} rows have a missing cell and were left out"
        return cells.kept(kept), {"missing cells": f"{note} ({said})"}, (f"{note} ({said}).",)
    if missing == "mean":
        note = f"{sum(counts.values())} missing cells were filled in, with column means in numbers "
        note += f"and a level of their own in text ({said})"
        more = "; intervals do not know that, and are a little too narrow."
        return cells, {"missing cells": note}, (note + more,)
    first = min(rows)
    name = next(n for n, places in empty.items() if first in places)
    where = f"line {cells.lines[first]}, column {quoted(name)}"
    what = "is empty" if not cells.columns[name][first] else f"is {cells.columns[name][first]}"
    raise InputError(
        f"{printable(cells.name)}: {where}: {what}; {sum(counts.values())} cells are missing "
        f"({said}): --missing drop leaves out their {len(rows)} of {len(cells.lines)} rows, "
        "--missing mean fills in column means"
    )


def _refuse_missing(cells: Cells, names: list[str], remedy: str) -> None:
    for name in names:
        for row, cell in enumerate(cells.columns[name]):
            if is_missing(cell):
                where = f"line {cells.lines[row]}, column {quoted(name)}"
                raise InputError(f"{printable(cells.name)}: {where}: is empty; {remedy}")


def _left_out(left: dict[str, str]) -> str:
    why = {"dates": "holds dates", "identifier": "differs in nearly every row, like an identifier",
           "empty": "is empty"}  # fmt: skip
    parts = [f"{quoted(name)} {why[kind]}" for name, kind in left.items()]
    return f"Left out: {listed(parts, 3, between='; ')}."


def _identifiers(table: Table) -> tuple[str, ...]:
    """Point out columns of numbers that are no quantities."""
    found = []
    for name, values in zip(table.names, table.X.T, strict=True):
        whole = len(values) > 20 and np.all(values == np.round(values))
        if not whole or len(np.unique(values)) < len(values):
            continue
        steps = np.diff(values)
        if np.all(steps == 1) or _ID_NAME.search(name):
            found.append(name)
    if not found:
        return ()
    columns = " ".join(map(quoted, found))
    verb = "looks" if len(found) == 1 else "look"
    return (f"{columns} {verb} like an identifier: leave it out with --ignore {columns}.",)


def _written(separator: str, *, comma: bool) -> dict[str, str]:
    if separator == "," and not comma:
        return {}
    name = {",": "commas", ";": "semicolons", "\t": "tabs"}[separator]
    return {"file": f"cells between {name}" + (", decimal commas" if comma else "")}


def typed_columns(cells: Cells, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Columns as numbers where all cells are numbers, whole ones as integers, otherwise text."""
    out = {}
    for name in names or cells.columns:
        found = cells.columns[name]
        if not all(map(is_number, found)):
            out[name] = np.array(found, dtype=object)
            continue
        values = np.array([float(cell) for cell in found])
        whole = np.all(values == np.round(values)) and np.max(np.abs(values)) < 2**53
        is_integer = whole and not any("." in cell for cell in found)
        out[name] = values.astype(np.int64) if is_integer else values
    return out
