"""The report of a state-space model: the series and its forecast, components, estimates, fit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from curvi.latent import Band
from curvi.report import (
    AMOUNTS,
    LEVEL,
    READ,
    READ_PLAIN,
    Chart,
    Estimate,
    Facts,
    Forest,
    Grid,
    Layer,
    Page,
    Prose,
    Tile,
    Verdict,
    calibration,
    central,
    coverage,
    normal_estimate,
    percent,
    plain,
    predictive,
    rounded,
    write_report,
)

_NAMES = {
    "level": "sd of a step of the level",
    "trend": "sd of a step of the slope",
    "season": "sd of a step of the season",
    "noise": "sd of the noise of an observation",
    "phi": "autocorrelation of the level (phi)",
}


class Reported:
    """The method of a fitted series that writes its report."""

    def report(
        self: Any,
        path: str | os.PathLike[str],
        h: int | None = None,
        *,
        X: Any = None,
        title: str | None = None,
    ) -> Path:
        """Write a page for a browser that stands alone, and its numbers as JSON beside it.

        The verdict in plain words; the series with its smoothed signal and a forecast; the
        components; sds of innovations and regression coefficients with intervals; how the model
        describes the series; and how to repeat the fit.

        Parameters
        ----------
        path : path
            The page, as in ``report.html``; an earlier report of that name is replaced.
        h : int, optional
            Steps of the forecast; by default a season or twelve, and none where regressors of the
            future are needed and not given.
        X : array, shape (h, columns), optional
            Regressors of those steps, where the model has some.
        title : str, optional
            Title of the page.

        Returns
        -------
        Path
            The page.

        Raises
        ------
        InputError
            If the model is not fitted, X does not have h rows, or the file is there and is no
            report.
        """
        self._fitted()
        return write_report(SeriesPage(self, h, X).report(title), path)


@dataclass
class SeriesPage(Page):
    """What a page says about a fitted series."""

    parts: ClassVar = {
        "series": "Series", "components": "Components", "estimates": "Estimates",
        "replicated": "Fit to the data", "facts": "Model and data",
    }  # fmt: skip
    h: int | None = None  # steps of the forecast
    X: Any = None  # regressors of these steps
    longest: int = 12  # steps that are forecast without a season

    def __post_init__(self) -> None:
        """Look at the series, and ahead."""
        model = self.model
        self.y = model._series.shown
        self.seen = np.isfinite(self.y)
        self.regressors = model._series.X.shape[1]
        h = self.h
        if h is None:
            h = 0 if self.regressors and self.X is None else (model.season or self.longest)
        self.ahead = model.forecast(h, interval=LEVEL, X=self.X) if h else None

    def heading(self) -> tuple[str, str]:
        """What was fitted."""
        what = f"State-space model, {self.model.likelihood}, {len(self.y):,} steps"
        return "A series and its forecast", what

    def verdict(self) -> Verdict:
        """Whether to trust the numbers, in words, and what to do."""
        model = self.model
        count = len(model.lattice_.weights)
        if why := model.lattice_.shortcoming:
            return Verdict(
                "caution",
                "The uncertainty of some of the sds is understated.",
                (f"{why[0].upper()}{why[1:]} ({count} points).",),
                ("Give prior_scales that say more, leave out a component, or give more time.",),
            )
        exact = model._model.likelihood.conjugate
        states = "exact given the sds" if exact else "the best Gaussian given the sds"
        return Verdict(
            "good",
            "The numbers can be used.",
            (f"States are {states}, and these were integrated over {count} points.",),
            ("A forecast holds as long as the series goes on as it did: look at the fit first.",),
        )

    def tiles(self) -> list[Tile]:
        """The next step, the observations, the evidence."""
        tiles = []
        if (ahead := self.ahead) is not None:
            note = f"90 % between {plain(ahead.lower[0], 4)} and {plain(ahead.upper[0], 4)}"
            tiles.append(Tile("Next step", plain(ahead.mean[0], 4), note))
        missing = f"{int((~self.seen).sum())} missing"
        note = "nats, to compare models of the same series"
        return [
            *tiles,
            Tile("Observations", f"{int(self.seen.sum()):,}", missing),
            Tile("Log evidence", plain(self.model.log_evidence_, 5), note),
        ]

    def series(self) -> tuple[Any, ...]:
        """The series with its signal, and a forecast."""
        return _series_blocks(self.model, self.y, self.ahead)

    def components(self) -> tuple[Any, ...]:
        """Level, slope and season."""
        return _component_blocks(self.model)

    def estimates(self) -> tuple[Any, ...]:
        """Sds of innovations, and regression coefficients."""
        return _estimate_blocks(self.model)

    def replicated(self) -> tuple[Any, ...]:
        """The steps of the fit beside simulated ones."""
        return _fit_blocks(self.model, self.y, self.seen)

    def facts(self) -> tuple[Any, ...]:
        """States, likelihood, priors."""
        return (_facts(self.model, self.y, self.seen),)

    def repeat(self) -> tuple[str, dict[str, Any]]:
        """The call of ``fit``."""
        X = ", X" if self.regressors else ""
        return f"curvi.{self.model!r}.fit(y{X})", self.model.get_params()


def _band(x: np.ndarray, band: Band, label: str, tone: Any) -> list[Layer]:
    return [
        Layer("band", x, band.lower, f"{label}, 90 % interval", band.upper, tone=tone),
        Layer("line", x, band.mean, label, tone=tone),
    ]


def _series_blocks(
    model: Any, y: np.ndarray, ahead: Band | None, *, listed: int = 24
) -> tuple[Any, ...]:
    steps = np.arange(1, len(y) + 1)
    likelihood = model._model.likelihood
    volatile = likelihood.of_scale
    shown = np.abs(y) if volatile else y
    signal = model.smooth(interval=LEVEL, response=True)
    layers = [Layer("points", steps, shown, "observed", tone="muted")]
    layers += _band(steps, signal, likelihood.label, "first")
    blocks: list[Any] = []
    future = np.arange(len(y) + 1, len(y) + 1 + (0 if ahead is None else len(ahead.mean)))
    if ahead is not None and not volatile:
        layers += _band(future, ahead, "forecast", "second")
    blocks.append(
        Chart(
            title="The series",
            sentence=f"{len(y)} steps with the smoothed signal and its 90 % interval"
            + ("." if ahead is None else f", and a forecast of {len(ahead.mean)} steps."),
            x_label="step",
            y_label="absolute value" if volatile else "value",
            layers=tuple(layers),
            note="The band of the past is that of the signal; the band of the forecast holds "
            "observations, noise included, with 90 % probability.",
        )
    )
    if ahead is not None:
        whole = likelihood.whole_numbers
        rows = tuple(
            (str(t), rounded(m, s), rounded(s, s),
             f"{low:.0f} to {up:.0f}" if whole else f"{rounded(low, s)} to {rounded(up, s)}")
            for t, m, s, low, up in zip(future[:listed], *ahead, strict=False)
        )  # fmt: skip
        blocks.append(Grid("The forecast in numbers", ("Step", "Mean", "Sd", "90 % interval"), rows,
                           numeric=frozenset({0, 1, 2, 3})))  # fmt: skip
    return tuple(blocks)


def _component_blocks(model: Any) -> tuple[Any, ...]:
    said = {
        "level": "Where the series stands, without season and regression.",
        "slope": "What the level gains in a step.",
        "season": "What repeats with the period.",
    }
    charts = []
    for name in model._parts.names:
        band = model.smooth(name, interval=LEVEL)
        steps = np.arange(1, len(band.mean) + 1)
        charts.append(
            Chart(
                title=name.capitalize(),
                sentence=f"The {name} between {plain(band.mean.min(), 3)} and "
                f"{plain(band.mean.max(), 3)}.",
                x_label="step",
                y_label=name,
                layers=tuple(_band(steps, band, name, "first")),
                note=said[name] + " In the units of the predictor.",
            )
        )
    return tuple(charts)


def _estimate_blocks(model: Any) -> tuple[Any, ...]:
    posterior = model._posterior
    rows = [
        Estimate(_NAMES.get(name, name), *moments, *posterior.hyperparameter_interval(name, LEVEL))
        for name, moments in model.hyperparameters_.items()
    ]
    spreads = [row for row in rows if row.name != _NAMES["phi"]]
    blocks: list[Any] = [Prose(READ if len(model.coef_) else READ_PLAIN)]
    blocks.append(Forest("How much the states move", tuple(spreads), signs=False,
                         note="Standard deviations, in the units of the predictor."))  # fmt: skip
    if len(spreads) < len(rows):
        phi = next(row for row in rows if row.name == _NAMES["phi"])
        blocks.append(Forest("How long a deviation lasts", (phi,), signs=False))
    if len(model.coef_):
        names = [f"x{i + 1}" for i in range(len(model.coef_))]
        found = [
            normal_estimate(name, float(m), float(s))
            for name, m, s in zip(names, model.coef_, model.coef_sd_, strict=True)
        ]
        blocks.append(Forest("Regression coefficients", tuple(found)))
    return tuple(blocks)


def _fit_blocks(model: Any, y: np.ndarray, seen: np.ndarray) -> tuple[Any, ...]:
    rng, posterior = np.random.default_rng(0), model._posterior
    if (
        model._model.likelihood.binary
    ):  # of a draw: means have seen the steps, and lie too centrally
        drawn = posterior.draw(1, rng, some=slice(0)).predictors[0, seen]
        chance = np.asarray(model._model.likelihood.mean(drawn))
        said = "Probabilities of groups of steps are those of one draw from the posterior."
        return (calibration(y[seen] > 0, chance, "1"), Prose(said))
    states = posterior.draw(AMOUNTS.replicates, rng, some=slice(0))
    drawn = posterior.responses(states, rng)[:, seen]
    lower, upper = central(drawn)
    said = (
        f"{percent(coverage(y[seen], lower, upper))} of the observations are inside their 90 % "
        "interval. These are steps of the fit, whose states have seen them: a forecast is wider."
    )
    return (Prose(said), predictive(y[seen], drawn, "y"))


def _facts(model: Any, y: np.ndarray, seen: np.ndarray) -> Facts:
    components = model._parts
    level = {"walk": "a random walk", "ar": "an autoregression around a mean"}
    parts = [level[components.level]] if components.level else []
    parts += ["a slope"] * components.trend
    parts += [f"a season of {components.season} steps"] * bool(components.season)
    parts += [f"{model._series.X.shape[1]} regressor(s)"] * bool(model._series.X.shape[1])
    scales = {n: plain(s, 3) for n, s in model._scales.items() if n in model.hyperparameters_}
    return Facts(
        "What was fitted",
        {
            "states": ", ".join(parts),
            "likelihood": model._model.likelihood.name,
            "steps": f"{len(y):,}, {int((~seen).sum())} of them without an observation",
            "scales of the half-normal priors": ", ".join(f"{n} {s}" for n, s in scales.items()),
            "points of the integral over sds": str(len(model.lattice_.weights)),
        },
    )
