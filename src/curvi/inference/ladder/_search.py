r"""Where else the target may have mass: many short ascents around an answer, all at once.

A density says nothing of a mode outside its basin, so that a search is as good as the places it
starts from: along every coordinate and along all together at many radii, around the answer at
several widths, distant starts on the far side of the start and of zero, and what stands out of
shells of random directions. These are as many as it takes to meet a basin of a given angle, which
up to some five dimensions is affordable and soon after is not: a narrow mode off the coordinates is
then met by chance alone. An ascent takes one gradient per step; ends that a path without a valley
joins to draws of the answer are known already, and those whose height and curvature give them no
mass do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, logsumexp

from curvi.families import HostMap
from curvi.objective import BatchedDensity


@dataclass(frozen=True)
class Search:
    """How far and how hard to look.

    Parameters
    ----------
    radii : tuple of float
        Distances along coordinates, in sds of the answer.
    widths : tuple of float
        Of the clouds of starts around it, in the same unit.
    cloud : int
        Starts in each of them.
    shells : tuple of float
        Distances in random directions, in sds of the answer.
    angle, missed : float
        Half the angle, in radians, at which a basin is seen that is missed by such a share of
        searches, where they are affordable.
    most_places, most_numbers : int, float
        What is affordable on all shells: evaluations, and numbers computed in them.
    outstanding : int
        Of each shell, the highest places from which ascents begin.
    steps : int
        Of an ascent.
    valley : float
        Nats by which a path must fall below both of its ends to separate them.
    slightest : float
        Nats by which the mass of an end may be below that of the answer.
    strays : float
        Share of draws that do not make a mode known: a chain that has wandered off into it says
        nothing of its mass.
    rare : float
        Share of all mass that was found, below which draws may leave a mode out.
    most_ends : int
        Ends that are returned.
    most_normals : int
        Of these, the heaviest, beside which a normal is fitted.
    """

    radii: tuple[float, ...] = (3, 4, 5, 6, 7.5, 9, 12, 16, 25, 50)
    widths: tuple[float, ...] = (2, 4, 8, 16)
    cloud: int = 16
    shells: tuple[float, ...] = (4, 5, 6.5, 8, 10)
    angle: float = 0.25
    missed: float = 0.002
    most_places: int = 50_000
    most_numbers: float = 1e8
    outstanding: int = 12
    steps: int = 40
    valley: float = 2.0
    slightest: float = 5.0
    strays: float = 0.02
    rare: float = 0.005
    most_ends: int = 40
    most_normals: int = 6

    def places(self, start: np.ndarray, draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Where ascents begin."""
        mean, sd = draws.mean(axis=0), draws.std(axis=0)
        ways = np.concatenate([np.eye(len(mean)), np.ones((1, len(mean))) / len(mean) ** 0.5])
        ways = np.unique(np.concatenate([ways, -ways]), axis=0)  # one coordinate is all of them
        lines = np.concatenate([radius * ways for radius in self.radii])
        cloud = [rng.normal(size=(self.cloud, len(mean))) * width for width in self.widths]
        distant = np.stack([-mean, 2 * start - mean, start, 0 * start])
        around = mean + np.concatenate([lines, *cloud]) * sd
        return np.concatenate([around, distant])

    def num_directions(self, dimension: int, numbers: float) -> int:
        """How many random directions there are, where one evaluation computes so many numbers.

        None where those that are needed cannot be afforded: fewer would find next to nothing.
        """
        # A cap of the sphere, as a share of it.
        cap = 0.5 * betainc((dimension - 1) / 2, 0.5, np.sin(self.angle) ** 2)
        wanted = np.log(self.missed) / np.log1p(-cap) if dimension > 1 else 0.0
        affordable = min(self.most_places, self.most_numbers / max(numbers, 1.0))
        return int(wanted) if wanted * len(self.shells) <= affordable else 0

    def extent(self, draws: np.ndarray, density: BatchedDensity) -> str:
        """Where is looked, in words."""
        dimension = draws.shape[1]
        count = self.num_directions(dimension, density.density.cost.numbers)
        if dimension == 1 or (count and HostMap.matching(draws) is not None):
            return "in any direction"
        return "along coordinates"

    def standing_out(
        self, density: BatchedDensity, draws: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """The highest places of every shell, which in a normal are those of any other direction."""
        dimension = draws.shape[1]
        count = self.num_directions(dimension, density.density.cost.numbers)
        answer = HostMap.matching(draws)
        if answer is None or count == 0:
            return draws[:0]
        ways = rng.normal(size=(count, dimension))
        ways /= np.linalg.norm(ways, axis=1, keepdims=True)
        best = []
        for radius in self.shells:
            places = answer.forward(radius * ways).positions
            values, _ = density(places)
            values = np.where(np.isfinite(values), values, -np.inf)
            best.append(places[np.argsort(-values)[: self.outstanding]])
        return np.concatenate(best)

    def ends(
        self, density: BatchedDensity, start: np.ndarray, draws: np.ndarray, mass: float,
        rng: np.random.Generator,
    ) -> list[End]:  # fmt: skip
        """Optima that no draw is near, with their curvature, the heaviest first.

        Parameters
        ----------
        density : BatchedDensity
            The target.
        start, draws : array
            Where the fit began, and draws of its answer.
        mass : float
            Log mass that was found, such as a bound.
        rng : numpy Generator
            Chooses places.
        """
        sd = np.maximum(draws.std(axis=0), 1e-300)
        begin = [self.places(start, draws, rng), self.standing_out(density, draws, rng)]
        places, values = self._ascended(density, np.concatenate(begin), sd)
        order = np.argsort(-values)
        places, values = places[order], values[order]
        found: list[End] = []
        seen: list[End] = []  # the highest of every optimum comes first
        for place, value in zip(places, values, strict=True):
            if not np.isfinite(value) or len(found) >= self.most_ends:
                break
            if any((np.abs(place - one.place) < 0.5 * one.sds).all() for one in seen):
                continue
            sds = _local_sds(density, place, sd)
            heavy = value + np.log(sds).sum() + 0.5 * len(sds) * np.log(2 * np.pi)
            seen.append(End(place, sds, float(heavy)))
            light = heavy < mass - self.slightest
            if not light and not self.joined(density, place, draws, self.strays):
                found.append(seen[-1])
        return sorted(found, key=lambda one: -one.mass)

    def holds(
        self, density: BatchedDensity, ends: list[End], draws: np.ndarray, mass: float
    ) -> bool:
        """Whether draws reach every end but those that weigh next to nothing beside all others.

        A lattice of modes has no last one: some that are found are too light for so many draws.
        """
        total = logsumexp([mass, *(end.mass for end in ends)])
        heavy = [end for end in ends if end.mass > total + np.log(self.rare)]
        return all(self.joined(density, end.place, draws) for end in heavy)

    def ways(self, density: BatchedDensity, ends: list[End], draws: np.ndarray) -> np.ndarray:
        """From the optimum among draws to each of the others."""
        values, _ = density(draws[:: max(len(draws) // 256, 1)])
        best = draws[:: max(len(draws) // 256, 1)][[np.nanargmax(values)]]
        here, _ = self._ascended(density, best, np.maximum(draws.std(axis=0), 1e-300))
        return np.stack([one.place for one in ends]) - here

    def joined(
        self, density: BatchedDensity, place: np.ndarray, draws: np.ndarray, strays: float = 0.0
    ) -> bool:
        """Whether a path without a valley joins a place to the nearest draws, but for a share."""
        sd = np.maximum(draws.std(axis=0), 1e-300)
        nearest = np.argsort(np.sum(((draws - place) / sd) ** 2, axis=1))
        nearest = nearest[int(strays * len(draws)) :][:3]
        shares = np.linspace(0, 1, 12)[:, None]
        # The nearest draw of a mode far away lies in a tail: no height to compare a valley with.
        usual = float(np.median(density(draws[:: max(len(draws) // 32, 1)])[0]))
        for draw in draws[nearest]:
            values, _ = density(place + shares * (draw - place))
            lowest = np.where(np.isfinite(values), values, -np.inf).min()
            if lowest > min(values[0], usual) - self.valley:
                return True
        return False

    def _ascended(
        self, density: BatchedDensity, places: np.ndarray, sd: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Steps by the signs of the gradient, each coordinate with a length of its own."""
        values, gradients = density(places)
        good = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
        places, values, gradients = places[good], values[good], gradients[good]
        step = np.full(places.shape, 0.1) * sd
        for _ in range(self.steps):
            tried = places + step * np.sign(gradients)
            new, slopes = density(tried)
            with np.errstate(invalid="ignore"):
                bad = ~(np.isfinite(new) & np.isfinite(slopes).all(axis=1)) | (new < values - 5)
                turned = slopes * gradients < 0
            step = np.where(bad[:, None], 0.3 * step, np.where(turned, 0.5, 1.3) * step)
            step = np.minimum(step, 2.0 * sd)
            places = np.where(bad[:, None], places, tried)
            values = np.where(bad, values, new)
            gradients = np.where(bad[:, None], gradients, slopes)
        return places, values


class End(NamedTuple):
    """An optimum, the sds that its curvature gives, and the logarithm of the mass of both."""

    place: np.ndarray
    sds: np.ndarray
    mass: float


def _local_sds(density: BatchedDensity, place: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """From differences of the gradient, no more than ten sds of the answer."""
    single = np.dtype(density.density.dtype).itemsize < 8
    width = (1e-2 if single else 1e-3) * sd
    both = np.concatenate([place + np.diag(width), place - np.diag(width)])
    _, slopes = density(both)
    up, down = np.diagonal(slopes[: len(sd)]), np.diagonal(slopes[len(sd) :])
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.sqrt(2 * width / np.maximum(down - up, 0.0))
    return np.clip(np.where(np.isfinite(found), found, 10 * sd), 1e-12 * sd, 10 * sd)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Normals with weights, between which chains jump.

    Parameters
    ----------
    parts : list of HostMap
        The normals.
    weights : array
        Their shares, which sum to one.
    ways : array
        From one optimum to others, one per row. What combines optima of several coordinates has
        more of them than can be listed, and the ways between them are the same everywhere.
    """

    parts: list[HostMap]
    weights: np.ndarray
    ways: np.ndarray

    @classmethod
    def around(
        cls, draws: np.ndarray, others: list[HostMap], ways: np.ndarray, density: BatchedDensity,
        rng: np.random.Generator,
    ) -> Mixture | None:  # fmt: skip
        """The normal that matches draws and others beside it, weighed; None where none matches."""
        here = HostMap.matching(draws)
        if here is None:
            return None
        parts = [here, *others]
        return cls(parts, np.full(len(parts), 1 / len(parts)), ways).weighed(density, rng)

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Positions, one per row."""
        which = rng.choice(len(self.parts), count, p=self.weights)
        noise = rng.normal(size=(count, len(self.parts[0].mean)))
        moved = np.stack([part.forward(noise).positions for part in self.parts])
        found: np.ndarray = moved[which, np.arange(count)]
        return found

    def log_parts(self, positions: np.ndarray) -> np.ndarray:
        """Log weight and density of every part at positions, up to a constant they share."""
        logs = [
            -0.5 * np.sum(part.noise_of(positions) ** 2, axis=1) - part.log_det
            for part in self.parts
        ]
        with np.errstate(divide="ignore"):
            return np.stack(logs, axis=1) + np.log(self.weights)

    def log_prob(self, positions: np.ndarray) -> np.ndarray:
        """Log density up to a constant."""
        found: np.ndarray = logsumexp(self.log_parts(positions), axis=1)
        return found

    def weighed(
        self, density: BatchedDensity, rng: np.random.Generator, count: int = 512
    ) -> Mixture:
        """The same parts with the shares that importance weights of their draws give them."""
        mixture = self
        for _ in range(2):
            positions = mixture.draw(rng, count)
            values, _ = density(positions)
            logs = np.where(np.isfinite(values), values, -np.inf) - mixture.log_prob(positions)
            weights = np.exp(logs - logs.max())
            parts = mixture.log_parts(positions)
            shares = np.exp(parts - logsumexp(parts, axis=1, keepdims=True))
            found = weights @ shares / weights.sum()
            found = np.maximum(found, 0.02)  # a part that a few draws missed is not gone
            mixture = replace(self, weights=found / found.sum())
        return mixture

    @property
    def within(self) -> HostMap:
        """The normal with the mean of all, and the covariance within the parts."""
        mean = sum(w * p.mean for w, p in zip(self.weights, self.parts, strict=True))
        spread = sum(
            w * p.factor @ p.factor.T for w, p in zip(self.weights, self.parts, strict=True)
        )
        first = self.parts[0]
        return HostMap(np.asarray(mean), np.linalg.cholesky(spread), first.warp, first.order)
