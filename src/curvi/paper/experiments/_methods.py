"""The paper's three algorithms and exact Newton on one data set, with settings chosen fairly.

Every stochastic method has a few candidate settings. Each is tried once with a seed that is not
used again, and the one with the highest final ELBO is kept: test errors never choose.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from curvi import datasets
from curvi.glm import BayesianLogisticRegression
from curvi.paper.experiments._runs import MethodRun, Setting, design, run_setting
from curvi.solvers import DSVI, HFSGVI, LBFGS

NEWTON = "Newton (curvi)"
PAPER_METHODS = ("DSVI", "L-BFGS-SGVI", "HFSGVI")
_PILOT_SEED = 10_000


def _hfsgvi_settings(steps: int) -> tuple[Setting, ...]:
    """What the paper leaves open: parameters, iterate and preconditioner of CG, draws, curvature.

    The first is the one that quick runs use.
    """
    held_back = HFSGVI(parameters="log_scale", keep="least_residual")
    return (
        Setting(held_back, steps, num_draws=10),
        Setting(held_back, steps, num_draws=1, per_row=True),
        Setting(HFSGVI(keep="least_residual"), steps, num_draws=10),
        Setting(HFSGVI(curvature="plug_in"), steps, num_draws=10),
        Setting(HFSGVI(preconditioner="diagonal", keep="least_residual"), steps, num_draws=10),
        Setting(replace(held_back, preconditioner="martens"), steps, num_draws=10),
        Setting(HFSGVI(), steps, num_draws=10),
    )


SMALL: dict[str, tuple[Setting, ...]] = {
    "DSVI": tuple(Setting(DSVI(learning_rate=rate), 100_000) for rate in (1e-3, 3e-4, 1e-4)),
    "L-BFGS-SGVI": (
        Setting(LBFGS(), 2000, num_draws=10),
        Setting(LBFGS(history=15), 2000, num_draws=30),
    ),
    "HFSGVI": _hfsgvi_settings(300),
}
LARGE: dict[str, tuple[Setting, ...]] = {
    "DSVI": (
        Setting(DSVI(learning_rate=1e-5), 100_000),
        Setting(DSVI(learning_rate=3e-5), 100_000, batch_size=1000),
        Setting(DSVI(learning_rate=1e-5), 100_000, batch_size=1000),
    ),
    "L-BFGS-SGVI": (
        Setting(LBFGS(), 3000, num_draws=10),
        Setting(LBFGS(), 3000, num_draws=10, width=0.1),
    ),
    "HFSGVI": _hfsgvi_settings(1000),
}


class Pilot(NamedTuple):
    """A candidate and the ELBO at the end of its run with the pilot seed."""

    setting: Setting
    bound: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """All runs on one data set, by method and seed, and the settings that were kept.

    ``pilots`` holds the candidates of every method with the bound at the end of their pilot run.
    """

    name: str
    seeds: tuple[int, ...]
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    runs: dict[str, list[MethodRun]]
    settings: dict[str, Setting]
    pilots: dict[str, list[Pilot]] = field(default_factory=dict)


def load_rows(
    name: str,
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test rows, always all of them: the paper's errors are counts."""
    data = datasets.load(name)
    (X, y), test = data.train, data.test
    assert y is not None and test is not None and test[1] is not None  # noqa: S101, PT018
    return (X, y), (test[0], test[1])


