"""From a table to a fitted regression, to what is printed about it, and to the report."""

from __future__ import annotations

import base64
import importlib.resources
import re
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi._core.text import printable, quoted
from curvi.datasets import Table
from curvi.plots import plot_effects, png_bytes

_INTEGER = re.compile(r"[+-]?\d{1,15}(\.0*)?", re.ASCII)
_MOST_INTEGER_CLASSES = 10
_MOST_CLASSES = 100
_MOST_PRINTED = 40
_MOST_IN_REPORT = 500
_NUMERIC = ("mean", "sd", "lower", "upper")  # columns that are aligned on the right


@dataclass(frozen=True)
class FittedTable:
    """A fitted estimator with everything that is reported about it."""

    estimator: Any
    model: str
    reason: str
    target: str
    names: tuple[str, ...]
    classes: tuple[str, ...]  # as the table writes them; empty unless the model is logistic
    spread: np.ndarray  # sd of every feature
    num_rows: int
    seconds: float

    @property
    def converged(self) -> bool:
        """Whether the maximum of the ELBO was reached."""
        return bool(self.estimator.converged_)

    @property
    def message(self) -> str:
        """One sentence about how the fit ended."""
        if self.converged:
            return "The gain left is below the tolerance."
        return str(self.estimator.result_.message)

    def facts(self) -> dict[str, str]:
        """What is said above the coefficients."""
        fitted = self.estimator
        error = f" (se {fitted.elbo_se_:.2g})" if fitted.elbo_se_ else ""
        facts = {
            "model": f"{self.model} ({self.reason}), {fitted.prior} prior, "
            f"{fitted.covariance} covariance",
            "data": f"{self.num_rows} rows, {len(self.names)} features, "
            f"target {printable(self.target)}",
            "ELBO": f"{fitted.elbo_:.4f}{error}",
            "fit": f"{fitted.n_iter_} steps, {self.seconds:.2f} s",
        }
        if len(fitted.elbos_) > 1:
            low, high = np.min(fitted.elbos_), np.max(fitted.elbos_)
            facts["ELBO"] += f", best of {len(fitted.elbos_)} starts ({low:.4f} to {high:.4f})"
        if hasattr(fitted, "selected_"):
            kept = int(np.atleast_2d(fitted.selected_).any(axis=0).sum())
            facts["relevance"] = f"{kept} of {len(self.names)} features are not switched off"
        if len(self.classes) == 2:
            facts["data"] += f" ({quoted(self.classes[1])} against {quoted(self.classes[0])})"
        if hasattr(fitted, "noise_sd_"):
            facts["noise sd"] = f"{float(fitted.noise_sd_):.4g}"
        return facts

    def rows(self) -> list[dict[str, str]]:
        """One row per coefficient, the intercepts last of each block."""
        fitted = self.estimator
        mean = np.column_stack([np.atleast_2d(fitted.coef_), np.atleast_1d(fitted.intercept_)])
        sd = np.column_stack([np.atleast_2d(fitted.coef_sd_), np.atleast_1d(fitted.intercept_sd_)])
        constant = "intercept"
        while constant in self.names:  # a column may have that name
            constant = f"({constant})"
        names = [printable(name) for name in (*self.names, constant)]
        table = []
        for block, (means, sds) in enumerate(zip(mean, sd, strict=True)):
            rows = [
                {"name": name, "mean": f"{m:.6g}", "sd": f"{s:.6g}"}
                for name, m, s in zip(names, means, sds, strict=True)
            ]
            if len(self.classes) > 2:
                rows = [{"class": printable(self.classes[block]), **row} for row in rows]
            if hasattr(fitted, "selected_"):
                kept = ["yes" if k else "no" for k in np.atleast_2d(fitted.selected_)[block]]
                rows = [row | {"selected": k} for row, k in zip(rows, [*kept, ""], strict=True)]
            table += rows
        return table

    def text(self) -> str:
        """Verdict, facts and coefficients for the terminal."""
        lines = ["converged" if self.converged else "NOT CONVERGED", f"  {self.message}"]
        facts = self.facts()
        width = max(map(len, facts))
        lines += [f"{name:<{width}}  {fact}" for name, fact in facts.items()] + [""]
        rows = self.rows()
        shown = rows if len(rows) <= _MOST_PRINTED else rows[: _MOST_PRINTED - 1] + rows[-1:]
        widths = {key: max(len(key), *(len(row[key]) for row in shown)) for key in rows[0]}
        for row in [{key: key for key in rows[0]}, *shown]:
            if row is shown[-1] and len(shown) < len(rows):
                lines.append(f"... {len(rows) - len(shown)} more ...")
            cells = [f"{v:>{widths[k]}}" if k in _NUMERIC else f"{v:<{widths[k]}}"
                     for k, v in row.items()]  # fmt: skip
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def figure(self) -> Any:
        """Effects of one sd of each feature with their intervals."""
        mean, sd = np.atleast_2d(self.estimator.coef_), np.atleast_2d(self.estimator.coef_sd_)
        names = [printable(name) for name in self.names]
        labels = list(map(printable, self.classes)) if len(self.classes) > 2 else None
        return plot_effects(
            mean * self.spread,
            sd * self.spread,
            names=names,
            labels=labels,
        )


