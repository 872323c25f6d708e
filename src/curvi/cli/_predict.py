"""``curvi predict``: predictions of a saved model for the rows of a new table."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from curvi._core.errors import InputError
from curvi._core.files import check_output, write_atomically
from curvi._core.text import printable
from curvi.cli._encode import encoded, typed_columns
from curvi.cli._terminal import say
from curvi.datasets import Cells, is_missing, read_cells, separator_of


@dataclass(frozen=True)
class PredictCommand:
    """Predict the rows of a new table with a model that curvi fit has saved.

    Prints CSV, one line per row: the expected response with a 90 % interval, or the predicted
    class with the probability of every class. The table needs the columns of the fit, in any
    order; it may have others.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """File that curvi fit --save, or save() of an estimator, has written."""
    table: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE.csv")]
    """CSV file with a header, or a Parquet file."""
    separator: Literal["auto", "comma", "semicolon", "tab"] = "auto"
    """What stands between the cells of the table; auto finds it."""
    out: Path | None = None
    """File for the predictions, instead of the terminal."""
    overwrite: bool = False
    """Replace that file."""
    json: bool = False
    """Write JSON instead of CSV."""
    seed: int = 0
    """Of no effect: predictions follow from the model. Every command has it."""

    def run(self) -> int:
        """Predict, print or write."""
        from curvi.cli._stream import as_text
        from curvi.io import load
        from curvi.paper.experiments._figures import as_csv

        if self.out is not None:
            inputs = (self.model, self.table)
            check_output(self.out, "--out", overwrite=self.overwrite, inputs=inputs)
        try:
            model = load(self.model)
        except OSError as error:
            raise InputError(
                f"{self.model}: cannot be read ({error.strerror}); give a file that curvi fit "
                "--save has written"
            ) from error
        with tempfile.TemporaryDirectory() as folder:
            table = as_text(self.table, folder)
            between = separator_of(table, self.separator)
            cells = read_cells(table, separator=between, least=1)
        rows = predictions(model, cells)
        text = json.dumps(rows, indent=1) + "\n" if self.json else as_csv(rows)
        if self.out is None:
            say(text.removesuffix("\n"))
        else:
            write_atomically(self.out, text)
            say(f"{len(rows)} predictions written to {self.out}")
        return 0


def predictions(model: Any, cells: Cells) -> list[dict[str, Any]]:
    """One dictionary per row.

    Raises
    ------
    InputError
        The file holds no model that predicts, or a column that it needs is missing or not usable.
    """
    if hasattr(model, "posterior_"):
        return _of_mixed(model, cells)
    if not hasattr(model, "predict") or not hasattr(model, "coef_"):
        kind = type(model).__name__
        raise InputError(f"the file holds a {kind}, which predicts no rows of a table; fit a "
                         "table with --target or --formula, and --save it")  # fmt: skip
    X = np.column_stack([encoded(column, cells) for column in _columns(model, cells)])
    if hasattr(model, "classes_"):
        chance = np.asarray(model.predict_proba(X), float)
        kept = getattr(model, "table_", {}).get("classes")
        classes = [printable(str(c)) for c in kept or model.classes_]
        return [
            {"prediction": classes[int(row.argmax())],
             **{f"P({name})": _round(p) for name, p in zip(classes, row, strict=True)}}
            for row in chance
        ]  # fmt: skip
    low, high = model.predict_interval(X)
    return _with_ends(model.predict(X), low, high)


def _columns(model: Any, cells: Cells) -> list[dict[str, Any]]:
    """How the model wants its columns: as they were encoded, by name, or in order."""
    recipe = getattr(model, "table_", None)
    if recipe is not None:
        return list(recipe["columns"])
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        return [{"name": str(name)} for name in names]
    if len(cells.columns) != model.n_features_in_:
        raise InputError(
            f"the model was fitted to {model.n_features_in_} columns without names, and "
            f"{printable(cells.name)} has {len(cells.columns)}; give a table of those columns alone"
        )
    return [{"name": name} for name in cells.columns]


def _of_mixed(model: Any, cells: Cells) -> list[dict[str, Any]]:
    from curvi.mixed import column_names, parse

    formula = parse(model.formula_)
    names = [name for name in cells.columns if name in column_names(formula)]
    groups = {name for bar in formula.bars for name in bar.columns}
    for name in names:
        if name in groups or name == formula.response:
            continue  # the identity of a group may be unknown, the response is not needed
        for row, cell in enumerate(cells.columns[name]):
            if is_missing(cell):
                where = f"line {cells.lines[row]}, column {name!r}"
                raise InputError(f"{printable(cells.name)}: {where}: is empty; fill it in")
    table: dict[str, Any] = typed_columns(cells, names)
    for name in groups & set(names):
        if any(map(is_missing, cells.columns[name])):
            known = [None if is_missing(cell) else cell for cell in cells.columns[name]]
            table[name] = np.array(known, dtype=object)
    table.pop(formula.response, None)
    kind = "mean" if model.classes_ else "response"
    found = model.predict(table, interval=0.9, kind=kind)
    rows = _with_ends(found["mean"], found["lower"], found["upper"])
    if model.classes_:
        name = f"P({printable(str(model.classes_[1]))})"
        rows = [{name: row["expected"], "lower": row["lower"], "upper": row["upper"]}
                for row in rows]  # fmt: skip
    return rows


def _with_ends(expected: Any, low: Any, high: Any) -> list[dict[str, Any]]:
    ends = zip(np.asarray(expected), np.asarray(low), np.asarray(high), strict=True)
    return [{"expected": _round(m), "lower": _round(a), "upper": _round(b)} for m, a, b in ends]


def _round(value: Any) -> float:
    return float(f"{float(value):.6g}")
