"""The report of a regression: coefficients, fit to the data, convergence, and how to repeat it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from curvi._core.errors import InputError
from curvi.glm._output import feature_names
from curvi.report import (
    AMOUNTS,
    READ,
    Facts,
    Forest,
    Grid,
    Page,
    Prose,
    Tile,
    Verdict,
    bound_chart,
    bound_tile,
    calibration,
    described,
    few_classes,
    normal_estimate,
    percent,
    plain,
    rounded,
)


@dataclass
class RegressionPage(Page):
    """What a page says about a fitted regression; see ``BayesianLinearModel.report``."""

    parts: ClassVar = {
        "estimates": "Coefficients", "replicated": "Fit to the data", "history": "Convergence",
        "facts": "Model and data",
    }  # fmt: skip
    X: Any = None
    y: Any = None
    target: str = "response"
    names: Any = None
    labels: Any = None

    def __post_init__(self) -> None:
        """Check that rows come with their responses."""
        if (self.X is None) != (self.y is None):
            raise InputError("X and y belong together; give both, or none")

    @cached_property
    def features(self) -> list[str]:
        """Names of the columns."""
        return feature_names(self.model) if self.names is None else list(self.names)

    @cached_property
    def classes(self) -> list[str]:
        """Names of the classes; a regressor has none."""
        known = getattr(self.model, "classes_", ())
        return [str(c) for c in known] if self.labels is None else list(self.labels)

    def heading(self) -> tuple[str, str]:
        """What was regressed on what."""
        what = f"Bayesian {self.model._kind}"
        return what, f"{what} of {self.target} on {len(self.features)} features"

    def verdict(self) -> Verdict:
        """Whether to trust the numbers, in words, and what to do."""
        model = self.model
        if not model.converged_:
            sentence = model._failure().removeprefix(f"{type(model).__name__}: ")
            return Verdict("bad", "Do not use these numbers yet: the fit has not converged.",
                           (sentence[:1].upper() + sentence[1:],), self.notes)  # fmt: skip
        if narrow := model._narrow(self.features):
            said = narrow[:1].upper() + narrow[1:] + "."
            advice = (
                "For intervals that can be used, fit again with covariance='full' (--family "
                "full-rank on the command line). The means are hardly affected.",
            )
            return Verdict("caution", "The means can be used; the intervals are too narrow.",
                           (said,), (*advice, *self.notes))  # fmt: skip
        if several := model._several():
            said = several[:1].upper() + several[1:] + "."
            headline = "The predictions can be used; the selection is one of several."
            return Verdict("caution", headline, (said,), self.notes)
        advice = ("Look at the fit to the data before you act on a coefficient: a coefficient "
                  "describes an association, given all other columns, not a cause.",)  # fmt: skip
        return Verdict(
            "good",
            "The numbers can be used.",
            (
                "The fit stopped by itself at the optimum of its bound: running it longer changes "
                "nothing.",
            ),
            (*advice, *self.notes),
        )

    def tiles(self) -> list[Tile]:
        """Signs, what the rows say of the predictions, the bound, the time."""
        time = f"{plain(self.model.result_.seconds, 2)} s"
        return [
            *self.clear_tile(),
            *_quality(self.model, self.X, self.y, self.classes),
            bound_tile(self.model.elbo_),
            Tile("Time", time, f"{self.model.n_iter_} steps"),
        ]

    def estimates(self) -> tuple[Any, ...]:
        """A forest for every class that has coefficients."""
        return (
            Prose(READ),
            *coefficient_forests(self.model, self.features, self.classes),
        )

    def replicated(self) -> tuple[Any, ...]:
        """The rows that are given beside their predictions."""
        if self.X is None:
            return ()
        if self.classes:
            return _of_classes(self.model, self.X, np.asarray(self.y), self.target, self.classes)
        observed, expected = (np.asarray(a, float) for a in (self.y, self.model.predict(self.X)))
        ends = [np.asarray(end, float) for end in self.model.predict_interval(self.X)]
        said = "These are the rows of the fit: new rows are predicted a little worse."
        few = AMOUNTS.replicates * len(observed) <= AMOUNTS.numbers
        drawn = _replicated(self.model, self.X) if few else None
        return described(observed, expected, ends, self.target, said, drawn)

    def history(self) -> tuple[Any, ...]:
        """The bound along the run."""
        trace = self.model.result_.trace
        return (bound_chart(trace["step"], trace["elbo"], "step"),)

    def facts(self) -> tuple[Any, ...]:
        """Response, features, prior and posterior."""
        facts = _facts(self.model, self.features, self.target, self.classes)
        if "data" in self.more_facts:
            facts.pop("features")  # which it names
        return (Facts("What was fitted", facts | self.more_facts),)


def coefficient_forests(model: Any, features: list[str], classes: list[str]) -> list[Forest]:
    """Effects of one sd of every feature, with the coefficients in the units of the table."""
    spread = np.sqrt(model._posterior.columns.mean_square) if not model.standardize else 1.0
    scale = model._posterior.columns.scale * spread
    mean, sd = np.atleast_2d(model.coef_), np.atleast_2d(model.coef_sd_)
    kept = np.atleast_2d(getattr(model, "selected_", np.ones_like(mean, bool)))
    kept = kept | (np.abs(mean) > sd)  # what is on without being selected has its small part
    intercepts = np.atleast_1d(model.intercept_), np.atleast_1d(model.intercept_sd_)
    forests = []
    for block in range(len(mean)):
        rows = []
        for j, name in enumerate(features):
            unit = rounded(float(mean[block, j]), float(sd[block, j]))
            rows.append(
                normal_estimate(
                    name, float(mean[block, j] * scale[j]), float(sd[block, j] * scale[j]),
                    extra=(unit if kept[block, j] else "0",), off=not kept[block, j],
                )
            )  # fmt: skip
        title = "Effect of one standard deviation of each feature"
        if len(classes) > 2:
            title = f"Class {classes[block]}: effect of one standard deviation of each feature"
        note = f"Intercept {rounded(float(intercepts[0][block]), float(intercepts[1][block]))}, "
        note += f"sd {plain(float(intercepts[1][block]), 2)}, where all features are zero. "
        if len(classes) > 2 and model.prior == "normal":
            note += (
                "All are differences from the mean of the classes, over which they sum to zero. "
            )
        if not kept[block].all():
            note += "Features at 0 per unit are neither selected nor larger than their sd. "
        note += f"Effects are {model._effects}; so they can be compared, they are those of one sd "
        note += (
            "of a feature, and \u201cper unit\u201d gives the coefficient in units of the table."
        )
        options: Any = {"axis": "effect of one sd", "note": note, "more": ("Per unit",)}
        forests.append(Forest.largest(title, rows, **options))
    return forests


def _quality(model: Any, X: Any, y: Any, classes: list[str]) -> list[Tile]:
    if X is None:
        return []
    if classes:
        share = float(np.mean(model.predict(X) == np.asarray(y)))
        common = max(np.mean(np.asarray(y) == c) for c in model.classes_)
        note = f"rows classified right; the most frequent class alone: {percent(float(common))}"
        return [Tile("Accuracy on these rows", percent(share), note)]
    score = float(model.score(X, y))
    return [Tile(f"{model._scored} explained", percent(max(score, 0.0)), "on the rows of the fit")]


def _replicated(model: Any, X: Any) -> np.ndarray:
    """Data sets drawn from the posterior predictive distribution."""
    draws = model.sample(AMOUNTS.replicates)
    predictor = np.asarray((X @ draws.coef.T).T + np.asarray(draws.intercept)[:, None], float)
    return np.asarray(model._simulated(predictor, np.random.default_rng(0)))


def _of_classes(
    model: Any, X: Any, y: np.ndarray, target: str, classes: list[str]
) -> tuple[Any, ...]:
    chance = np.asarray(model.predict_proba(X), float)
    codes = np.searchsorted(model.classes_, y)
    if len(classes) == 2:
        first = calibration(codes == 1, chance[:, 1], classes[1])
        chosen = chance[:, 1]
    else:
        chosen = chance.max(axis=1)
        first = calibration(chance.argmax(axis=1) == codes, chosen, "the class that is predicted")
    found = chance.argmax(axis=1)
    table = np.zeros((len(classes), len(classes)), int)
    np.add.at(table, (codes, found), 1)
    confusion = Grid(
        "Observed and predicted classes",
        ("Observed", *(f"predicted {c}" for c in classes)),
        tuple((c, *map(str, row)) for c, row in zip(classes, table.tolist(), strict=True)),
        numeric=frozenset(range(1, len(classes) + 1)),
    )
    few = few_classes(classes, chance, what=target, observed=codes)
    return first, confusion, few


def _facts(model: Any, features: list[str], target: str, classes: list[str]) -> dict[str, str]:
    response = " and response" if hasattr(model, "noise_sd_") else ""
    prior = (
        "every coefficient has a prior variance of its own, chosen to maximise the bound "
        "(relevance prior)"
        if model.prior == "ard"
        else f"coefficients ~ N(0, {plain(model.prior_scale)}\N{SUPERSCRIPT TWO})"
        + (f" of standardised features{response}" if model.standardize else "")
    )
    facts = {
        "model": model._kind,
        "response": target,
        "features": str(len(features)),
        "prior": prior,
        "posterior": f"Gaussian, {model.covariance_} covariance",
    }
    if len(classes) == 2:
        facts["response"] += f": {classes[1]} against {classes[0]}"
    elif classes:
        facts["response"] += ": " + ", ".join(classes)
    if hasattr(model, "noise_sd_"):
        facts["noise sd"] = plain(float(model.noise_sd_))
    if hasattr(model, "selected_"):
        kept = int(np.atleast_2d(model.selected_).any(axis=0).sum())
        facts["relevance"] = f"{kept} of {len(features)} features matter by more than a nat"
    return facts
