"""The report of a mixed model: effects, groups, fit to the data, and how to repeat it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from curvi.mixed._posterior import MixedPosterior
from curvi.mixed._prediction import drawn_responses
from curvi.mixed._report import rows_of_summary, table_of
from curvi.report import Facts, Forest, Prose, Report, Tab, Tile, Verdict, write_report
from curvi.report._blocks import Estimate, normal_estimate
from curvi.report._common import READ, READ_PLAIN, checked_title, repeat_tab
from curvi.report._numbers import percent, plain
from curvi.report._predictive import (
    calibration,
    central,
    coverage,
    few_rows,
    predictive,
    residuals,
    with_misses,
)

_MOST_LEVELS = 200
_MOST_FACTORS = 6
_REPLICATES = 200
_MOST_NUMBERS = 2e7


class Reported:
    """The method of a fitted model that writes its report."""

    def report(self: Any, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Write a page for a browser that stands alone, and its numbers as JSON beside it.

        The verdict in plain words; fixed effects, sds of groups and effects of every level with
        intervals; how the model describes the rows of the fit; formula, priors and data; and how
        to repeat the fit.

        Parameters
        ----------
        path : path
            The page, as in ``report.html``; an earlier report of that name is replaced.
        title : str, optional
            Title of the page.

        Returns
        -------
        Path
            The page.

        Raises
        ------
        InputError
            If the file is there and is no report.
        """
        check_is_fitted(self, "posterior_")
        return write_report(report_of(self, title=title), path)


def report_of(
    model: Any, *, title: str | None = None, call: str | None = None,
    configuration: dict[str, Any] | None = None, notes: tuple[str, ...] = (),
    seconds: float | None = None, facts: dict[str, str] | None = None,
) -> Report:  # fmt: skip
    """What a page says about a fitted mixed model."""
    response = model._memory.formula.response
    fixed, others = _estimates(model.posterior_)
    shown = _slopes(fixed) or fixed
    clear = sum(e.tone != "open" for e in shown)
    tiles = [
        Tile("Clear direction", f"{clear} of {len(shown)}", "fixed effects with a 90 % interval "
             "on one side of zero"),
        Tile("Effective points", percent(model.relative_ess_), "of importance sampling"),
        Tile("Log evidence", plain(model.log_evidence_, 5), "nats, to compare models"),
    ]  # fmt: skip
    if seconds is not None:
        tiles.append(Tile("Time", f"{plain(seconds, 2)} s"))
    groups = [f"{len(g.labels)} levels of {g.name}" for g in model.posterior_.groupings]
    blocks = _fit_blocks(model, response)
    tabs = (
        Tab("estimates", "Estimates", _estimate_blocks(fixed, others)),
        Tab("groups", "Groups", tuple(_group_forests(model))),
        Tab("fit", "Fit to the data", blocks),
        Tab("model", "Model and data", _model_blocks(model, response, groups, facts or {})),
        repeat_tab(call or f"curvi.MixedModel({_arguments(model)}).fit(table)",
                   configuration or _parameters(model)),
    )  # fmt: skip
    return Report(
        title=checked_title(title, model.formula_),
        subtitle=", ".join(
            [
                "Mixed model" if title is None else f"Mixed model {model.formula_}",
                f"{model.n_rows_:,} rows",
                *groups,
            ]
        ),
        verdict=with_misses(verdict_of(model, notes), blocks),
        tiles=tuple(tiles),
        tabs=tabs,
    )


def verdict_of(model: Any, notes: tuple[str, ...] = ()) -> Verdict:
    """Whether to trust the numbers, in words, and what to do."""
    if not model.converged_:
        return Verdict("bad", "Do not use these numbers: the fit has not converged.",
                       (model.message_,), (*model.warnings_, *notes))  # fmt: skip
    if model.warnings_:
        return Verdict("caution", "The fit converged, but parts of the answer need care.",
                       (model.message_,), (*model.warnings_, *notes))  # fmt: skip
    sentence = (
        "The posterior was found, uncertainty about the sds of the groups included, and importance "
        f"weights confirm it: {percent(model.relative_ess_)} of their points are effective."
    )
    advice = ("Look at the fit to the data before you act on an effect. For a new group predict "
              "with the model: it adds the uncertainty about that group.",)  # fmt: skip
    return Verdict("good", "The numbers can be used.", (sentence,), (*advice, *notes))


def _estimates(posterior: MixedPosterior) -> tuple[list[Estimate], dict[str, list[Estimate]]]:
    """Fixed effects, and all other quantities by their kind."""
    fixed: list[Estimate] = []
    others: dict[str, list[Estimate]] = {}
    for row, (kind, name, values) in zip(
        table_of(posterior), rows_of_summary(posterior), strict=True
    ):
        above = float(posterior.weights @ (values > 0))
        direction = above if row["mean"] > 0 else 1 - above
        signed = kind in ("fixed effect", "correlation")
        numbers = (row["mean"], row["sd"], row["lower"], row["upper"])
        found = Estimate(name or kind, *numbers, direction if signed else float("nan"))
        if kind == "fixed effect":
            fixed.append(found)
        else:
            others.setdefault(kind if name else "residual", []).append(found)
    return fixed, others


def _slopes(fixed: list[Estimate]) -> list[Estimate]:
    return [e for e in fixed if e.name != "Intercept"]


