r"""Simulation-based calibration: does the posterior cover what it should over simulated data.

Draw parameters from the prior and data from the model, fit the data, and note the probability
:math:`u = q(z < z_{\text{true}})` of every coordinate. For the exact posterior u is uniform. If q
is centred right its distribution is symmetric about one half, and if its width is right
:math:`2 |u - 1/2|` is uniform too.

The two tests have the level that they state. Symmetry is tested by random sign flips of
:math:`u - 1/2`: under the hypothesis every pattern of signs is equally likely, whatever the
shape of the distribution, so the p-value is exact (Yao, Vehtari, Simpson, Gelman 2018 propose the
histogram; comparing u with 1 - u by a two-sample test, as is common, is not valid, because the two
samples determine each other). Width is tested by the exact one-sample Kolmogorov-Smirnov test.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from curvi._core import validation
from curvi._core.errors import (
    InputError,
    Interrupted,
    NotConvergedWarning,
    NumericalError,
    keep_result,
    warn_user,
)
from curvi._core.memory import require_memory
from curvi._core.run import OutOfTime, Phase, current_run
from curvi._core.trees import coordinate_names, leaf_names
from curvi.diagnostics import Summary, summary_table
from curvi.engine import hooks_for, opened
from curvi.inference._fit import fit
from curvi.targets import AbstractTarget

_FEWEST_SIMULATIONS = 10
_LEVEL = 0.05
_TABLES = 3  # of one number per simulation and coordinate: as rows, stacked, folded


@dataclass(frozen=True, eq=False)
class Calibration:
    """What calibration found.

    Attributes
    ----------
    names : list of str
        The coordinates, in the user's space.
    probabilities : array, shape (simulations, coordinates)
        u of every simulation whose fit converged.
    bias, width : array, shape (coordinates,)
        p-values of "q is centred right" and of "q is as wide as it should be".
    shift : array
        Average of u - 1/2: positive where q lies too low.
    spread : array
        Average of ``|2u - 1|`` over its expectation 1/2: above 1 where q is too narrow.
    failures : int
        Fits that did not converge; they are left out.
    """

    names: list[str] = field(repr=False)
    probabilities: np.ndarray = field(repr=False)
    bias: np.ndarray
    width: np.ndarray
    shift: np.ndarray
    spread: np.ndarray
    failures: int

    @property
    def p_value(self) -> float:
        """Of "everything is calibrated": the smallest p-value times their number (Bonferroni)."""
        table = np.concatenate([self.bias, self.width])
        return float(np.minimum(1.0, table.min() * table.size))  # NaN stays

    @property
    def calibrated(self) -> bool:
        """Whether nothing speaks against calibration at the 5 % level, all tests together."""
        return self.p_value > _LEVEL

    def _headline(self) -> str:
        if math.isnan(self.p_value):
            return "NOT TESTED"
        return "calibrated" if self.calibrated else "NOT CALIBRATED"

    def summary(self) -> Summary:
        """The verdict and a table of the tests."""
        count = len(self.probabilities)
        sentence = (
            f"p = {self.p_value:.3g} for all coordinates together, from {count} simulations"
            + (
                f"; {self.failures} fits did not converge and are left out."
                if self.failures
                else "."
            )
        )
        return summary_table(
            verdict=(self._headline(), sentence),
            facts={"shift": "positive: q lies too low", "spread": "above 1: q is too narrow"},
            names=self.names,
            columns={
                "shift": self.shift,
                "p bias": self.bias,
                "spread": self.spread,
                "p width": self.width,
            },
        )


def calibrate(
    simulate: Callable[[PRNGKeyArray], tuple[PyTree, PyTree]],
    build: Callable[[PyTree], AbstractTarget],
    *,
    num_simulations: int = 100,
    seed: int = 0,
    time_budget: float | None = None,
    progress: bool = False,
    checkpoint: Any = None,
    **options: Any,
) -> Calibration:
    """Simulation-based calibration of ``fit`` on a model with a simulator.

    Parameters
    ----------
    simulate : callable
        ``simulate(key) -> (parameters, data)``: a draw from the prior, in the user's
        (constrained) space, and data drawn given it.
    build : callable
        ``build(data) -> Target or DataTarget``. Give the data to a DataTarget whose functions are
        always the same: all fits then share one compilation.
    num_simulations : int
        Number of fits, at least 10. About 100 detect a bias of a third of a posterior sd.
    seed : int
        Seed of simulations, fits and tests.
    time_budget : float, optional
        Seconds for all simulations, the compilation of their steps not counted.
    progress : bool
        A progress bar, on a terminal only.
    checkpoint : path or Checkpoint, optional
        A file from which the same call resumes, see :func:`curvi.fit`.
    **options
        Passed on to :func:`curvi.fit`, such as ``family=curvi.FullRank()``; ``on_failure`` has no
        effect, because fits that fail are counted.

    Returns
    -------
    Calibration
        p-values of bias and width of every coordinate, and the verdict over all of them.

    Raises
    ------
    InputError
        If there are fewer than 10 simulations, the simulated parameters are not finite or do not
        have the structure and shapes of the target's position, or one of the functions is none or
        returns something else.
    MemoryBudgetError
        If the probabilities of so many simulations would not fit into the memory budget.
    NumericalError
        If fewer than 10 of the fits converged.
    Interrupted
        At Ctrl-C; its ``.result`` is the calibration by the simulations
        that are done, or None; after a second Ctrl-C its p-values are NaN. An exception out of
        ``simulate`` or ``build`` keeps its type, and has it as ``.curvi_result``.

    Warns
    -----
    NotConvergedWarning
        If ``time_budget`` ran out: the calibration is by the simulations that are done.
    """
    with opened(locals(), "calibrate") as call, hooks_for(progress):
        _check(simulate, build, num_simulations)
        key = validation.random_key(seed)
        rng = np.random.default_rng(seed)
        rows: list[np.ndarray] = []
        names: list[str] = []
        options = {**options, "progress": False, "on_failure": "return"}

        for index in range(num_simulations):
            done = f"after {index} of {num_simulations} simulations"
            with Phase(f"simulation {index + 1} of {num_simulations}") as phase:
                try:
                    truth, data = _simulated(simulate, jax.random.fold_in(key, index))
                    names = names or coordinate_names(truth)
                    if index == 0:
                        require_memory(
                            _TABLES * num_simulations * len(names) * 8,
                            f"the probabilities of {num_simulations} simulations",
                            "run fewer: a few hundred detect what matters",
                        )
                    target = _built(build, data)
                    row = _probabilities(truth, target, (seed + index) % 2**64, rng, options)
                except Exception as error:
                    if rows and not isinstance(error, OutOfTime):
                        keep_result(error, judge(np.stack(rows), names, index - len(rows), rng))
                    raise
                if row is not None:
                    rows.append(row)
            if phase.interrupted:
                raise _cut_short(f"interrupted {done}; ", rows, names, index - len(rows), rng)
            if phase.out_of_time:
                break
        count = index if phase.out_of_time else num_simulations
        if len(rows) < _FEWEST_SIMULATIONS:
            raise NumericalError(
                f"time_budget ran out {done}: too few for a calibration; raise it"
                if phase.out_of_time
                else f"{count - len(rows)} of {count} fits did not converge; look at one of them "
                "with curvi.fit before calibrating"
            )
        found = judge(np.stack(rows), names, count - len(rows), rng)
        if phase.out_of_time:
            text = f"time_budget ran out {done}: the calibration is by those"
            warn_user(NotConvergedWarning(text, found))
        return call.returned(found)


def _check(simulate: Any, build: Any, num_simulations: Any) -> None:
    validation.require_callable(simulate, "simulate", "simulate(key) -> (parameters, data)")
    validation.require_callable(build, "build", "build(data) -> Target or DataTarget")
    validation.positive_integer(num_simulations, "num_simulations")
    if num_simulations < _FEWEST_SIMULATIONS:
        raise InputError(
            f"num_simulations is {num_simulations}; at least {_FEWEST_SIMULATIONS} are needed"
        )


def _cut_short(
    done: str, rows: list[np.ndarray], names: list[str], failures: int, rng: np.random.Generator
) -> Interrupted:
    """What Ctrl-C raises; another one during the tests leaves them out."""
    if not rows:
        return Interrupted(done + "no fit of them converged, so .result is None")
    found, what = untested(np.stack(rows), names, failures), "their probabilities, without p-values"
    with Phase("testing"):
        found, what = judge(np.stack(rows), names, failures, rng), "the calibration by those"
    return Interrupted(f"{done}.result of this exception is {what}", found)


def _simulated(
    simulate: Callable[[PRNGKeyArray], tuple[PyTree, PyTree]], key: PRNGKeyArray
) -> tuple[PyTree, PyTree]:
    """The truth and the data of one simulation; the truth is finite."""
    pair: Any = simulate(key)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(
            f"simulate returned a {type(pair).__name__}; it must return (parameters, data)"
        )
    for leaf, name in zip(jax.tree.leaves(pair[0]), leaf_names(pair[0], "truth"), strict=True):
        need = "simulate must return finite parameters; a rank among draws has no meaning otherwise"
        validation.refuse_non_finite(np.asarray(leaf), name, need)
    return pair[0], pair[1]


def _built(build: Callable[[PyTree], AbstractTarget], data: PyTree) -> AbstractTarget:
    target: Any = build(data)
    if not isinstance(target, AbstractTarget):
        raise InputError(
            f"build returned a {type(target).__name__}; it must return a curvi.Target or a "
            "curvi.DataTarget"
        )
    return target


def _probabilities(
    truth: PyTree, target: AbstractTarget, seed: int, rng: np.random.Generator,
    options: dict[str, Any], *, num_draws: int = 999,
) -> np.ndarray | None:  # fmt: skip
    """Rank of the truth among draws of q, made continuous by a uniform variable.

    ``num_draws``: draws of a posterior, among which the truth has its rank.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            result = fit(target, seed=seed, **options)
    except NumericalError:
        return None
    if result.interrupted:
        raise Interrupted(result.message, result)
    current_run().check()  # a fit that the end of the time has cut short is no failure
    if not result.converged:
        return None
    draws = result.sample(num_draws, seed=seed)
    if jax.tree.structure(draws) != jax.tree.structure(truth):
        raise InputError(
            f"simulate returns parameters of structure {jax.tree.structure(truth)}, the target has "
            f"{jax.tree.structure(draws)}; they must agree"
        )
    many, one = ([np.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (draws, truth))
    if [shape[1:] for shape in many] != one:
        raise InputError(
            f"simulate returns parameters of shapes {one}, the target has "
            f"{[shape[1:] for shape in many]}; they must agree"
        )
    need = "constrain must be finite wherever the log density is"
    for leaf, name in zip(jax.tree.leaves(draws), leaf_names(draws, "sample"), strict=True):
        validation.refuse_non_finite(leaf, name, need)
    below = [
        np.sum(np.asarray(draw) < np.asarray(true)[None], axis=0).ravel()
        for draw, true in zip(jax.tree.leaves(draws), jax.tree.leaves(truth), strict=True)
    ]
    rank = np.concatenate(below)
    return (rank + rng.random(rank.shape)) / (num_draws + 1)


def judge(
    probabilities: np.ndarray, names: list[str], failures: int, rng: np.random.Generator
) -> Calibration:
    """Both tests for every coordinate."""
    from scipy.stats import kstest

    folded = 2 * np.abs(probabilities - 0.5)
    return replace(
        untested(probabilities, names, failures),
        bias=np.array([sign_flip_test(column - 0.5, rng) for column in probabilities.T]),
        width=np.array([float(kstest(column, "uniform").pvalue) for column in folded.T]),
    )


def untested(probabilities: np.ndarray, names: list[str], failures: int) -> Calibration:
    """What needs no test; the p-values are NaN."""
    unknown = np.full(probabilities.shape[1], np.nan)
    return Calibration(
        names=names,
        probabilities=probabilities,
        bias=unknown,
        width=unknown,
        shift=probabilities.mean(axis=0) - 0.5,
        spread=2 * (2 * np.abs(probabilities - 0.5)).mean(axis=0),
        failures=failures,
    )


def sign_flip_test(
    values: np.ndarray, rng: np.random.Generator, num_flips: int = 4999, *,
    signs_at_once: int = 2_000_000,
) -> float:  # fmt: skip
    r"""p-value of "the distribution is symmetric about zero", by random flips of signs.

    The statistic is the absolute mean. The observed pattern counts as one of the patterns, which
    makes the p-value valid for any number of flips, and 1 / (1 + num_flips) the smallest. Where
    that is reached, Hoeffding's bound of the same tail takes over if it is smaller,

    .. math:: P\bigl(|\textstyle\sum_i s_i v_i| \ge t\bigr) \le 2 \exp(-t^2 / 2 \sum_i v_i^2),

    so that a plain bias is found among any number of coordinates. Below the smallest p-value of
    the flips only the bound can reject, and it is never too small: the test stays valid.

    ``signs_at_once``: signs that are held at once, at most.
    """
    observed = abs(values.sum())
    at_least, block = 0, max(1, signs_at_once // len(values))
    for begin in range(0, num_flips, block):
        size = (min(block, num_flips - begin), len(values))
        flipped = np.abs(rng.choice(np.array([-1.0, 1.0]), size=size) @ values)
        # Equal patterns must count as equal although their sums round differently.
        at_least += int((flipped >= observed * (1 - 1e-12)).sum())
    if at_least:
        return (1 + at_least) / (1 + num_flips)
    square = float(np.sum(values**2))
    bound = 2 * math.exp(-0.5 * observed**2 / square) if square > 0 else 1.0
    return min(1 / (1 + num_flips), bound)
