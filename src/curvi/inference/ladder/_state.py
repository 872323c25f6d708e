"""What a climb knows: the target, the best q so far, what corrects it, and what was tried."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from curvi._core.trees import on_device
from curvi.diagnostics import Attempt, Correction, FitResult, Mode, evaluate, raw_relative_ess
from curvi.engine import Budget, Execution, Resources, VariationalProblem, run
from curvi.families import Family, HostMap, Params, SparseMap, SparsePrecision, host_map
from curvi.inference._first import SIZES, draws_for, method_for
from curvi.inference.ladder._recentre import Recentred
from curvi.objective import BatchedDensity, host_generator, normalise, whiten
from curvi.targets import AbstractTarget

_STREAM = 0x1AD


@dataclass(frozen=True)
class Close:
    """When importance weights make up for what q has wrong.

    Parameters
    ----------
    relative_ess : float
        Fraction of effective draws from which they do.
    heaviest : float
        Shape of the tail of the weights up to which they do.
    tail : int
        One in so many draws is the tail.
    """

    relative_ess: float = 0.8
    heaviest: float = 0.5
    tail: int = 64


CLOSE = Close()


class Candidate(NamedTuple):
    """A fitted q, and how it compares with the target.

    Attributes
    ----------
    family, params
        The q.
    elbo, elbo_se : float
        Its bound on fresh draws, and the standard error of that.
    log_ratio : array, shape (draws,)
        Log density of the target less that of q at these draws.
    """

    family: Family
    params: Params
    elbo: float
    elbo_se: float
    log_ratio: np.ndarray

    @classmethod
    def of(cls, result: FitResult) -> Candidate:
        """The q of a result."""
        ratios = np.asarray(result.log_ratio)
        return cls(result.family, result.params, result.elbo, result.elbo_se, ratios)

    @property
    def relative_ess(self) -> float:
        """Of the raw ratios: Pareto smoothing needs a library that takes seconds to import."""
        return raw_relative_ess(self.log_ratio)

    @property
    def close(self) -> bool:
        """Whether importance weights make up for the rest."""
        return self.relative_ess >= CLOSE.relative_ess and self.tail_shape <= CLOSE.heaviest

    @property
    def tail_shape(self) -> float:
        """Hill's estimate of k: from 1/2 on weights have no variance, and their ESS deceives."""
        logs = np.sort(self.log_ratio[np.isfinite(self.log_ratio)])
        tail = max(len(logs) // CLOSE.tail, 8)
        return float(np.mean(logs[-tail:] - logs[-tail - 1])) if len(logs) > tail else np.inf

    @property
    def map(self) -> HostMap | SparseMap:
        """On the host."""
        return host_map(self.family, self.params)


@runtime_checkable
class Rung(Protocol):
    """One thing to try on the way to an answer that is right; its options are its fields."""

    def applies(self, state: State) -> bool:
        """Whether it can help, and can be afforded."""

    def climb(self, state: State) -> State:
        """The state after it was tried, with a note of what came of it."""


@dataclass(frozen=True, eq=False)
class State:
    """Where a climb stands. Rungs return new ones; the old one is what Ctrl-C leaves.

    Parameters
    ----------
    target : AbstractTarget
        What is inferred, in the form in which the climb goes on.
    density : BatchedDensity
        Its log density at many positions.
    given, candidate : Candidate
        The q of the first run, and the best one so far.
    resources, budget, execution, mc_tolerance
        Those of the fit.
    correction : Correction or None
        What makes up for the rest of ``candidate``.
    modes : tuple of Mode
        Optima that were found.
    recentred : Recentred or None
        How ``target`` differs from the user's, where it does.
    tried : tuple of Attempt
        What was tried.
    spent : int
        Steps of all runs.
    noted_at : tuple of float and int
        Clock and evaluations at the last note.
    failed : bool
        Whether the first run was lost, and no other took its place.
    """

    target: AbstractTarget
    density: BatchedDensity
    given: Candidate
    candidate: Candidate
    resources: Resources
    budget: Budget
    execution: Execution
    mc_tolerance: float | None = None
    correction: Correction | None = None
    modes: tuple[Mode, ...] = ()
    recentred: Recentred | None = None
    tried: tuple[Attempt, ...] = ()
    spent: int = 0
    noted_at: tuple[float, int] = (0.0, 0)
    failed: bool = False

    @classmethod
    def of(
        cls, target: AbstractTarget, result: FitResult, resources: Resources, budget: Budget,
        execution: Execution, mc_tolerance: float | None,
    ) -> State:  # fmt: skip
        """At the foot of the ladder, with the q of a first run."""
        first = Candidate.of(result)
        spent = result.steps if result.steps <= budget.max_steps else 0  # or had steps of its own
        state = cls(
            target, BatchedDensity.of(target), first, first, resources, budget, execution,
            mc_tolerance, modes=result.modes, spent=spent, noted_at=(budget.clock.began, 0),
            failed=result.outcome.is_failure,
        )  # fmt: skip
        note = "failed" if state.failed else "fits" if first.close else "does not fit"
        return state.noted(state.first_name, note)

    @property
    def sparse(self) -> bool:
        """Whether the first q had a sparse precision."""
        return isinstance(self.given.family, SparsePrecision)

    @property
    def first_name(self) -> str:
        """What the first q is called."""
        return "sparse precision" if self.sparse else "full rank"

    @property
    def trusted(self) -> bool:
        """Whether there is a correction that can be used."""
        return self.correction is not None and self.correction.trusted

    @property
    def exhausted(self) -> bool:
        """Whether no further run may begin."""
        return self.budget.left() <= 0 or self.spent >= self.budget.max_steps

    def generator(self, stream: int) -> np.random.Generator:
        """Chance of its own for every stream."""
        return host_generator(self.resources.key, _STREAM, stream)

    def noise(self, count: int, stream: int) -> np.ndarray:
        """Standard normal rows."""
        return self.generator(stream).normal(size=(count, self.target.dimension))

    def fitted(
        self, family: Family, params: Params, *, max_steps: int | None = None
    ) -> tuple[State, Candidate | None]:
        """A run from ``params``, judged on fresh draws; None where it has no finite bound."""
        dimension = self.target.dimension
        plan = draws_for(family, dimension)
        if plan.kind == "whitened":
            plan = replace(plan, num_draws=max(plan.num_draws, 2 * SIZES.fewest_draws))
        problem = VariationalProblem(self.target.density, family, plan, dimension, None)
        noise = (normalise if self.sparse else whiten)(self.noise(plan.num_draws, 1))
        resources = self.resources._replace(noise=on_device(noise, self.target.dtype))
        budget = self.budget
        if max_steps is not None:
            budget = replace(budget, max_steps=min(self.spent + max_steps, budget.max_steps))
        ended = run(
            problem, method_for(dimension), params, resources, budget,
            execution=self.execution, spent=self.spent,
        ).whole()  # fmt: skip  # Ctrl-C ends the fit, not this run alone
        after = replace(self, spent=self.spent + ended.steps)
        if ended.outcome.is_failure and max_steps is not None:
            return after, None
        return after, self.judged(family, ended.params)

    def judged(self, family: Family, params: Params) -> Candidate | None:
        """A q with its bound on fresh draws."""
        found = evaluate(self.target, family, params, self.resources.key, self.budget.left)
        if not np.isfinite(found.elbo):
            return None
        return Candidate(family, params, found.elbo, found.elbo_se, found.log_ratio)

    def noted(self, name: str, note: str, of: Candidate | None = None) -> State:
        """The state with a line in ``result.rungs``, about its own q or another one."""
        about, now, count = of or self.candidate, time.perf_counter(), self.density.evaluations
        began, counted = self.noted_at
        attempt = Attempt(
            name, about.elbo, about.relative_ess, max(count - counted, 0), now - began, note
        )
        return replace(self, tried=(*self.tried, attempt), noted_at=(now, count))

    def in_own_coordinates(self) -> State:
        """The same in the coordinates of the user's target, to which draws are moved back."""
        if self.recentred is None:
            return self
        target, correction = self.recentred.plain, self.correction
        if correction is not None:
            correction = replace(correction, draws=self.recentred.back(correction.draws))
        return replace(
            self, target=target, density=BatchedDensity.of(target), candidate=self.given,
            correction=correction, recentred=None, noted_at=(self.noted_at[0], 0),
        )  # fmt: skip

    def result(self, first: FitResult) -> FitResult:
        """The first result with the answer of the climb."""
        here = self.in_own_coordinates()
        best = here.candidate
        return replace(
            first, family=best.family, params=best.params, elbo=best.elbo, elbo_se=best.elbo_se,
            log_ratio=best.log_ratio, correction=here.correction, rungs=here.tried,
            modes=here.modes, seconds=here.budget.clock.elapsed,
        )  # fmt: skip
