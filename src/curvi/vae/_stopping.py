"""Early stopping: the ELBO of held-out rows says when to end, and which parameters to keep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import PyTree

from curvi._core.errors import Outcome
from curvi.engine import Progress
from curvi.engine._recording import leaves_of, restored_tree

Evaluator = Callable[[PyTree], float]


@dataclass(frozen=True)
class EvaluationPlan:
    """When the bound is looked at during a training, and on how many rows.

    Parameters
    ----------
    rows_between : int
        Least number of rows between two looks: on small data an epoch is only a few steps.
    first_epoch : tuple of int
        Parts of the first epoch after which it is looked at, too.
    least_early : int
        Steps before the first look.
    slightly_worse : float
        Share of the first bound that training may lose, and a nat.
    most_rows, most_training_rows : int
        Held-out rows, and rows of the training, that are evaluated.
    """

    rows_between: int = 5000
    first_epoch: tuple[int, ...] = (8, 4, 2)
    least_early: int = 10
    slightly_worse: float = 0.1
    most_rows: int = 10_000
    most_training_rows: int = 5_000


EVALUATIONS = EvaluationPlan()


class EarlyStopping:
    """Hook of the loop: evaluates the ELBO, keeps the best parameters, says when to stop.

    Parameters
    ----------
    elbo, held_out_elbo : callable
        ELBO per training row and per held-out row at parameters; the second may be None.
    patience : int
        EvaluationPlan without a new best before training stops.
    every : int
        Steps between evaluations.
    clock : pair of float, optional
        Processor seconds between evaluations instead, and after which the run ends: what else the
        machine does has no part in them, and neither have evaluations.
    early : tuple of int
        Steps of other evaluations.
    patient_until : int
        Step at which patience begins to count, where the objective changes until then.
    """

    def __init__(
        self,
        elbo: Evaluator,
        held_out_elbo: Evaluator | None,
        patience: int,
        every: int,
        clock: tuple[float, float] | None = None,
        early: tuple[int, ...] = (),
        patient_until: int = 0,
    ) -> None:
        self.elbo, self.held_out_elbo = elbo, held_out_elbo
        self.patience, self.every, self.clock = patience, every, clock
        self.early, self.patient_until = early, patient_until
        self.best: Any = None
        self.table: list[tuple[int, float, float, float]] = []
        self.since: float | None = None  # processor time at the end of the last call
        self.spent = 0.0

    def next_call(self, step: int) -> int | None:
        """The next multiple of ``every``, or an early one; by the clock, the end of a chunk."""
        if self.clock and self.since is None:  # the first steps begin, what compiles is behind
            self.since = time.process_time()
        later = [one for one in self.early if one > step]
        return None if self.clock else min([(step // self.every + 1) * self.every, *later])

    def __call__(self, progress: Progress) -> Outcome | None:
        """One evaluation; the run has converged after ``patience`` of them without a new best."""
        seconds = self._seconds(progress)
        outcome = self._judged(progress, seconds)
        self.since = time.process_time()
        return outcome

    def _seconds(self, progress: Progress) -> float:
        """What the run has taken; by the clock, of the processor."""
        if self.clock is None:
            return progress.seconds
        since = self.since
        self.spent += progress.seconds if since is None else time.process_time() - since
        return self.spent

    def _judged(self, progress: Progress, seconds: float) -> Outcome | None:
        pause, limit = self.clock or (0.0, np.inf)
        late = seconds >= limit
        last = self.table[-1][1] if self.table else 0.0
        if seconds < last + pause and not (late or progress.ended):
            return None
        params = progress.params(0)
        self.evaluate(progress.step, seconds, params)
        if self.held_out_elbo is None:
            return Outcome.BUDGET if late else None
        # The first weights are evaluated, but never the best: a diverged run must not end there.
        counted = [row for row in self.table if row[0] > 0 or row is self.table[-1]]
        values = np.asarray([row[-1] for row in counted])
        values = np.where(np.isfinite(values), values, -np.inf)
        if values[-1] > max(values[:-1], default=-np.inf):
            self.best = params
        top = int(np.argmax([-np.inf, *values]))
        if sum(row[0] > self.patient_until for row in counted[top:]) >= self.patience:
            return Outcome.CONVERGED
        return Outcome.BUDGET if late else None

    def state(self) -> dict[str, Any]:
        """EvaluationPlan, the best parameters and the time spent, for a checkpoint."""
        best = None if self.best is None else leaves_of(self.best)
        return {"table": [list(row) for row in self.table], "best": best, "spent": self.spent}

    def restore(self, state: dict[str, Any], params: Any) -> None:
        """Go on from there; ``params`` have the structure of the best ones."""
        self.table = [tuple(row) for row in state["table"]]
        self.best = None if state["best"] is None else restored_tree(params, state["best"])
        self.spent, self.since = float(state.get("spent", 0.0)), time.process_time()

    def evaluate(self, step: int, seconds: float, params: Any) -> None:
        """Append both ELBOs at parameters."""
        value = float("nan") if self.held_out_elbo is None else self.held_out_elbo(params)
        self.table.append((step, seconds, self.elbo(params), value))

    def history(self, per_epoch: int, batches: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The evaluations as a table; ``batches`` are those that every step read, one each."""
        step, seconds, elbo, held_out = np.asarray(self.table, float).reshape(-1, 4).T
        read = step
        if batches is not None:
            read = np.concatenate([[0], np.cumsum(batches)])[step.astype(int)]
        return {
            "step": step.astype(int),
            "epoch": read / per_epoch,
            "seconds": seconds,
            "elbo": elbo,
            "validation_elbo": held_out,
        }
