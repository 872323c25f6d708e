"""``family="auto"``: richer families and corrections until the answer is right.

Rungs, by what they cost: a full covariance, or a sparse precision where there are many coordinates;
a family that is conditional on globals, where some
coordinates govern the spread of others; importance weights, where q is close; HMC from draws of q,
which judges the answer and corrects it. The first that fits answers.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from curvi._core.deadline import OutOfTime, deadline
from curvi._core.errors import Outcome
from curvi._core.threads import one_blas_thread
from curvi._core.trees import coordinate_names, flat_numbers, on_device
from curvi.diagnostics import FitResult
from curvi.diagnostics._correction import Correction, Rung
from curvi.diagnostics._evaluation import evaluate
from curvi.diagnostics._modes import Mode, joined_modes, modes_of
from curvi.engine import Budget, Execution, Resources, RunResult, VariationalProblem, run
from curvi.families import Conditional, Family, FullRank, Params, SparsePrecision
from curvi.families._host import HostMap
from curvi.families._sparse_host import SparseMap
from curvi.inference._initial import around
from curvi.inference.ladder._corrections import (
    effort_of,
    moved,
    number_to_weight,
    weighted,
    with_own_moments,
)
from curvi.inference.ladder._dense_rows import Following
from curvi.inference.ladder._first import (
    FEW_DIMENSIONS,
    FEWEST_DRAWS,
    draws_for,
    method_for,
    number_of_draws,
)
from curvi.inference.ladder._globals import conditional_start, find_globals
from curvi.inference.ladder._recentre import Recentred
from curvi.inference.ladder._search import End, Mixture, Search
from curvi.inference.ladder._sparsity import sparse_family, structure_holds
from curvi.inference.ladder._state import Candidate
from curvi.inference.ladder._tails import has_light_tails
from curvi.objective import normalise, whiten
from curvi.objective._batch import BatchedDensity
from curvi.objective._curvature import Curvature
from curvi.objective._draws import host_generator
from curvi.targets import AbstractTarget

_STUDIED = 1024  # draws that show who governs whom
_BETTER = 0.2  # nats that make a richer family worth its name
_OTHER_STARTS = 2
_STEPS_AROUND = 50
_MOST_NUMBERS_AROUND = 3e4  # of one log density, for other starts where the answer is trusted
_CUT_SHORT = (
    "Interrupted while the answer was corrected: the best q so far is returned, and result.rungs "
    "tells how well it fits."
)
_NO_SEARCH = (
    "Interrupted while other modes were looked for: the answer is corrected, but modes that no "
    "draw came near may have been missed."
)
_OUT_OF_TIME = (
    "The time budget ended while the answer was corrected: means and sds may be wrong, and "
    "result.rungs tells how far it came; raise time_budget."
)
_STREAM = 0x1AD


@dataclass(eq=False)
class Ladder:
    """The rungs after a first fit of full rank, or with a sparse precision.

    Parameters
    ----------
    target, resources, budget, execution, mc_tolerance
        Those of the fit.
    """

    target: AbstractTarget
    resources: Resources
    budget: Budget
    execution: Execution
    mc_tolerance: float | None = None

    def __post_init__(self) -> None:
        self.density = BatchedDensity.of(self.target)
        self.rungs: list[Rung] = []

    def climb(self, result: FitResult) -> FitResult:
        """The result with the answer of the first rung that fits.

        Ctrl-C ends the climb with the best q so far, uncorrected unless a correction was found.
        """
        with one_blas_thread():  # all products are small: threads would wait for each other
            return self._climb(result)

    def _climb(self, result: FitResult) -> FitResult:
        self._began, self._counted = self.budget.began, 0
        # A first run on more draws has had steps of its own.
        self._spent = result.steps if result.steps <= self.budget.max_steps else 0
        self._modes: tuple[Mode, ...] = result.modes
        first = Candidate(
            result.family,
            result.params,
            result.elbo,
            result.elbo_se,
            np.asarray(result.log_ratio),
        )
        self._plain = result.family
        self._sparse = isinstance(result.family, SparsePrecision)
        self._name = "sparse precision" if self._sparse else "full rank"
        self._note(self._name, first, "fits" if first.close else "does not fit")
        self._recentred: Recentred | None = None
        given = first
        try:
            first = self._centred(self._with_all_entries(first))
            self._answer(first)
            if not self._trusted:
                self._elsewhere()
            self._look_around(given)
        except KeyboardInterrupt:
            message = _NO_SEARCH if self._trusted else _CUT_SHORT
            found, ended = self._answered(result, given), Outcome.INTERRUPTED
            return replace(found, outcome=ended, message=message, interrupted=True)
        found = self._answered(result, given)
        if self._trusted or self.budget.left() > 0:
            return found
        return replace(found, outcome=Outcome.BUDGET, message=_OUT_OF_TIME)

    @property
    def _trusted(self) -> bool:
        """Whether there is a correction that can be used."""
        return self._correction is not None and self._correction.trusted

    @property
    def _exhausted(self) -> bool:
        """Whether no further run may begin."""
        return self.budget.left() <= 0 or self._spent >= self.budget.max_steps

    def _answered(self, result: FitResult, given: Candidate) -> FitResult:
        """The result in the coordinates of its target, with the correction moved to them."""
        best, correction = self._best, self._correction
        if self._recentred is not None:
            best = given
            if correction is not None:
                correction = replace(correction, draws=self._recentred.back(correction.draws))
        return replace(
            result,
            family=best.family,
            params=best.params,
            elbo=best.elbo,
            elbo_se=best.elbo_se,
            log_ratio=best.log_ratio,
            correction=correction,
            rungs=tuple(self.rungs),
            modes=self._modes,
            seconds=time.perf_counter() - self.budget.began,
        )

    def _with_all_entries(self, first: Candidate) -> Candidate:
        """A sparse q whose precision has the entries of the Hessian at its own draws, too.

        They were found around the start. What is missing makes q worse, not the answer wrong:
        weights and HMC know nothing of it.
        """
        place, rng = first.map, host_generator(self.resources.key, _STREAM, 8)
        if not isinstance(place, SparseMap) or structure_holds(self.target, place, rng):
            return first
        self._note("entries of the Hessian", first, "others at draws of q")
        there, family = first.params.mean, None
        with suppress(OutOfTime), deadline(self.budget.left()):
            family = sparse_family(self.target.started_at(self.target.density.unravel(there)))
        if family is None or self._exhausted:
            return first
        fitted = self._judged(family, self._run(family, around(family, there, 0.1)).params)
        better = fitted is not None and fitted.elbo > first.elbo
        self._note(
            "sparse precision once more", fitted or first, "better" if better else "no better"
        )
        return fitted if better and fitted is not None else first

    def _centred(self, first: Candidate) -> Candidate:
        """A q with group effects in the form that suits them, where it fits better.

        The climb goes on in the coordinates of that form; the answer is moved back.
        """
        place = first.map
        if first.close or isinstance(place, SparseMap) or self._exhausted:
            return first
        other = Recentred.by(self.target, place)
        if other is None:
            return first
        noise = whiten(self._noise(number_of_draws(self.target.dimension), 7))
        start = HostMap.matching(other.there(place.forward(noise).positions))
        if start is None:
            return first
        plain, self.target = self.target, other.target
        ended = self._run(FullRank(), start.params(FullRank(), plain.dtype))
        fitted = self._judged(FullRank(), ended.params)
        if fitted is None or fitted.elbo <= first.elbo:
            self.target = plain
            self._note("full rank, centred by degrees", fitted or first, "no better")
            return first
        self.density, self._recentred = BatchedDensity.of(self.target), other
        self._note("full rank, centred by degrees", fitted, "better")
        return fitted

    def _answer(self, first: Candidate) -> None:
        """The correction of a q, or of one that is conditional on the globals it shows."""
        self._best: Candidate = first
        self._correction: Correction | None = None
        if not first.close:
            self._best = self._following(first) if self._sparse else self._conditional(first)
        rng = host_generator(self.resources.key, _STREAM, 5)
        weighable = self._best.close and has_light_tails(self.density, self._best.map, rng)
        weighted = self._weighted(self._best) if weighable else None
        self._correction = weighted or self._moved(self._best)

    def _conditional(self, first: Candidate) -> Candidate:
        """A family that is conditional on globals, where there are any and it fits better."""
        place, dimension = HostMap.of(first.family, first.params), self.target.dimension
        noise = self._noise(_STUDIED, 0)
        positions = place.forward(noise).positions
        _, gradients = self.density(positions)
        found, _ = find_globals(place, positions, gradients)
        if not found or len(found) >= dimension or self._spent >= self.budget.max_steps:
            return first
        family = Conditional(found).on(self.target.position)
        start = conditional_start(place, np.asarray(family.order), len(found))
        ended = self._run(family, start.params(family, self.target.dtype))
        fitted = self._judged(family, ended.params)
        gain = -np.inf if fitted is None else fitted.elbo - first.elbo
        better = gain > _BETTER or (fitted is not None and fitted.close and gain > 0)
        names = coordinate_names(self.target.position)
        listed = ", ".join(names[k] for k in found[:4]) + (", ..." if len(found) > 4 else "")
        shown = first if fitted is None else fitted
        self._note(f"conditional on {listed}", shown, "better" if better else "no better")
        return fitted if better and fitted is not None else first

    def _following(self, first: Candidate) -> Candidate:
        """Scales that follow the dense block, where there is one and that fits better."""
        place = first.map
        if not isinstance(place, SparseMap) or not place.structure.num_dense:
            return first
        curvature = Curvature(self.target.density, self.target.rows, place.structure)
        rng = host_generator(self.resources.key, _STREAM, 7)
        family = replace(first.family, follows=True)  # type: ignore[type-var]
        moved, gained = Following(self.density, curvature, place, rng).run()
        fitted = self._judged(family, moved.params(self.target.dtype))
        better = fitted is not None and (gained > _BETTER or (gained > 0 and fitted.close))
        shown = first if fitted is None else fitted
        self._note("scales that follow dense rows", shown, "better" if better else "no better")
        return fitted if better and fitted is not None else first

    def _run(self, family: Family, params: Params, most: int | None = None) -> RunResult:
        dimension = self.target.dimension
        plan = draws_for(family, dimension)
        if plan.kind == "whitened":
            plan = replace(plan, num_draws=max(plan.num_draws, 2 * FEWEST_DRAWS))
        problem = VariationalProblem(self.target.density, family, plan, dimension, None)
        noise = (normalise if self._sparse else whiten)(self._noise(plan.num_draws, 1))
        resources = self.resources._replace(noise=on_device(noise, self.target.dtype))
        method = method_for(self.target.dimension)
        budget, spent = self.budget, self._spent
        if most is not None:
            budget = replace(budget, max_steps=min(spent + most, budget.max_steps))
        ended = run(
            problem, method, params, resources, budget, execution=self.execution, spent=spent
        )
        self._spent += ended.steps
        if ended.outcome is Outcome.INTERRUPTED:  # Ctrl-C ends the fit, not this run alone
            raise KeyboardInterrupt
        return ended

    def _judged(self, family: Family, params: Params) -> Candidate | None:
        found = evaluate(self.target, family, params, self.resources.key, self.budget.left)
        if not np.isfinite(found.elbo):
            return None
        return Candidate(family, params, found.elbo, found.elbo_se, found.log_ratio)

    def _weighted(self, best: Candidate) -> Correction | None:
        """Importance weights for draws of q, where they are enough."""
        count, place = number_to_weight(self.target, best, self.mc_tolerance), best.map
        if isinstance(place, SparseMap):
            noise = with_own_moments(place, normalise(self._noise(count, 2)))
        else:
            count = max(count, number_of_draws(self.target.dimension))
            noise = whiten(self._noise(count, 2))
        found = weighted(self.density, best, noise)
        note = "a few carry the rest" if found is None else "corrected"
        self._note("importance weights", best, note)
        return found

    def _moved(self, best: Candidate) -> Correction:
        """Draws of the target by HMC from draws of q."""
        rng = host_generator(self.resources.key, _STREAM, 3)
        effort = effort_of(self.target, self.mc_tolerance, self.budget.left)
        found, note = moved(self.target, self.density, best, rng, effort)
        self._note("HMC", best, note)
        return found

    def _elsewhere(self) -> None:
        """Start again from other places, where the chains have not converged."""
        rng = host_generator(self.resources.key, _STREAM, 4)
        start = np.asarray(self.target.start, np.float64)
        others = []
        for _ in range(_OTHER_STARTS):
            if self._exhausted:
                break
            family, place = self._plain, start + rng.normal(size=len(start))
            params = around(family, on_device(place, self.target.dtype), 0.3)
            fitted = self._judged(family, self._run(family, params).params)
            if fitted is not None:
                others.append(fitted)
                self._note(f"{self._name} from another start", fitted, "tried")
        top = max(others, key=lambda one: one.elbo, default=None)
        if top is not None and top.elbo >= self._best.elbo + _BETTER:
            self._answer(top)

    def _look_around(self, first: Candidate) -> None:
        """Look for modes that no draw is near, where that is cheap, and let the answer hold them.

        Chains then jump between the modes. Where they do not converge, the answer is the old one,
        and the modes that it leaves out are named.
        """
        dear = self.target.density.cost.numbers > _MOST_NUMBERS_AROUND
        if dear or self.target.dimension > FEW_DIMENSIONS or self._correction is None:
            return
        draws = np.asarray(self._correction.draws, np.float64)
        if self._recentred is not None:  # the modes of a result are places of its own target
            draws, self.target = self._recentred.back(draws), self._recentred.plain
        density = self.density if self._recentred is None else BatchedDensity.of(self.target)
        found, rng = [first], host_generator(self.resources.key, _STREAM, 6)
        search, start = Search(), np.asarray(self.target.start, np.float64)
        ends = search.ends(density, start, draws, self._best.elbo, rng)
        for end in ends[: search.most_normals]:
            if self._exhausted:
                break
            fitted = self._fitted_at(end)
            if fitted is not None and fitted.elbo > self._best.elbo - search.slightest:
                found.append(fitted)
        if len(found) == 1:
            extent = f"none found {search.extent(draws, density)}"
            self._note("search for other modes", first, extent)
            places = [flat_numbers(one.position).astype(np.float64) for one in self._modes]
            near = all(search.joined(density, place, draws) for place in places)
            self._correction = replace(self._correction, joins=bool(places) and near)
            return
        params, bounds = [one.params for one in found], np.asarray([one.elbo for one in found])
        new = 1 if self._modes else 0  # what the starts have found stays, the first run among it
        others = modes_of(self.target, FullRank(), params[new:], bounds[new:])
        self._modes = joined_modes((*self._modes, *others))
        top = found[int(np.argmax(bounds))]
        self._note("search for other modes", top, f"{len(self._modes)} modes")
        normals = [HostMap.of(one.family, one.params) for one in found[1:]]
        ways = search.ways(density, ends, draws)
        mixture = Mixture.around(draws, normals, ways, density, rng)
        if mixture is not None and not self._exhausted:
            self._joined(mixture, ends, density, top)

    def _fitted_at(self, end: End) -> Candidate | None:
        """A normal at an optimum, with the sds of its curvature to begin with."""
        place, sds = (on_device(part, self.target.dtype) for part in (end.place, end.sds))
        params = FullRank().init(place, sds)
        ended = self._run(FullRank(), params, _STEPS_AROUND)
        return None if ended.outcome.is_failure else self._judged(FullRank(), ended.params)

    def _joined(
        self, mixture: Mixture, ends: list[End], density: BatchedDensity, top: Candidate
    ) -> None:
        """HMC that jumps between modes, and the answer where it has converged."""
        rng = host_generator(self.resources.key, _STREAM, 9)
        effort = effort_of(self.target, self.mc_tolerance, self.budget.left)
        correction, note = moved(self.target, density, top, rng, effort, mixture)
        draws = np.asarray(correction.draws, np.float64)
        near = (Search().joined(density, end.place, draws) for end in ends)
        correction = replace(correction, joins=all(near))
        self._note("HMC between modes", top, note)
        if correction.trusted or not self._trusted:
            self.density, self._recentred = density, None
            self._best, self._correction = top, correction

    def _noise(self, count: int, stream: int) -> np.ndarray:
        rng = host_generator(self.resources.key, _STREAM, stream)
        return rng.normal(size=(count, self.target.dimension))

    def _note(self, name: str, best: Any, note: str) -> None:
        now, count = time.perf_counter(), self.density.evaluations
        used, seconds = count - self._counted, now - self._began
        self._began, self._counted = now, count
        self.rungs.append(Rung(name, best.elbo, best.relative_ess, used, seconds, note))
