"""Newton steps with the dense Hessian of a bound, on the host.

The steps are those of the trust region of :mod:`curvi.solvers`, the loop around them is the
engine's. Nothing is compiled, which would take seconds for every new shape of the data.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from scipy import linalg

from curvi._core.errors import Outcome
from curvi.engine import Budget, EagerDriver, RunResult, Session, plain, run_driver, short_digest
from curvi.engine._recording import Recording
from curvi.glm._diagonal_bound import DiagonalBound, SecondOrder
from curvi.glm._rows import Tables
from curvi.solvers import (
    Info,
    LocalModel,
    Step,
    rounding_of,
    solve_dense,
    step_info,
    trust_region_step,
)


@dataclass(frozen=True)
class Shortcuts:
    """When the Hessian of a Newton step may be an old one, and when it is trusted."""

    shrinks: float = 0.01  # of a gain to the next, where an old Hessian is as good as a new one
    checked: float = 1.0  # gain of a step from which on rounding errors of the Hessian could matter
    nearly: float = 1e-2  # gain of a step from which on shortcuts are tried
    smallest_eigenvalue: float = 100.0  # of a Hessian that can be trusted, in rounding errors


SHORTCUTS = Shortcuts()


def run_newton(
    bound: DiagonalBound, start: np.ndarray, budget: Budget, dtype: Any = np.float64
) -> RunResult:
    """Minimise a negative ELBO whose values have the rounding errors of ``dtype``."""
    recording = Recording(lambda session: run_identity(session, bound, start, dtype))
    if (ended := recording.ended([start], budget.max_steps, budget.hooks)) is not None:
        return RunResult(*ended[0])
    driver = EagerDriver([DenseNewton(bound, start, dtype)])
    return run_driver(driver, 1, budget, recording=recording)[0]


def run_identity(session: Session, bound: Any, start: np.ndarray, dtype: Any) -> dict[str, str]:
    """What decides the bits of a run: options in words, arrays and tables by their digests."""
    digests, words, data = session.identities, {}, []
    for entry in fields(bound):
        value = getattr(bound, entry.name)
        if isinstance(value, Tables):
            parts = (part for table in value for part in table.arrays)
            data.append(digests.stream(value, parts))
        elif isinstance(value, bool | int | float) or is_dataclass(value):
            words[entry.name] = plain(repr(value)) if entry.name != "threads" else ""
        data.append(
            digests.arrays([leaf for leaf in jax.tree.leaves(value) if hasattr(leaf, "dtype")])
        )
    return {
        "model": f"{type(bound).__name__} {words}",
        "precision": str(np.dtype(dtype)),
        "data": short_digest(" ".join(data)),
        "start": digests.arrays(start),
    }


class DenseNewton:
    """A stepper of the loop, and the objective that its trust region sees.

    Where steps shrink fast the Hessian is kept for the next one. With a Hessian of single
    precision the run ends as stalled, not as converged, where rounding could have hidden a gain.
    A bound that only leads to a start (``bound.rough``) is left at the first step that gains too
    little, even one that the radius cut short.
    """

    def __init__(self, bound: DiagonalBound, start: np.ndarray, dtype: Any) -> None:
        self.bound, self.params, self.finfo = bound, start, np.finfo(dtype)
        self.radius = np.sqrt(float(start.size))
        self._tolerance = 0.0
        self._model: LocalModel | None = None  # where the run stands
        self._hessian = np.zeros((0, 0))  # of the model
        self._kept: np.ndarray | None = None  # a Hessian that can serve again
        self._last_gain = np.inf  # of an accepted step
        self._checked = not bound.single  # whether rounding of the Hessian is harmless

    def state(self) -> dict[str, Any]:
        """Where the run stands; a model that was kept is made again."""
        return {
            "params": self.params,
            "radius": float(self.radius),
            "kept": self._kept,
            "last_gain": float(self._last_gain),
            "checked": bool(self._checked),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.params, self.radius = state["params"], np.float64(state["radius"])
        self._kept, self._last_gain = state["kept"], state["last_gain"]
        self._checked, self._model = state["checked"], None

    def step(self, tolerance: float) -> Info:
        """One step of the trust region, and what follows from its gain."""
        self._tolerance = tolerance
        with np.errstate(all="ignore"):  # what is not finite is rejected
            taken = trust_region_step(self, self.params, self.radius, tolerance)
            self.radius = taken.radius
            return step_info(Info, taken)._replace(outcome=self._after(taken).value)

    def model(self, params: np.ndarray) -> LocalModel:
        """The quadratic model, kept as long as the parameters stay.

        It has the Hessian of the step before, if the next step would gain little by it.
        """
        if self._model is not None:
            return self._model
        metric = self.bound.metric(params)
        if self._kept is not None:
            here = SecondOrder(*self.bound.first_order(params), self._kept)
            self._model, self._hessian = _local_model(here, metric), self._kept
            found = self._model.solve(self.radius)
            if found.inside and found.gain <= max(
                SHORTCUTS.shrinks * self._last_gain, self._tolerance
            ):
                return self._model
        here = self.bound.second_order(params)
        self._model, self._hessian = _local_model(here, metric), here.hessian
        return self._model

    def value(self, params: np.ndarray) -> np.float64:
        """The negative ELBO."""
        return np.float64(self.bound.value(params))

    def moved(self, params: np.ndarray, step: np.ndarray) -> np.ndarray:
        """The parameters after a step, in the parameterisation of each coordinate."""
        return self.bound.moved(params, step)

    def _after(self, taken: Step) -> Outcome:
        """Move, choose the Hessian of the next step, and say whether the run ends."""
        gain, inside = taken.solution.gain, taken.solution.inside
        is_old = self._hessian is self._kept
        # Not only after an accepted step: with little noise the rounding error of the value
        # can be larger than what is left to gain.
        enough = max(self._tolerance, rounding_of(taken.model.value, self.finfo.eps))
        ends = taken.finite and (inside or self.bound.rough > 0) and gain < enough
        outcome = Outcome.CONVERGED if ends else Outcome.RUNNING
        if ends or (
            taken.accepted and not is_old and not self._checked and gain < SHORTCUTS.checked
        ):
            self._checked = True
            if self.bound.single and not _is_well_conditioned(self._hessian):
                outcome = Outcome.STALLED
        shrinks = taken.accepted and inside and gain < SHORTCUTS.shrinks * self._last_gain
        self._kept = self._hessian if shrinks else None
        if is_old or taken.accepted:
            self._model = None
        if taken.accepted:
            self._last_gain = gain
            if not np.array_equal(self.bound.in_mean(taken.point), self.bound.in_mean(taken.trial)):
                self._kept = None  # derivatives in two parameterisations do not mix
            self.params = taken.trial
            if inside and gain < SHORTCUTS.nearly and outcome is Outcome.RUNNING:
                self._take_shortcut(taken.trial_value)
        return outcome

    def _take_shortcut(self, value: float) -> None:
        """Go where slow coordinates are going, unless that leads upwards."""
        guess = self.bound.shortcut(self.params)
        if not np.array_equal(guess, self.params) and self.bound.value(guess) <= value:
            self.params = guess


def _local_model(here: SecondOrder, metric: np.ndarray) -> LocalModel:
    norm = np.linalg.norm(here.gradient / np.sqrt(metric))
    solve = cache(partial(solve_dense, here.gradient, here.hessian, metric))
    return LocalModel(np.float64(here.value), norm, np.isfinite(norm), solve)


def _is_well_conditioned(hessian: np.ndarray, *, policy: Shortcuts = SHORTCUTS) -> bool:
    """Whether rounding errors relative to the diagonal leave every eigenvalue its sign."""
    scale = np.sqrt(np.abs(np.diag(hessian)))
    scaled = hessian / scale[:, None] / scale[None, :]
    if not np.all(np.isfinite(scaled)):
        return False
    smallest = np.min(np.abs(linalg.eigvalsh(scaled)))
    return bool(smallest > policy.smallest_eigenvalue * np.finfo(np.float32).eps)
