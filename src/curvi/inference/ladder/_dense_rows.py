r"""Locals that follow the dense block: the conditional version of a sparse precision.

A Gaussian that is fitted as a whole takes the dense block (hyperparameters) for better known than
it is, because in it the locals do not follow: given them, a group sd is known all but exactly. Here
q is

.. math:: q(z_c)\, q(z_l \mid z_c), \qquad z_l = m(z_c) + R_l\,e^{B \epsilon_c - |B|^2} \epsilon_l,

and each part has its own condition. With the dense block at its mean, the locals have expected
gradient zero and the expected Hessian as precision. One sd to either side along each coordinate of
the dense block they still have expected gradient zero, which gives the slope of m, and the pivots
of their Hessian give B. What is left is the dense block: its gradient and curvature in the noise,
all locals following.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import linalg

from curvi.families import SparseMap
from curvi.linalg import inverse_root
from curvi.objective import BatchedDensity, Curvature, normalise


@dataclass(frozen=True)
class FollowingSteps:
    """How the conditions of the dense block and of its locals are solved.

    Parameters
    ----------
    draws, judged, compared : int
        Fixed draws of the locals, of q, and of the locals at which pivots are compared.
    most : int
        Number of steps.
    shorter, longer : float
        By which the damping of a step changes after a failure and after a success.
    shortest : float
        Damping at which it ends.
    converged : float
        Sds of the dense block, and relative curvature.
    largest_warp : float
        Change of a log scale per sd of the dense block.
    floor : float
        Of old curvature, where the new one is not positive.
    narrowest, widest : float
        Curvature of the dense block in the noise, by which one step goes.
    reach : float
        Sds of the dense block in one step.
    errors : float
        Standard errors by which a bound must be worse for a step to be rejected.
    """

    draws: int = 16
    judged: int = 64
    compared: int = 4
    most: int = 15
    shorter: float = 0.5
    longer: float = 1.4
    shortest: float = 0.05
    converged: float = 0.05
    largest_warp: float = 1.0
    floor: float = 0.1
    narrowest: float = 0.1
    widest: float = 10.0
    reach: float = 2.0
    errors: float = 2.0


FOLLOWING = FollowingSteps()


class _Sides(NamedTuple):
    """The dense block at its mean and one sd to either side, locals drawn around their path."""

    score: np.ndarray  # of the dense block in the noise, its mean
    curvature: np.ndarray  # and minus the mean of its derivative
    slope: np.ndarray  # of the expected gradient of the locals, per sd of the dense block
    warp: np.ndarray


class Following:
    """The fit of a map whose locals follow the dense block.

    Parameters
    ----------
    density, curvature : BatchedDensity, Curvature
        The target: values and gradients, and its sparse Hessian.
    place : SparseMap
        A Gaussian that was fitted as a whole.
    rng : numpy Generator
        Makes the draws.
    steps : FollowingSteps
        How it goes on.
    """

    def __init__(
        self, density: BatchedDensity, curvature: Curvature, place: SparseMap,
        rng: np.random.Generator, steps: FollowingSteps = FOLLOWING,
    ) -> None:  # fmt: skip
        self.density, self.curvature, self.steps = density, curvature, steps
        found = place.structure
        self.count = found.num_dense
        half = rng.normal(size=(self.steps.draws // 2, found.dimension))
        self.noise = normalise(np.concatenate([half, -half]))
        self.noise[:, : self.count] = 0.0
        half = rng.normal(size=(self.steps.judged // 2, found.dimension))
        self.judged = np.concatenate([half, -half])
        self.place = replace(place, warp=np.zeros((found.num_locals, self.count)))

    def run(self) -> tuple[SparseMap, float]:
        """Steps until nothing changes; the map, and what the bound has gained on fixed draws."""
        terms = first = self._terms(self.place)
        share, before = 1.0, np.inf
        for _ in range(self.steps.most):
            trial, left = self._step(share)
            new = self._terms(trial)
            change = new - terms
            slack = self.steps.errors * float(np.std(change)) / len(change) ** 0.5
            if np.isfinite(new).all() and float(np.mean(change)) > -slack:
                # Farther from its conditions than before, it has begun to swing around them.
                share = (
                    min(1.0, self.steps.longer * share)
                    if left < before
                    else self.steps.shorter * share
                )
                self.place, before, terms = trial, left, new
            else:
                share *= self.steps.shorter
            if left < self.steps.converged or share < self.steps.shortest:
                break
        return self.place, float(np.mean(terms - first))

    def _terms(self, place: SparseMap) -> np.ndarray:
        moved = place.forward(self.judged)
        with np.errstate(invalid="ignore", over="ignore"):
            return self.density(moved.positions)[0] + moved.log_det

    def _step(self, share: float) -> tuple[SparseMap, float]:
        """The map after a step, and how far this one was from what it should be."""
        place, count = self.place, self.count
        centre, gradients = self._locals(place, share)
        sides = self._sides(place, gradients)
        unit = np.eye(len(place.mean), count)
        path = place.apply(unit)[count:]  # of the locals, per sd of the dense block
        path += share * _local_solve(centre, sides.slope)
        inverse = linalg.solve_triangular(place.block, np.eye(count), lower=True)
        coupling = -(path + centre.links_dot(path)) @ inverse
        wanted = (1 - share) * np.eye(count) + share * sides.curvature
        values, vectors = np.linalg.eigh(wanted)
        values = np.clip(values, self.steps.narrowest, self.steps.widest)
        root = inverse_root((vectors * values) @ vectors.T)
        way = share * (root @ (root.T @ sides.score))
        way *= min(1.0, self.steps.reach / max(float(np.linalg.norm(way)), 1e-300))
        warp = place.warp + share * (sides.warp - place.warp)
        scale = centre.scale * np.exp(warp @ way)  # locals follow the mean of the dense block, too
        warp = np.clip(warp @ root, -self.steps.largest_warp, self.steps.largest_warp)
        scale *= np.exp(np.sum(warp**2, axis=1))
        moved = replace(centre, coupling=coupling, block=place.block @ root, warp=warp, scale=scale)
        along = np.concatenate([way, np.zeros(len(scale))])
        mean = moved.mean + replace(moved, block=place.block).apply(along[:, None])[:, 0]
        off = np.abs(sides.curvature - np.eye(count)).max(initial=0.0)
        left = max(float(np.linalg.norm(sides.score)), float(off))
        return replace(moved, mean=mean), left

    def _locals(self, place: SparseMap, share: float) -> tuple[SparseMap, np.ndarray]:
        """The map without warp and with the locals of a Newton step, and their gradients before."""
        moved = place.forward(self.noise)
        _, gradients = self.density(moved.positions)
        narrow = place.scale * np.exp(-np.sum(place.warp**2, axis=1))
        plain = replace(place, warp=np.zeros((len(place.mean), 0)), scale=narrow)
        old = plain.precision()
        new = self.curvature.negative_mean(moved.positions)
        root = old.blend(new, share).inverse_root(self.steps.floor, like=old)
        centre = replace(plain, coupling=root.coupling, links=root.links, scale=root.scale)
        pull = gradients.mean(axis=0)[place.order]
        pull[: self.count] = 0.0
        step = share * _local_solve(centre, pull[self.count :, None])[:, 0]
        mean = centre.mean.copy()
        mean[self.count :] += step
        return replace(centre, mean=mean), gradients

    def _sides(self, place: SparseMap, gradients: np.ndarray) -> _Sides:
        count, found = self.count, place.structure
        middle = place.back(place.forward(self.noise), gradients)[:, :count].mean(axis=0)
        score = middle.copy()
        curvature, slope = np.empty((count, count)), np.empty((found.num_locals, count))
        warp = np.empty((found.num_locals, count))
        like = place.precision()
        for k in range(count):
            scores, pulls, logs = [], [], []
            for side in (1.0, -1.0):
                noise = self.noise.copy()
                noise[:, k] = side
                moved = place.forward(noise)
                _, there = self.density(moved.positions)
                scores.append(place.back(moved, there)[:, :count].mean(axis=0))
                pulls.append(there.mean(axis=0)[place.order][count:])
                few = moved.positions[:: len(noise) // self.steps.compared]
                local = self.curvature.negative_mean(few, locals_only=True)
                logs.append(
                    np.log(local.with_block_of(like).inverse_root(self.steps.floor, like).scale)
                )
            score += 0.5 * (scores[0] + scores[1]) - middle
            curvature[k] = -0.5 * (scores[0] - scores[1])
            slope[:, k] = 0.5 * (pulls[0] - pulls[1])
            warp[:, k] = 0.5 * (logs[0] - logs[1])
        return _Sides(score, 0.5 * (curvature + curvature.T), slope, warp)


def _local_solve(place: SparseMap, vectors: np.ndarray) -> np.ndarray:
    """``R_l R_l' g`` for columns of the locals, the dense block held."""
    count = place.structure.num_dense
    whole = np.concatenate([np.zeros((count, vectors.shape[1])), vectors])
    noise = place.transposed(whole)
    noise[:count] = 0.0
    return place.apply(noise)[count:]
