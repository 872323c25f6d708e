"""A series as the user gives it: validated, with its unit, and extended into the future."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.latent import (
    Assembly,
    Autoregression,
    Component,
    Fixed,
    LocalTrend,
    RandomWalk,
    Season,
    SiteModel,
)
from curvi.likelihoods import Extra, Likelihood

_LONGEST_SEASON = 104
_PRIOR_UNITS = {"level": 1.0, "trend": 0.1, "season": 0.5, "noise": 1.0}
_FIRST_UNITS = {"level": 10.0, "trend": 1.0, "season": 3.0}  # prior sds of first values
_COEFFICIENT_UNITS = 2.5  # prior sd of a coefficient, per sd of its column
_LEFT_OUT = 1.5  # usual periods; months and quarters differ by less
_DAY = 1.5 * 24 * 3600  # seconds
_MEAN_UNITS = 3.0  # prior sd of the mean of an autoregression
_START = 0.3  # of sds, in the scales of their priors


@dataclass(frozen=True)
class Parts:
    """Which processes add up to the predictor.

    Attributes
    ----------
    level : {"walk", "ar", None}
        A random walk, or a stationary autoregression of order one around a mean.
    trend : bool
        Whether the level has a slope, which is a random walk itself.
    season : int
        Number of steps of a period; zero for none.
    """

    level: str | None = "walk"
    trend: bool = False
    season: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of the state at one time."""
        present = (self.level, self.trend, self.season)
        return tuple(n for n, on in zip(("level", "slope", "season"), present, strict=True) if on)

    def effects(self, name: str, steps: int) -> slice:
        """Where a part stands among all effects."""
        states = 1 + self.trend if self.level else 0
        if name == "season":
            return slice(states * steps, (states + 1) * steps)
        return slice(int(name == "slope"), states * steps, states)


@dataclass(frozen=True)
class Series:
    """Observations and regressors, with NaN where an observation is missing.

    Attributes
    ----------
    y : array, shape (steps,)
        As the likelihood takes it.
    X : array, shape (steps, columns)
        The user's regressors.
    column_sd : array, shape (columns,)
        Their standard deviations over the fitted steps.
    scale, offset : float
        Unit and middle of the predictor.
    shown : array, shape (steps,)
        The series as the user gave it.
    num_own : int
        Columns of the design that are not the user's.
    """

    y: np.ndarray
    X: np.ndarray
    column_sd: np.ndarray
    scale: float
    offset: float
    shown: np.ndarray
    num_own: int = 0

    _claims = {  # noqa: RUF012  of no instance
        "y": "number steps", "X": "real steps columns", "column_sd": "positive columns",
        "scale": "positive", "offset": "real", "shown": "number steps",
    }  # fmt: skip

    def _check_stored(self) -> None:
        if (np.isnan(self.shown) != np.isnan(self.y)).any():
            raise InputError("its shown lacks other steps than its y")

    def extended(self, h: int, X: Any) -> Series:
        """The same with h steps that nobody has seen."""
        columns = self.X.shape[1]
        if columns == 0:
            if X is not None:
                raise InputError("X is given but fit() had none; leave it out")
            more = np.zeros((h, 0))
        else:
            if X is None:
                raise InputError(
                    f"fit() had {columns} regressor(s); give X of shape ({h}, {columns})"
                )
            more = _regressors(X, h, "h")
            if more.shape[1] != columns:
                raise InputError(f"X has {more.shape[1]} column(s) but fit() had {columns}")
        y = np.concatenate([self.y, np.full(h, np.nan)])
        return replace(self, y=y, X=np.concatenate([self.X, more]))


def _regressors(X: Any, steps: int, what: str) -> np.ndarray:
    X = validation.real_numbers(X, "X")
    if X.ndim == 1:
        X = X[:, None]
    if X.ndim != 2 or X.shape[0] != steps:
        raise InputError(f"X has the shape {X.shape}; it needs one row per step, {what} = {steps}")
    validation.refuse_non_finite(X, "X", "regressors must be known at every step")
    return X