def report_files(fitted: FittedTable, *, title: str, config: str) -> dict[str, Any]:
    """Coefficients, a figure, and a page that shows both with the settings."""
    picture = png_bytes(fitted.figure())
    return {
        "coefficients.csv": fitted.rows(),
        "coefficients.png": picture,
        "report.html": render(fitted, title=title, config=config, picture=picture),
    }


def render(
    fitted: Any, *, title: str, config: str, picture: bytes, groups: dict[str, bytes] | None = None
) -> str:
    """One page without references to anything outside it; every value is escaped."""
    from jinja2 import Environment

    source = (importlib.resources.files(__package__) / "report.html").read_text("utf-8")
    rows = fitted.rows()
    return Environment(autoescape=True).from_string(source).render(
        title=printable(title), config=config, converged=fitted.converged, message=fitted.message,
        facts=fitted.facts(), figure=base64.b64encode(picture).decode(),
        rows=rows[:_MOST_IN_REPORT], total=len(rows), numeric=_NUMERIC,
        groups={k: base64.b64encode(v).decode() for k, v in (groups or {}).items()},
    )  # fmt: skip


def fit_table(
    table: Table,
    *,
    target: str,
    model: str,
    mesh: Any = None,
    checkpoint: Any = None,
    **options: Any,
) -> FittedTable:
    """Choose the model, fit it, and keep what is reported.

    Raises
    ------
    InputError
        The target does not fit the model, or several models are possible.
    """
    _check_varies(table.target, target)
    chosen, reason = choose_model(table.target, target) if model == "auto" else (model, "chosen")
    y, classes = responses(table.target, target, chosen)
    estimator = estimator_of(chosen, options)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict says it
        try:
            estimator.fit(table.X, y, mesh=mesh, checkpoint=checkpoint)
        except ValueError as error:
            raise InputError(" ".join(str(error).split())) from error
    return FittedTable(
        estimator=estimator,
        model=chosen,
        reason=reason,
        target=target,
        names=table.names,
        classes=classes,
        spread=table.X.std(axis=0),
        num_rows=len(y),
        seconds=time.perf_counter() - began,
    )


def estimator_of(model: str, options: dict[str, Any]) -> Any:
    """The regression of a name, with its options."""
    from curvi import glm

    kinds = {
        "logistic": glm.BayesianLogisticRegression,
        "poisson": glm.BayesianPoissonRegression,
        "linear": glm.BayesianLinearRegression,
    }
    return kinds[model](**options)


def _check_varies(labels: tuple[str, ...], target: str) -> None:
    if len(set(labels)) < 2:
        raise InputError(
            f"target {quoted(target)} is {quoted(labels[0])} in every row; there is nothing to "
            "explain"
        )


def choose_model(labels: tuple[str, ...], target: str) -> tuple[str, str]:
    """The model that the target's values suggest, and why.

    Two values, text, and few different integers are classes; other real numbers are regressed
    on. Many different integers could be counts, measurements or names: the user has to say.
    """
    distinct = set(labels)
    if len(distinct) == 2:
        return "logistic", "the target has two values"
    if not all(_is_number(label) for label in distinct):
        return "logistic", f"the target has {len(distinct)} classes"
    if not all(_INTEGER.fullmatch(label) for label in distinct):
        return "linear", "the target holds real numbers"
    if len(distinct) <= _MOST_INTEGER_CLASSES:
        return "logistic", f"the target has {len(distinct)} different integers"
    raise InputError(
        f"target {quoted(target)} has {len(distinct)} different integers; say what they are with "
        "--model poisson (counts), linear (measurements) or logistic (classes)"
    )


def responses(
    labels: tuple[str, ...], target: str, model: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The target as the estimator takes it, and the classes that its codes 0, 1, ... stand for."""
    if model == "logistic":
        classes = _ordered(set(labels), target)
        codes = {label: code for code, label in enumerate(classes)}
        return np.array([codes[label] for label in labels]), tuple(classes)
    values = []
    for line, label in enumerate(labels, 2):
        if not _is_number(label):
            raise InputError(
                f"target {quoted(target)} is {quoted(label)} in line {line}; a {model} model needs "
                "numbers"
            )
        values.append(float(label))
    return np.array(values), ()


def _ordered(distinct: set[str], target: str) -> list[str]:
    """Classes by value if all are numbers, otherwise by text; a number has one spelling."""
    if len(distinct) > _MOST_CLASSES:
        raise InputError(
            f"target {quoted(target)} has {len(distinct)} different values, at most "
            f"{_MOST_CLASSES} can be classes; choose another target or model"
        )
    if not all(_is_number(label) for label in distinct):
        return sorted(distinct)
    spelled: dict[float, str] = {}
    for label in sorted(distinct):
        other = spelled.setdefault(float(label), label)
        if other != label:
            raise InputError(
                f"target {quoted(target)} has the classes {quoted(other)} and {quoted(label)}, "
                "which are equal as numbers; write them in one way, or with a letter if they differ"
            )
    return [spelled[value] for value in sorted(spelled)]


def _is_number(label: str) -> bool:
    try:
        return bool(np.isfinite(float(label))) and "_" not in label
    except ValueError:
        return False