def _estimate_blocks(fixed: list[Estimate], others: dict[str, list[Estimate]]) -> tuple[Any, ...]:
    blocks: list[Any] = [Prose(READ)]
    intercept = [e for e in fixed if e.name == "Intercept"]
    slopes = _slopes(fixed)
    if slopes:
        note = "In the units of the table, for an average group."
        if intercept:
            one = intercept[0]
            note += f" Intercept {one.shown_mean}, with 90 % probability {one.interval}."
        blocks.append(Forest("Fixed effects", tuple(slopes), note=note))
    elif intercept:
        blocks.append(Forest("Fixed effects", tuple(intercept)))
    titles = {
        "group sd": ("How much groups differ (standard deviations)", False),
        "correlation": ("Correlations of the effects of a group", True),
        "residual": ("Scatter within groups", False),
    }
    for kind, rows in others.items():
        title, signs = titles.get(kind, (kind, False))
        blocks.append(Forest(title, tuple(rows), signs=signs))
    return tuple(blocks)


def _group_forests(model: Any) -> list[Any]:
    blocks: list[Any] = [
        Prose(
            "How much each group deviates from the average, in the units of the linear predictor. "
            "Groups with few rows are drawn towards zero. " + READ_PLAIN
        )
    ]
    for index, grouping in enumerate(model.posterior_.groupings[:_MOST_FACTORS]):
        mean, sd = model.posterior_.effects(index)
        for k, effect in enumerate(grouping.effects):
            rows = [
                normal_estimate(str(label), float(m), float(s))
                for label, m, s in zip(grouping.labels, mean[:, k], sd[:, k], strict=True)
            ]
            if len(rows) > _MOST_LEVELS:
                rows = sorted(rows, key=lambda e: -abs(e.mean))[:_MOST_LEVELS]
            title = f"{grouping.name}: {effect}"
            blocks.append(Forest(title, tuple(rows), axis="deviation of the group",
                                 total=len(grouping.labels)))  # fmt: skip
    return blocks


def _fit_blocks(model: Any, response: str) -> tuple[Any, ...]:
    if model._without_rows:
        return (Prose("The table came in parts, and its rows were not kept: nothing is drawn."),)
    frame = model._fitted_rows()
    y, _ = model._response(frame)
    expected = np.asarray(model.predict(frame), float)
    if model.classes_:
        label = model.classes_[1]
        return (calibration(y > 0, expected, label), _few_classes(model, y, expected, response))
    drawn = replicated(model, frame)
    lower, upper = central(drawn)
    blocks: list[Any] = [
        Prose(
            f"{percent(coverage(y, lower, upper))} of the rows are inside their 90 % interval. "
            "These are the rows of the fit, with the effects of their groups: rows of new groups "
            "are predicted less well."
        ),
        predictive(y, drawn, response),
        residuals(y, expected, response),
        few_rows(y, expected, lower, upper, response),
    ]
    return tuple(blocks)


def _few_classes(model: Any, y: np.ndarray, expected: np.ndarray, response: str) -> Any:
    from curvi.report import Grid

    kept = np.unique(np.linspace(0, len(y) - 1, min(len(y), 8)).astype(int))
    frame = model._fitted_rows()
    ends = model.predict(frame.iloc[kept], interval=0.9)
    rows = []
    for i, low, high in zip(kept, ends["lower"], ends["upper"], strict=True):
        seen = model.classes_[int(y[i] > 0)]
        rows.append(
            (str(i + 1), str(seen), percent(expected[i]), f"{percent(low)} to {percent(high)}")
        )
    chance = f"Probability of {model.classes_[1]}"
    return Grid("Predictions of a few rows", ("Row", f"Observed {response}", chance,
                "90 % interval"), tuple(rows), numeric=frozenset({0, 2, 3}))  # fmt: skip


def replicated(model: Any, frame: Any) -> np.ndarray:
    """Data sets drawn from the posterior predictive distribution, the groups as fitted."""
    rng = np.random.default_rng([model.random_state, 3])
    rows, posterior = model._rows(frame), model.posterior_
    count = max(20, min(_REPLICATES, int(_MOST_NUMBERS / max(len(rows.X), 1))))
    chosen = posterior.resampled(count, rng)
    out = np.empty((count, len(rows.X)))
    for part in rows.blocks(len(posterior.weights)):
        out[:, part] = drawn_responses(posterior, model._likelihood(), rows, part, chosen, rng)
    return out


def _model_blocks(
    model: Any, response: str, groups: list[str], more: dict[str, str]
) -> tuple[Any, ...]:
    likelihood = model._likelihood()
    facts = {
        "formula": model.formula_,
        "likelihood": likelihood.title,
        "rows": f"{model.n_rows_:,}",
        "groups": ", ".join(groups),
    }
    if model.classes_:
        facts["response"] = f"{response}: {model.classes_[1]} against {model.classes_[0]}"
    facts["how it was found"] = model.message_
    return (Facts("What was fitted", facts | more), Facts("Priors", dict(model._priors())))


def _parameters(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.get_params().items() if value is not None}


def _arguments(model: Any) -> str:
    given = {**_parameters(model), "formula": model.formula_}
    rest = [f"{k}={v!r}" for k, v in given.items() if k != "formula"]
    return ", ".join([repr(model.formula_), *rest])