def _numbers(y: Any) -> np.ndarray:
    """The series in float64; masked entries are missing ones."""
    if not isinstance(y, np.ma.MaskedArray):
        return validation.real_numbers(y, "y")
    return np.where(np.ma.getmaskarray(y), np.nan, validation.real_numbers(y.data, "y"))


def _times(index: Any) -> np.ndarray | None:
    """The times of a pandas index, of periods or in a time zone too; None for any other index."""
    if index is None or callable(index):
        return None
    if hasattr(index, "to_timestamp"):
        index = index.to_timestamp()
    elif getattr(index, "tz", None) is not None:
        index = index.tz_convert(None)  # in UTC, in which no hour comes twice
    times = np.asarray(index)
    return times if times.dtype.kind == "M" and len(times) > 1 else None


def _check_time(index: Any, season: bool) -> None:
    """Refuse a pandas index of times that is not sorted, or that leaves out a period.

    Only where a period is longer than a day: markets are closed at night and on weekends. Of days
    with a season too, because one that is left out would move all later ones to another phase;
    where every day is a working day, weekends are no steps.
    """
    times = _times(index)
    if times is None:
        return
    gaps = np.diff(times.astype("datetime64[s]").astype(np.float64))
    if (gaps <= 0).any():
        place = int(np.argmax(gaps <= 0)) + 1
        raise InputError(
            f"the index of y does not go forward in time at y[{place}]; use y.sort_index(), and "
            "one value for each time"
        )
    usual = float(np.median(gaps))
    wide = gaps > _LEFT_OUT * usual
    days = times.astype("datetime64[D]")
    if usual <= _DAY and np.is_busday(days).all():
        wide &= np.busday_count(days[:-1], days[1:]) > 1
    if (usual > _DAY or (season and usual > 0.5 * _DAY)) and wide.any():
        place = int(np.argmax(wide))
        raise InputError(
            f"the index of y leaves out at least one step between y[{place}] and y[{place + 1}]; "
            "put NaN where an observation is missing, for example with y.asfreq(...)"
        )


def as_series(y: Any, X: Any, likelihood: Likelihood, *, season: bool = False) -> Series:
    """Validate a series: numbers, at least two of them seen, in the support of the likelihood."""
    shown = _numbers(y)
    index: Any = getattr(y, "index", None)
    other: Any = getattr(X, "index", None)
    _check_time(index, season)
    if hasattr(index, "equals") and hasattr(other, "equals") and not index.equals(other):
        raise InputError(
            "the index of X differs from that of y; use X.loc[y.index], or X.to_numpy() where the "
            "rows are those of y in its order"
        )
    if shown.ndim != 1:
        raise InputError(f"y has the shape {shown.shape}; fit() takes one series of shape (steps,)")
    seen = ~np.isnan(shown)
    if seen.sum() < 2:
        raise InputError(f"y has {seen.sum()} observation(s); at least 2 are needed")
    if np.isinf(shown).any():
        raise InputError(
            f"y[{int(np.argmax(np.isinf(shown)))}] is infinite; write NaN for a missing observation"
        )
    regressors = np.zeros((len(shown), 0)) if X is None else _regressors(X, len(shown), "len(y)")
    given = shown[seen]
    likelihood.check(shown)
    with np.errstate(over="ignore"):
        scale, offset = likelihood.units(given)
    constant = likelihood.location_scale and given.min() == given.max()
    if constant or not np.isfinite([scale, offset]).all():
        raise InputError(
            "y does not vary, or its squares are out of range: there is nothing to infer from it"
        )
    spread = regressors.std(axis=0)
    if (spread == 0).any():
        column = int(np.argmax(spread == 0))
        raise InputError(f"X[:, {column}] is constant; leave it out, the level plays its part")
    return Series(shown, regressors, spread, scale, offset, shown)


