"""The report of a regression: coefficients, fit to the data, convergence, and how to repeat it."""

from __future__ import annotations

from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi.glm._output import feature_names
from curvi.report import Facts, Forest, Grid, Prose, Report, Tab, Tile, Verdict
from curvi.report._blocks import Estimate, normal_estimate
from curvi.report._common import READ, bound_chart, bound_tile, checked_title, repeat_tab
from curvi.report._numbers import percent, plain, rounded
from curvi.report._predictive import (
    calibration,
    coverage,
    few_rows,
    predictive,
    residuals,
    with_misses,
)

_MOST_ESTIMATES = 500
_REPLICATES = 200
_MOST_NUMBERS = 2e7  # of simulated data
_KINDS = {
    "BayesianLogisticRegression": "logistic regression",
    "BayesianPoissonRegression": "Poisson regression of counts",
    "BayesianLinearRegression": "linear regression",
}


def report_of(
    model: Any, X: Any = None, y: Any = None, *, title: str | None = None, target: str = "response",
    names: Any = None, labels: Any = None, notes: tuple[str, ...] = (),
    facts: dict[str, str] | None = None, call: str | None = None,
    configuration: dict[str, Any] | None = None,
) -> Report:  # fmt: skip
    """What a page says about a fitted regression; see ``BayesianLinearModel.report``."""
    if (X is None) != (y is None):
        raise InputError("X and y belong together; give both, or none")
    features = feature_names(model) if names is None else list(names)
    classes = [str(c) for c in getattr(model, "classes_", ())] if labels is None else list(labels)
    forests = coefficient_forests(model, features, classes)
    verdict = verdict_of(model, features, notes)
    tiles = [_clear(forests), *_quality(model, X, y, classes)]
    tiles += [bound_tile(model.elbo_), _time(model)]
    tabs = [Tab("estimates", "Coefficients", (Prose(READ), *forests))]
    if X is not None:
        blocks = _fit_blocks(model, X, y, target, classes)
        tabs.append(Tab("fit", "Fit to the data", blocks))
        verdict = with_misses(verdict, blocks)
    trace = model.result_.trace
    tabs += [
        Tab("convergence", "Convergence", (bound_chart(trace["step"], trace["elbo"], "step"),)),
        Tab("model", "Model and data", _model(model, features, target, classes, facts)),
        repeat_tab(call or f"{model!r}.fit(X, y)", configuration or _parameters(model)),
    ]
    kind = _KINDS.get(type(model).__name__, type(model).__name__)
    return Report(
        title=checked_title(title, f"Bayesian {kind}"),
        subtitle=f"Bayesian {kind} of {target} on {len(features)} features",
        verdict=verdict,
        tiles=tuple(tiles),
        tabs=tuple(tabs),
    )


def verdict_of(model: Any, features: list[str], notes: tuple[str, ...]) -> Verdict:
    """Whether to trust the numbers, in words, and what to do."""
    if not model.converged_:
        sentence = model._failure().removeprefix(f"{type(model).__name__}: ")
        return Verdict("bad", "Do not use these numbers yet: the fit has not converged.",
                       (sentence[:1].upper() + sentence[1:],), notes)  # fmt: skip
    if narrow := model._narrow(features):
        said = narrow[:1].upper() + narrow[1:] + "."
        advice = (
            "For intervals that can be used, fit again with covariance='full' (--family full-rank "
            "on the command line). The means are hardly affected.",
        )
        return Verdict("caution", "The means can be used; the intervals are too narrow.",
                       (said,), (*advice, *notes))  # fmt: skip
    if several := model._several():
        said = several[:1].upper() + several[1:] + "."
        return Verdict("caution", "The predictions can be used; the selection is one of several.",
                       (said,), notes)  # fmt: skip
    advice = ("Look at the fit to the data before you act on a coefficient: a coefficient "
              "describes an association, given all other columns, not a cause.",)  # fmt: skip
    return Verdict(
        "good",
        "The numbers can be used.",
        (
            "The fit stopped by itself at the optimum of its bound: running it longer changes "
            "nothing.",
        ),
        (*advice, *notes),
    )


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
        rows: list[Estimate] = []
        for j, name in enumerate(features):
            unit = rounded(float(mean[block, j]), float(sd[block, j]))
            rows.append(
                normal_estimate(
                    name, float(mean[block, j] * scale[j]), float(sd[block, j] * scale[j]),
                    extra=(unit if kept[block, j] else "0",), off=not kept[block, j],
                )
            )  # fmt: skip
        if len(rows) > _MOST_ESTIMATES:
            rows = sorted(rows, key=lambda e: -abs(e.mean))[:_MOST_ESTIMATES]
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
        note += f"Effects are {_unit(model)}; so they can be compared, they are those of one sd "
        note += (
            "of a feature, and \u201cper unit\u201d gives the coefficient in units of the table."
        )
        forests.append(
            Forest(title, tuple(rows), axis="effect of one sd", note=note, more=("Per unit",),
                   total=len(features))
        )  # fmt: skip
    return forests


