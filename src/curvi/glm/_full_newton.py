r"""Steps to the optimum of a bound with a full covariance, on the host.

At a share :math:`\rho` of the way the precision of q is
:math:`(1 - \rho)\,\Lambda + \rho\,\Lambda^*` and its mean moves by
:math:`-\rho` times its inverse times the gradient: the natural gradient step in the natural
parameters of q, and Newton's in the mean. A step that leads to a worse bound is not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from curvi._core.errors import Outcome
from curvi._core.threads import one_blas_thread
from curvi.engine import Budget, EagerDriver, RunResult, run_driver
from curvi.engine._recording import Recording
from curvi.families import Family, Params
from curvi.glm._full_bound import FullBound, inverse_root
from curvi.glm._newton import run_identity
from curvi.glm._stages import STAGES, Hooks, Options
from curvi.glm._starts import GLMFit, Start, best_start
from curvi.solvers import Info, rounding_of

Place = tuple[np.ndarray, np.ndarray]  # mean, and R


def run_full(bound: FullBound, start: Place, budget: Budget, dtype: Any) -> RunResult:
    """Minimise a negative ELBO over (mean, R); ``params`` are both in one vector."""
    vector = joined(*start)
    recording = Recording(lambda session: run_identity(session, bound, vector, dtype))
    if (ended := recording.ended([vector], budget.max_steps, budget.hooks)) is not None:
        return RunResult(*ended[0])
    driver = EagerDriver([FullNewton(bound, vector)])
    return run_driver(driver, 1, budget, recording=recording)[0]


def joined(mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Mean and R in one vector."""
    return np.concatenate([mean, factor.ravel()])


def parted(params: np.ndarray, size: int) -> Place:
    """Mean and R of a vector."""
    return params[:size], params[size:].reshape(size, size)