def in_series(likelihood: Any) -> bool:
    """Whether the observations of a series can have it: one number each, without trials."""
    return not likelihood.takes_trials


def check_season(season: int, steps: int) -> None:
    """Refuse a period that was not seen twice, and a fit that would take many minutes."""
    if 2 * season > steps:
        raise InputError(
            f"season is {season} but y has {steps} step(s), and two whole periods are needed to "
            "tell a season from the level; use a longer series or season=None"
        )
    if season > _LONGEST_SEASON or steps * season**2 > 10**7:
        raise InputError(
            f"season is {season} and y has {steps} steps: the time of a fit grows with the steps "
            f"and the square of the season, which has at most {_LONGEST_SEASON}; give sines and "
            "cosines of the period as columns of X, or add the series up to fewer steps"
        )


def extras_of(likelihood: Likelihood) -> tuple[Extra, ...]:
    """Hyperparameters of a likelihood; the residual sd is called noise."""
    return tuple(
        replace(extra, name="noise") if extra.name == "residual sd" else extra
        for extra in likelihood.extras
    )


def scales_of(
    series: Series, likelihood: Likelihood, prior_scales: dict[str, float] | None
) -> dict[str, float]:
    """Scales of all priors of hyperparameters, by name."""
    scales = {extra.name: extra.scale for extra in extras_of(likelihood)}
    scales |= {name: unit * series.scale for name, unit in _PRIOR_UNITS.items()}
    if prior_scales is not None and not isinstance(prior_scales, dict):
        raise InputError(
            f"prior_scales is {prior_scales!r}; give a dictionary such as {{'level': 0.5}}"
        )
    known = tuple(dict.fromkeys((*_PRIOR_UNITS, *scales)))
    for name, scale in (prior_scales or {}).items():
        validation.one_of(name, known, "a name in prior_scales")
        scales[name] = validation.positive_number(scale, f"prior_scales[{name!r}]")
    return scales


def components_of(series: Series, parts: Parts, scales: dict[str, float]) -> list[Component]:
    """Processes over all steps, with priors in the unit of the series, and the regression."""
    steps, unit = np.arange(len(series.y)), series.scale
    first = {name: units * unit for name, units in _FIRST_UNITS.items()}
    found: list[Component] = []
    if parts.trend:
        sds = (scales["level"], scales["trend"])
        start = (first["level"], first["trend"])
        found.append(LocalTrend(steps, prior_scales=sds, first_sds=start))
    elif parts.level == "walk":
        found.append(
            RandomWalk(steps, "level", prior_scale=scales["level"], first_sd=first["level"])
        )
    elif parts.level == "ar":
        found.append(Autoregression(steps, prior_scale=scales["level"]))
    if parts.season:
        scale, sd = scales["season"], first["season"]
        found.append(Season(steps, parts.season, prior_scale=scale, first_sd=sd))
    design, sds_of_columns = series.X, _COEFFICIENT_UNITS * unit / series.column_sd
    if parts.level != "walk":  # its mean, or that of a season without a level
        design = np.concatenate([np.ones((len(design), 1)), design], axis=1)
        sds_of_columns = np.concatenate([[_MEAN_UNITS * unit], sds_of_columns])
    if design.shape[1]:
        found.append(Fixed(design, "regression", prior_scale=sds_of_columns))
    return found


def model_for(
    series: Series, parts: Parts, likelihood: Likelihood, scales: dict[str, float]
) -> SiteModel:
    """The model of a series, with priors in its own unit."""
    extras = tuple(replace(extra, scale=scales[extra.name]) for extra in extras_of(likelihood))
    start = likelihood.extra_start(series.y[np.isfinite(series.y)])
    start = [
        _START * scales["noise"] if extra.name == "noise" else value
        for extra, value in zip(extras, start, strict=True)
    ]
    assembly = Assembly(components_of(series, parts, scales), extras, start)
    steps = len(series.y)
    return SiteModel(assembly, likelihood, series.y, np.full(steps, series.offset), np.ones(steps))
