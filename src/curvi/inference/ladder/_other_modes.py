"""Rungs that look where no draw is: other starts, and other modes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from curvi._core.trees import flat_numbers, on_device
from curvi.diagnostics import joined_modes, modes_of
from curvi.families import FullRank, HostMap
from curvi.inference._first import SIZES
from curvi.inference._initial import around
from curvi.inference.ladder._corrections import SPENDING, moved
from curvi.inference.ladder._search import End, Mixture, Search
from curvi.inference.ladder._state import Candidate, Rung, State


@dataclass(frozen=True)
class Restarts:
    """Start again from other places, where the chains have not converged.

    Parameters
    ----------
    then : tuple of Rung
        What is climbed from a better start.
    count : int
        Starts.
    spread, width : float
        Sds of their distance from the user's position, and of their first q.
    gain : float
        Nats by which a start must be better to be gone on from.
    """

    then: tuple[Rung, ...]
    count: int = 2
    spread: float = 1.0
    width: float = 0.3
    gain: float = 0.2

    def applies(self, state: State) -> bool:
        """Whether there is no answer that can be used."""
        return not state.trusted

    def climb(self, state: State) -> State:
        """Fit from every start, and correct the best if it is better."""
        rng, start = state.generator(4), np.asarray(state.target.start, np.float64)
        others: list[Candidate] = []
        for _ in range(self.count):
            if state.exhausted:
                break
            place = on_device(start + self.spread * rng.normal(size=len(start)), state.target.dtype)
            family = state.given.family
            state, fitted = state.fitted(family, around(family, place, self.width))
            if fitted is not None:
                others.append(fitted)
                state = state.noted(f"{state.first_name} from another start", "tried", fitted)
        top = max(others, key=lambda one: one.elbo, default=None)
        if top is None or top.elbo < state.candidate.elbo + self.gain:
            return state
        state = replace(state, candidate=top, correction=None)
        for rung in self.then:
            state = rung.climb(state) if rung.applies(state) else state
        return state


@dataclass(frozen=True)
class OtherModes:
    """Look for modes that no draw is near, where that is cheap, and let the answer hold them.

    Chains then jump between the modes. Where they do not converge, the answer is the old one,
    and the modes that it leaves out are named.

    Parameters
    ----------
    search : Search
        How far and how hard to look.
    most_numbers : float
        That one log density may compute.
    most_dimensions : int
        Coordinates, at most.
    steps : int
        Of a run at an optimum that was found.
    """

    search: Search = field(default_factory=Search)
    most_numbers: float = 3e4
    most_dimensions: int = SIZES.few
    steps: int = 50

    def applies(self, state: State) -> bool:
        """Whether there are draws to start from, and the density is cheap."""
        cheap = state.target.density.cost.numbers <= self.most_numbers
        few = state.target.dimension <= self.most_dimensions
        return cheap and few and state.correction is not None

    def climb(self, state: State) -> State:
        """Ascend from many places, fit a normal at every end, and join what weighs enough."""
        # The modes of a result are places of its own target.
        answer, state = state.candidate, state.in_own_coordinates()
        assert state.correction is not None  # noqa: S101  for the type checker
        search, density, rng = self.search, state.density, state.generator(6)
        correction, draws = state.correction, np.asarray(state.correction.draws, np.float64)
        start = np.asarray(state.target.start, np.float64)
        ends = search.ends(density, start, draws, answer.elbo, rng)
        normals: list[Candidate] = []
        early = False
        for end in ends[: search.most_normals]:
            if early := state.exhausted:
                break
            state, fitted = self._fitted_at(state, end)
            if fitted is not None and fitted.elbo > answer.elbo - search.slightest:
                normals.append(fitted)
        if not normals:
            places = [flat_numbers(one.position).astype(np.float64) for one in state.modes]
            near = all(search.joined(density, place, draws) for place in places)
            joins = bool(places) and near
            state = replace(state, correction=replace(correction, joins=joins))
            found = "ended early" if early else f"none found {search.extent(draws, density)}"
            return state.noted("search for other modes", found, state.given)
        # What the starts of the fit have found stays, the first run among it.
        new = normals if state.modes else [state.given, *normals]
        bounds = np.asarray([one.elbo for one in new])
        others = modes_of(state.target, FullRank(), [one.params for one in new], bounds)
        state = replace(state, modes=joined_modes((*state.modes, *others)))
        top = max((state.given, *normals), key=lambda one: one.elbo)
        state = state.noted("search for other modes", f"{len(state.modes)} modes", top)
        maps = [HostMap.of(one.family, one.params) for one in normals]
        ways = search.ways(density, ends, draws)
        mixture = Mixture.around(draws, maps, ways, density, rng)
        if mixture is None or state.exhausted:
            return state
        return self._joined(state, mixture, ends, top)

    def _fitted_at(self, state: State, end: End) -> tuple[State, Candidate | None]:
        """A normal at an optimum, with the sds of its curvature to begin with."""
        place, sds = (on_device(part, state.target.dtype) for part in (end.place, end.sds))
        return state.fitted(FullRank(), FullRank().init(place, sds), max_steps=self.steps)

    def _joined(self, state: State, mixture: Mixture, ends: list[End], top: Candidate) -> State:
        """HMC that jumps between modes, and the answer where it has converged."""
        effort = SPENDING.effort(state.target, state.mc_tolerance, state.budget.left)
        density, rng = state.density, state.generator(9)
        correction, note = moved(state.target, density, top, rng, effort, mixture)
        draws = np.asarray(correction.draws, np.float64)
        holds = self.search.holds(density, ends, draws, top.elbo)
        correction = replace(correction, joins=holds)
        state = state.noted("HMC between modes", note, top)
        if correction.trusted or not state.trusted:
            return replace(state, candidate=top, correction=correction)
        return state
