"""From a table to a fitted regression, and to what is reported about it."""

from __future__ import annotations

import re
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi._core.text import printable, quoted
from curvi.datasets import Table
from curvi.plots import plot_effects
from curvi.report import Report

_INTEGER = re.compile(r"[+-]?\d{1,15}(\.0*)?", re.ASCII)


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
    X: Any = None  # the rows, unless they were read in blocks
    y: Any = None
    said: dict[str, str] = field(default_factory=dict)  # about the file

    @property
    def converged(self) -> bool:
        """Whether the maximum of the ELBO was reached."""
        return bool(self.estimator.converged_)

    def facts(self) -> dict[str, str]:
        """What is said of the model and its data."""
        fitted = self.estimator
        facts = {
            "model": f"{self.model} ({self.reason})",
            "data": f"{self.num_rows:,} rows, {len(self.names)} features",
            **self.said,
        }
        if len(fitted.elbos_) > 1:
            low, high = np.min(fitted.elbos_), np.max(fitted.elbos_)
            facts["starts"] = f"best of {len(fitted.elbos_)}, with bounds {low:.4f} to {high:.4f}"
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


def table_report(
    fitted: FittedTable, *, title: str, call: str, configuration: dict[str, Any],
    notes: tuple[str, ...] = (),
) -> Report:  # fmt: skip
    """The page about a fitted table; without its rows where these were read in blocks."""
    from curvi.glm import RegressionPage

    return RegressionPage(
        fitted.estimator, fitted.X, fitted.y, fitted.target, fitted.names, fitted.classes,
        notes=notes, more_facts=fitted.facts(), call=call, configuration=configuration,
    ).report(title)  # fmt: skip


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
    began = time.perf_counter()
    estimator = _fitted(chosen, options, table.X, y, mesh, checkpoint)
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
        X=table.X,
        y=y,
    )


def _fitted(
    model: str, options: dict[str, Any], X: np.ndarray, y: np.ndarray, mesh: Any, checkpoint: Any
) -> Any:
    estimator = estimator_of(model, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict says it
        try:
            estimator.fit(X, y, mesh=mesh, checkpoint=checkpoint)
        except ValueError as error:
            raise InputError(" ".join(str(error).split())) from error
    return estimator


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


def choose_model(
    labels: tuple[str, ...], target: str, *, most_integer_classes: int = 10
) -> tuple[str, str]:
    """The model that the target's values suggest, and why.

    Two values, text, and few different integers are classes; other real numbers are regressed
    on. Many different integers could be counts, measurements or names: the user has to say.

    ``most_integer_classes``: different whole numbers that are still taken for classes.
    """
    distinct = set(labels)
    if len(distinct) == 2:
        return "logistic", "the target has two values"
    if not all(_is_number(label) for label in distinct):
        return "logistic", f"the target has {len(distinct)} classes"
    if not all(_INTEGER.fullmatch(label) for label in distinct):
        return "linear", "the target holds real numbers"
    if len(distinct) <= most_integer_classes:
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


def _ordered(distinct: set[str], target: str, *, most_classes: int = 100) -> list[str]:
    """Classes by value if all are numbers, otherwise by text; a number has one spelling.

    ``most_classes``: classes that a target may have.
    """
    if len(distinct) > most_classes:
        raise InputError(
            f"target {quoted(target)} has {len(distinct)} different values, at most "
            f"{most_classes} can be classes; choose another target or model"
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