def newton_run(X: np.ndarray, y: np.ndarray, *, seed: int, num_starts: int = 1) -> MethodRun:
    """The exact Newton fit as a run; its curve is that of the start that was kept.

    The paper's default feature has the relevance prior of all others: it is a column of the table.
    The time of the other starts and of compilation comes before it: all of it is charged. Seconds
    are those of the processor, shared out like those of the clock.
    """
    model = BayesianLogisticRegression(
        prior="ard",
        covariance="diagonal",
        standardize=False,
        fit_intercept=False,
        random_state=seed,
        num_starts=num_starts,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the outcome is recorded
        began = time.perf_counter(), time.process_time()
        model.fit(design(X), y)
        processors = (time.process_time() - began[1]) / (time.perf_counter() - began[0])
    fitted = model.result_
    seconds = fitted.trace["seconds"] + max(0.0, fitted.seconds - fitted.trace["seconds"][-1])
    seconds = processors * seconds
    mean, log_sd = (np.asarray(leaf, np.float64).ravel() for leaf in fitted.q)
    return MethodRun(
        step=np.append(fitted.trace["step"], fitted.steps),
        seconds=np.append(seconds, seconds[-1]),
        bound=np.append(fitted.trace["elbo"], fitted.elbo),
        mean=mean,
        sd=np.exp(log_sd),
        outcome=fitted.outcome,
    )


@dataclass(frozen=True)
class Options:
    """The seeds of a comparison, whether it is quick, and how long a stochastic run may be.

    ``seconds`` ends a run instead of the usual number of them; ``steps`` are taken whatever the
    time, unless ``seconds`` are given too. Pilot runs, which are many, take no more than usual.
    """

    seeds: tuple[int, ...]
    quick: bool = False
    seconds: float | None = None
    steps: int | None = None

    def seconds_for(self, name: str) -> float:
        """Seconds of one run of a stochastic method; the large table gets more of them."""
        if self.seconds is not None:
            return self.seconds
        if self.steps is not None:
            return float("inf")
        return self._usual(name)

    def pilot_seconds(self, name: str) -> float:
        """Seconds of a run that chooses a setting."""
        return min(self.seconds_for(name), self._usual(name))

    def _usual(self, name: str) -> float:
        small, large = (1.0, 2.0) if self.quick else (4.0, 16.0)
        return large if name == "a9a" else small

    def limited(self, setting: Setting) -> Setting:
        """The setting with the number of steps that was asked for."""
        return setting if self.steps is None else replace(setting, max_steps=self.steps)


_FOUND: dict[tuple[str, Options], Comparison] = {}


def compare(name: str, options: Options, report: Callable[[str], None]) -> Comparison:
    """Choose settings by the ELBO, then run every method with every seed.

    The table and the figure show the same runs, which are made once per process.
    """
    if (name, options) not in _FOUND:
        _FOUND[name, options] = _compared(name, options, report)
    return _FOUND[name, options]


def pilots(
    name: str, method: str, options: Options, report: Callable[[str], None], *,
    many_rows: int = 1000,
) -> list[Pilot]:  # fmt: skip
    """Every candidate of a method, run once with a seed that is not used again.

    ``many_rows``: above which a table has the candidates of large ones.
    """
    (X, y), _ = load_rows(name)
    candidates = (LARGE if len(X) > many_rows else SMALL)[method]
    settings = [options.limited(s) for s in candidates[: 1 if options.quick else None]]
    if len(settings) == 1:
        return [Pilot(settings[0], float("nan"))]
    report(f"{name}: choosing the settings of {method}")
    return tried(settings, X, y, options.pilot_seconds(name))


def tried(settings: Sequence[Setting], X: np.ndarray, y: np.ndarray, limit: float) -> list[Pilot]:
    """Every setting with the ELBO at the end of a run with the pilot seed."""
    return [Pilot(s, run_setting(s, X, y, seed=_PILOT_SEED, seconds=limit).last) for s in settings]


def best_of(tried: list[Pilot]) -> Setting:
    """The candidate whose pilot run ends with the highest ELBO."""
    return max(tried, key=lambda one: np.nan_to_num(one.bound, nan=-np.inf)).setting


def _compared(name: str, options: Options, report: Callable[[str], None]) -> Comparison:
    seeds = options.seeds
    (X, y), test = load_rows(name)
    seconds = options.seconds_for(name)
    runs: dict[str, list[MethodRun]] = {}
    tried = {method: pilots(name, method, options, report) for method in PAPER_METHODS}
    settings = {method: best_of(results) for method, results in tried.items()}
    for method in PAPER_METHODS:
        runs[method] = []
        for seed in seeds:
            report(f"{name}: {method}, seed {seed}")
            runs[method].append(run_setting(settings[method], X, y, seed=seed, seconds=seconds))
    runs[NEWTON] = newton_runs(name, (X, y), seeds=seeds, report=report)
    return Comparison(name, seeds, (X, y), test, runs, settings, tried)


def newton_runs(
    name: str,
    train: tuple[np.ndarray, np.ndarray],
    *,
    seeds: Sequence[int],
    report: Callable[[str], None],
) -> list[MethodRun]:
    """The exact Newton fit with every seed, after one that is not recorded."""
    runs = []
    newton_run(*train, seed=_PILOT_SEED)
    for seed in seeds:
        report(f"{name}: {NEWTON}, seed {seed}")
        runs.append(newton_run(*train, seed=seed))
    return runs
