"""From a table and a formula to a fitted mixed model, and to what is reported about it."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curvi._core.text import printable
from curvi.cli._table import render
from curvi.plots import png_bytes

_MOST_FACTORS = 6  # whose levels are drawn


@dataclass(frozen=True)
class FittedMixed:
    """A fitted mixed model with everything that is reported about it."""

    model: Any
    seconds: float
    said: tuple[str, ...]  # warnings of the fit

    @property
    def converged(self) -> bool:
        """Whether the posterior was found."""
        return bool(self.model.converged_)

    @property
    def message(self) -> str:
        """The verdict, and what it warns of."""
        return " ".join([self.model.message_, *self.said])

    def facts(self) -> dict[str, str]:
        """What is said above the estimates."""
        likelihood = self.model._likelihood()
        groups = [f"{len(g.labels)} levels of {g.name}" for g in self.model.posterior_.groupings]
        priors = "; ".join(f"{name} ~ {rule}" for name, rule in self.model._priors())
        return {
            "formula": printable(self.model.formula_),
            "model": f"{likelihood.name}, {likelihood.link} link",
            "data": printable(f"{self.model.n_rows_} rows, {', '.join(groups)}"),
            "priors": printable(priors),
            "log evidence": f"{self.model.log_evidence_:.3f}",
            "fit": f"{self.seconds:.2f} s",
        }

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


def fit_formula(path: Path, *, separator: str, **options: Any) -> FittedMixed:
    """Read a table, fit the formula to it, and keep what was said."""
    from curvi.datasets._table import read_columns
    from curvi.mixed import MixedModel

    table = read_columns(path, separator=separator)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = MixedModel(**options).fit(table)
    ours = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    said = tuple(dict.fromkeys(text for text in ours if not text.startswith("MixedModel:")))
    return FittedMixed(model, time.perf_counter() - began, said)


def mixed_files(fitted: FittedMixed, *, title: str, config: str) -> dict[str, Any]:
    """Tables, figures, and a page that shows them with the settings."""
    picture = png_bytes(fitted.model.plot_effects())
    names = [grouping.name for grouping in fitted.model.posterior_.groupings[:_MOST_FACTORS]]
    groups = {name: png_bytes(fitted.model.plot_groups(name)) for name in names}
    page = render(fitted, title=title, config=config, picture=picture, groups=groups)
    return {
        "estimates.csv": fitted.rows(),
        "groups.csv": fitted.effects(),
        "estimates.png": picture,
        "groups.png": groups[names[0]],
        "report.html": page,
    }