def _unit(model: Any) -> str:
    return {
        "BayesianLogisticRegression": "changes of the log odds",
        "BayesianPoissonRegression": "changes of the logarithm of the expected count",
    }.get(type(model).__name__, "changes of the expected response")


def _clear(forests: list[Forest]) -> Tile:
    every = [e for forest in forests for e in forest.estimates]
    clear = sum(e.tone != "open" for e in every)
    note = "90 % intervals on one side of zero"
    return Tile("Clear direction", f"{clear} of {len(every)}", note)


def _time(model: Any) -> Tile:
    return Tile("Time", f"{plain(model.result_.seconds, 2)} s", f"{model.n_iter_} steps")


def _quality(model: Any, X: Any, y: Any, classes: list[str]) -> list[Tile]:
    if X is None:
        return []
    if classes:
        share = float(np.mean(model.predict(X) == np.asarray(y)))
        common = max(np.mean(np.asarray(y) == c) for c in model.classes_)
        note = f"rows classified right; the most frequent class alone: {percent(float(common))}"
        return [Tile("Accuracy on these rows", percent(share), note)]
    score = float(model.score(X, y))
    name = "Deviance" if type(model).__name__ == "BayesianPoissonRegression" else "Variance"
    return [Tile(f"{name} explained", percent(max(score, 0.0)), "on the rows of the fit")]


def _fit_blocks(model: Any, X: Any, y: Any, target: str, classes: list[str]) -> tuple[Any, ...]:
    if classes:
        return _of_classes(model, X, np.asarray(y), target, classes)
    observed, expected = np.asarray(y, float), np.asarray(model.predict(X), float)
    lower, upper = (np.asarray(end, float) for end in model.predict_interval(X))
    blocks: list[Any] = [
        Prose(
            f"{percent(coverage(observed, lower, upper))} of the rows are inside their 90 % "
            "interval. These are the rows of the fit: new rows are predicted a little worse."
        )
    ]
    if _REPLICATES * len(observed) <= _MOST_NUMBERS:
        blocks.append(predictive(observed, _replicated(model, X), target))
    blocks += [
        residuals(observed, expected, target),
        few_rows(observed, expected, lower, upper, target),
    ]
    return tuple(blocks)


def _replicated(model: Any, X: Any) -> np.ndarray:
    """Data sets drawn from the posterior predictive distribution."""
    draws = model.sample(_REPLICATES)
    predictor = np.asarray((X @ draws.coef.T).T + np.asarray(draws.intercept)[:, None], float)
    rng = np.random.default_rng(0)
    if type(model).__name__ == "BayesianPoissonRegression":
        return rng.poisson(np.exp(np.minimum(predictor, 40.0))).astype(float)
    return predictor + model.noise_sd_ * rng.standard_normal(predictor.shape)


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
    kept = np.unique(np.linspace(0, len(y) - 1, min(len(y), 8)).astype(int))
    few = Grid(
        "Predictions of a few rows",
        ("Row", f"Observed {target}", "Predicted", "Probability of the predicted class"),
        tuple(
            (str(i + 1), classes[codes[i]], classes[found[i]], percent(chance[i, found[i]]))
            for i in kept
        ),
        numeric=frozenset({0, 3}),
    )
    return first, confusion, few


def _model(
    model: Any, features: list[str], target: str, classes: list[str], more: dict[str, str] | None
) -> tuple[Any, ...]:
    response = " and response" if type(model).__name__ == "BayesianLinearRegression" else ""
    prior = (
        "every coefficient has a prior variance of its own, chosen to maximise the bound "
        "(relevance prior)"
        if model.prior == "ard"
        else f"coefficients ~ N(0, {plain(model.prior_scale)}\N{SUPERSCRIPT TWO})"
        + (f" of standardised features{response}" if model.standardize else "")
    )
    facts = {
        "model": _KINDS.get(type(model).__name__, type(model).__name__),
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
    if more and "data" in more:
        facts.pop("features")  # which it names
    return (Facts("What was fitted", facts | (more or {})),)


def _parameters(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.get_params().items() if value is not None}
