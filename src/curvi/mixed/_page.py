"""The report of a mixed model: effects, groups, fit to the data, and how to repeat it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from curvi.mixed._posterior import MixedPosterior
from curvi.mixed._prediction import drawn_responses
from curvi.mixed._report import rows_of_summary, table_of
from curvi.report import (
    AMOUNTS,
    READ,
    READ_PLAIN,
    Estimate,
    Facts,
    Forest,
    Grid,
    Page,
    Prose,
    Tile,
    Verdict,
    calibration,
    central,
    described,
    evenly,
    given,
    normal_estimate,
    percent,
    plain,
    write_report,
)


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
        return write_report(MixedPage(self).report(title), path)


@dataclass
class MixedPage(Page):
    """What a page says about a fitted mixed model."""

    parts: ClassVar = {
        "estimates": "Estimates", "groups": "Groups", "replicated": "Fit to the data",
        "facts": "Model and data",
    }  # fmt: skip
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Look at the estimates, the groups and the name of the response."""
        self.fixed, self.others = _estimates(self.model.posterior_)
        groupings = self.model.posterior_.groupings
        self.levels = [f"{len(g.labels)} levels of {g.name}" for g in groupings]
        self.response = self.model._memory.formula.response

    def heading(self) -> tuple[str, str]:
        """The formula, and what it was fitted to."""
        model = self.model
        what = [f"Mixed model {model.formula_}", f"{model.n_rows_:,} rows", *self.levels]
        return model.formula_, ", ".join(what)

    def verdict(self) -> Verdict:
        """Whether to trust the numbers, in words, and what to do."""
        model = self.model
        if not model.converged_:
            return Verdict("bad", "Do not use these numbers: the fit has not converged.",
                           (model.message_,), (*model.warnings_, *self.notes))  # fmt: skip
        if model.warnings_:
            return Verdict("caution", "The fit converged, but parts of the answer need care.",
                           (model.message_,), (*model.warnings_, *self.notes))  # fmt: skip
        sentence = (
            "The posterior was found, uncertainty about the sds of the groups included, and "
            f"importance weights confirm it: {percent(model.relative_ess_)} of their points are "
            "effective."
        )
        advice = ("Look at the fit to the data before you act on an effect. For a new group "
                  "predict with the model: it adds the uncertainty about that group.",)  # fmt: skip
        return Verdict("good", "The numbers can be used.", (sentence,), (*advice, *self.notes))

    def tiles(self) -> list[Tile]:
        """Signs, how well the weights confirm the posterior, the evidence, the time."""
        tiles = [
            *self.clear_tile(_slopes(self.fixed) or self.fixed, "fixed effects with "),
            Tile(
                "Effective points",
                percent(self.model.relative_ess_),
                "of importance sampling",
            ),
            Tile("Log evidence", plain(self.model.log_evidence_, 5), "nats, to compare models"),
        ]
        if self.seconds is not None:
            tiles.append(Tile("Time", f"{plain(self.seconds, 2)} s"))
        return tiles

    def estimates(self) -> tuple[Any, ...]:
        """Fixed effects, and how much groups differ."""
        return _estimate_blocks(self.fixed, self.others)

    def groups(self) -> tuple[Any, ...]:
        """The effects of every level."""
        return tuple(_group_forests(self.model))

    def replicated(self) -> tuple[Any, ...]:
        """The rows of the fit beside simulated ones."""
        return _fit_blocks(self.model, self.response)

    def facts(self) -> tuple[Any, ...]:
        """Formula, likelihood, data and priors."""
        return _model_blocks(self.model, self.response, self.levels, self.more_facts)

    def repeat(self) -> tuple[str, dict[str, Any]]:
        """The call of ``fit``."""
        options = given(self.model)
        values = {**options, "formula": self.model.formula_}
        rest = [f"{k}={v!r}" for k, v in values.items() if k != "formula"]
        arguments = ", ".join([repr(self.model.formula_), *rest])
        return f"curvi.MixedModel({arguments}).fit(table)", options


def _estimates(
    posterior: MixedPosterior,
) -> tuple[list[Estimate], dict[str, list[Estimate]]]:
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


def _group_forests(model: Any, *, most_groups: int = 6, most_levels: int = 200) -> list[Any]:
    blocks: list[Any] = [
        Prose(
            "How much each group deviates from the average, in the units of the linear predictor. "
            "Groups with few rows are drawn towards zero. " + READ_PLAIN
        )
    ]
    for index, grouping in enumerate(model.posterior_.groupings[:most_groups]):
        mean, sd = model.posterior_.effects(index)
        for k, effect in enumerate(grouping.effects):
            rows = [
                normal_estimate(str(label), float(m), float(s))
                for label, m, s in zip(grouping.labels, mean[:, k], sd[:, k], strict=True)
            ]
            title = f"{grouping.name}: {effect}"
            axis = "deviation of the group"
            blocks.append(Forest.largest(title, rows, most=most_levels, axis=axis))
    return blocks


def _fit_blocks(model: Any, response: str) -> tuple[Any, ...]:
    if model._without_rows:
        return (Prose("The table came in parts, and its rows were not kept: nothing is drawn."),)
    frame = model._fitted_rows()
    y, _ = model._response(frame)
    expected = np.asarray(model.predict(frame), float)
    if model.classes_:
        # Means have seen the rows and lie nearer to the middle. Of a draw the rows are independent.
        found = np.exp(model.log_likelihood(model.sample_posterior(1))[0])
        return (
            calibration(y > 0, np.where(y > 0, found, 1 - found), model.classes_[1]),
            Prose("Probabilities of groups of rows are those of one draw from the posterior."),
            _few_classes(model, y, expected, response),
        )
    drawn = replicated(model, frame)
    said = (
        "These are the rows of the fit, with the effects of their groups: rows of new groups are "
        "predicted less well."
    )
    return described(y, expected, central(drawn), response, said, drawn)


def _few_classes(model: Any, y: np.ndarray, expected: np.ndarray, response: str) -> Any:
    kept = evenly(len(y))
    frame = model._fitted_rows()
    ends = model.predict(frame.iloc[kept], interval=0.9)
    rows = [
        (str(i + 1), str(model.classes_[int(y[i] > 0)]), percent(expected[i]),
         f"{percent(low)} to {percent(high)}")
        for i, low, high in zip(kept, ends["lower"], ends["upper"], strict=True)
    ]  # fmt: skip
    chance = f"Probability of {model.classes_[1]}"
    return Grid("Predictions of a few rows", ("Row", f"Observed {response}", chance,
                "90 % interval"), tuple(rows), numeric=frozenset({0, 2, 3}))  # fmt: skip


def replicated(model: Any, frame: Any) -> np.ndarray:
    """Data sets drawn from the posterior predictive distribution, the groups as fitted."""
    rng = np.random.default_rng([model.random_state, 3])
    rows, posterior = model._rows(frame), model.posterior_
    few = AMOUNTS.numbers // max(len(rows.X), 1)
    count = max(AMOUNTS.fewest_replicates, min(AMOUNTS.replicates, few))
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
    return Facts("What was fitted", facts | more), Facts("Priors", dict(model._priors()))