class FullNewton:
    """A stepper of the loop; ``share`` of the way to the next precision is taken.

    Steps must not lead to a worse bound. On draws the bound is a little uneven, and where it does
    not follow even a short step it has no more to say: from there on (``by_gain``) what a step
    leaves to be gained must be less than before.
    """

    def __init__(self, bound: FullBound, start: np.ndarray) -> None:
        self.bound, self.params = bound, start
        self.share, self.by_gain = 1.0, False
        self._here: Local | None = None

    def state(self) -> dict[str, Any]:
        """Where the run stands."""
        return {"params": self.params, "share": float(self.share), "by_gain": bool(self.by_gain)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.params, self.share = state["params"], float(state["share"])
        self.by_gain, self._here = bool(state["by_gain"]), None

    def step(self, tolerance: float) -> Info:
        """One step, or a shorter one where the last was not accepted."""
        with np.errstate(all="ignore"):  # what is not finite is rejected
            return self._step(tolerance)

    def _step(self, tolerance: float, *, shortest: float = 0.1) -> Info:
        # shortest: share of a step along which a smooth bound would improve
        mean, factor = parted(self.params, self.bound.size)
        here = self._here = self._here or Local.of(self.bound, mean, factor)
        slack = max(tolerance, float(rounding_of(np.float64(here.value))))
        trial = here.moved(mean, factor, self.share)
        if trial is None:
            shown = here.value, here.norm, here.gain
            return Info(*shown, 0, False, False, False, Outcome.RUNNING.value)
        there = Local.of(self.bound, *trial)
        finite = bool(np.isfinite([there.value, there.gain]).all())
        accepted = finite and self._is_better(here, there, slack)
        ends = finite and here.gain < slack and (accepted or self.share < 1.0)
        if accepted:
            self.params, self._here = joined(*trial), there
            self.share = min(1.0, 2 * self.share)
        else:
            self.share *= 0.5
            if finite and self.share < shortest and not self.by_gain:
                self.share, self.by_gain = 1.0, True
        outcome = Outcome.CONVERGED if ends else Outcome.RUNNING
        return Info(here.value, here.norm, here.gain, 1, accepted, finite, False, outcome.value)

    def _is_better(self, here: Local, there: Local, slack: float) -> bool:
        if self.by_gain:
            return there.gain < here.gain or there.gain < slack
        return there.value <= here.value + slack


class Local(NamedTuple):
    """The bound at some q, and what a whole step from there promises.

    ``gain`` in nats, ``norm`` of the gradient in the metric of q; ``root`` of the inverse of the
    precision that the rows ask for, or None where it is not positive definite.
    """

    value: float
    gain: float
    norm: float
    gradient: np.ndarray
    precision: np.ndarray
    root: np.ndarray | None

    @classmethod
    def of(cls, bound: FullBound, mean: np.ndarray, factor: np.ndarray) -> Local:
        """One pass over all rows."""
        here = bound.at(mean, factor)
        try:
            root = inverse_root(here.precision)
            roots = linalg.eigvalsh(factor.T @ here.precision @ factor)
        except (linalg.LinAlgError, ValueError):
            return cls(here.value, np.nan, np.nan, here.gradient, here.precision, None)
        newton, pulled = root.T @ here.gradient, factor.T @ here.gradient
        covariance = float(np.sum(roots - 1 - np.log(roots)))
        norm = float(np.sqrt(pulled @ pulled + 0.5 * np.sum((roots - 1) ** 2)))
        gain = 0.5 * (float(newton @ newton) + covariance)
        return cls(here.value, gain, norm, here.gradient, here.precision, root)

    def moved(self, mean: np.ndarray, factor: np.ndarray, share: float) -> Place | None:
        """Mean and R after a share of the step, if there is such a q."""
        if self.root is None or not np.isfinite(self.gain):
            return None
        root = self.root
        if share < 1.0:
            back = linalg.solve_triangular(factor, np.eye(mean.size), lower=True)
            root = inverse_root((1 - share) * (back.T @ back) + share * self.precision)
        return mean - share * (root @ (root.T @ self.gradient)), root


def start_on_few_rows(
    bound: FullBound, start: Place, budget: Budget, dtype: Any, rows: int
) -> Place:
    """The optimum of about so many rows, each with the weight of many, of a long table."""
    every = bound.tables.num_rows // rows
    if every < 4 or rows < 4 * bound.size:
        return start
    few = replace(bound, tables=bound.tables.thinned(every))
    run = run_full(few, start, budget, dtype)
    found = parted(run.params, bound.size)
    better = run.outcome is Outcome.CONVERGED and bound.value(*found) < bound.value(*start)
    return found if better else start


def fit_full(
    bound: FullBound,
    family: Family,
    dtype: Any,
    starts: Callable[[int], Start],
    options: Options,
    *,
    most_steps: int = 400,
) -> GLMFit:
    """Steps in mean and covariance together from every start; the best bound is kept.

    ``most_steps``: many more than a table takes whose rows say something.
    """
    steps = most_steps if options.max_steps is None else options.max_steps

    def run_from(index: int, hooks: Hooks) -> tuple[RunResult, float]:
        budget = Budget(options.accuracy(dtype), steps, hooks=hooks)
        mean, sd = (part.ravel() for part in starts(index))
        start = bound.conjugate_start()
        if start is None:
            start = start_on_few_rows(
                bound, (mean, np.diag(sd)), budget, dtype, options.coarse_rows
            )
        run = run_full(bound, start, budget, dtype)
        return run, -bound.value(*parted(run.params, bound.size))

    def moments(params: np.ndarray) -> Params:
        mean, factor = parted(params, bound.size)
        scale = np.tril(factor, -1) + np.diag(np.log(np.diag(factor)))
        parts: Any = (mean, scale)
        return Params(*parts)

    with one_blas_thread() if bound.work < STAGES.threaded_work else nullcontext():
        return best_start(family, run_from, moments, options)


def full_moments(family: Family, q: Params) -> Place:
    """Mean and R of a fit with a full covariance."""
    _, factor = family.scale.diagonal_and_factor(q.scale_params, np)
    return np.asarray(q.mean), factor
