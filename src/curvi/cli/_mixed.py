"""From a table and a formula to a fitted mixed model, and to what is reported about it."""

from __future__ import annotations

import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curvi._core.text import printable
from curvi.cli._encode import handle_missing, typed_columns
from curvi.cli._stream import as_text
from curvi.datasets import read_cells, separator_of
from curvi.plots import png_bytes
from curvi.report import Report


@dataclass(frozen=True)
class FittedMixed:
    """A fitted mixed model with everything that is reported about it."""

    model: Any
    seconds: float
    said: tuple[str, ...]  # warnings of the fit, and notes about the file
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def converged(self) -> bool:
        """Whether the posterior was found."""
        return bool(self.model.converged_)

    def rows(self) -> list[dict[str, str]]:
        """One row per estimate."""
        out = []
        for row in self.model.summary_table().to_dict("records"):
            name = printable(f"{row['kind']} {row['name']}".strip())
            numbers = {key: f"{row[key]:.6g}" for key in ("mean", "sd", "lower", "upper")}
            out.append({"name": name, **numbers})
        return out

    def effects(self) -> list[dict[str, str]]:
        """One row per level and effect."""
        out = []
        for factor, table in self.model.group_effects_.items():
            for effect in [column for column in table.columns if not column.endswith(" sd")]:
                for level, mean, sd in zip(
                    table.index, table[effect], table[f"{effect} sd"], strict=True
                ):
                    cells = {"factor": factor, "level": level, "effect": effect}
                    shown = {key: printable(str(value)) for key, value in cells.items()}
                    out.append({**shown, "mean": f"{mean:.6g}", "sd": f"{sd:.6g}"})
        return out

    def report(self, *, title: str, call: str, configuration: dict[str, Any]) -> Report:
        """The page about it."""
        from curvi.mixed import MixedPage

        return MixedPage(
            self.model, self.seconds, call=call, configuration=configuration, notes=self.said,
            more_facts=self.facts,
        ).report(title)  # fmt: skip

    def files(self, *, most_factors: int = 6) -> dict[str, Any]:
        """Tables and figures.

        ``most_factors``: groups whose levels are drawn.
        """
        names = [grouping.name for grouping in self.model.posterior_.groupings[:most_factors]]
        return {
            "estimates.csv": self.rows(),
            "groups.csv": self.effects(),
            "estimates.png": png_bytes(self.model.plot_effects()),
            "groups.png": png_bytes(self.model.plot_groups(names[0])),
        }


def fit_formula(
    path: Path, *, separator: str, missing: str, checkpoint: Any = None, mesh: Any = None,
    **options: Any,
) -> FittedMixed:  # fmt: skip
    """Read the columns of a formula, fit it to them, and keep what was said."""
    from curvi.mixed import MixedModel, column_names, parse

    with tempfile.TemporaryDirectory() as folder:
        text = as_text(path, folder)
        cells = read_cells(text, separator=separator_of(text, separator))
    used = column_names(parse(str(options["formula"])))
    names = [name for name in cells.columns if name in used]
    cells, facts, notes = handle_missing(cells, names, missing)
    if cells.decimal_comma:
        facts["file"] = "numbers with decimal commas"
    table = typed_columns(cells)  # all of them: a message names what there is
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = MixedModel(**options).fit(table, checkpoint=checkpoint, mesh=mesh)
    ours = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    said = dict.fromkeys(text for text in ours if not text.startswith("MixedModel:"))
    kept = tuple(text for text in said if text not in model.warnings_)
    return FittedMixed(model, time.perf_counter() - began, (*notes, *kept), facts)
