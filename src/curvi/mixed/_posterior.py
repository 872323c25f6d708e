r"""The posterior as weighted components: points of hyperparameters and remaining effects.

Component j has a weight, a :math:`\theta_j`, the effects :math:`u_j` (fixed ones and those of all
factors but the first), and for each level of the first factor the mean and covariance of its
effects given :math:`(\theta_j, u_j)`: those of the exact conditional distribution. Effects are in
the units of the table, intercepts where its columns are zero; :math:`\theta_j` holds the sds and
correlations at the origins of the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from curvi._core.errors import InputError
from curvi.mixed._hyper import Block, Layout


@dataclass(frozen=True)
class Grouping:
    """A grouping factor as it was fitted."""

    name: str
    columns: tuple[str, ...]  # of the table
    labels: tuple[str, ...]
    blocks: tuple[Block, ...]

    _claims = {"labels": "texts levels", "columns": "texts columns"}  # noqa: RUF012

    @property
    def effects(self) -> tuple[str, ...]:
        """Names of the effects of a level."""
        return tuple(name for block in self.blocks for name in block.columns)

    @property
    def size(self) -> int:
        """Effects per level."""
        return sum(block.size for block in self.blocks)


@dataclass(frozen=True)
class MixedPosterior:
    """Weighted components; see the module. Plain arrays, so that it can be saved."""

    names: tuple[str, ...]
    groupings: tuple[Grouping, ...]  # the first is the one whose effects are conditional
    layout: Layout
    theta: np.ndarray  # (points, hyperparameters)
    weights: np.ndarray  # (points,)
    rest: np.ndarray  # (points, remaining effects)
    level_mean: np.ndarray  # (points, kept levels, K)
    level_covariance: np.ndarray  # (points, kept levels, K, K)
    alias: np.ndarray  # kept level of every level

    _claims = {  # noqa: RUF012  of no instance
        "names": "texts fixed", "theta": "real points hyperparameters", "weights": "weights points",
        "rest": "real points rest", "level_mean": "real points kept effects",
        "level_covariance": "real points kept effects effects", "alias": "count levels",
    }  # fmt: skip

    def _check_stored(self) -> None:
        """Refuse what a file says of sizes that do not fit each other."""
        if not self.groupings:
            raise InputError("its groupings are missing")
        _, kept, effects = self.level_mean.shape
        first, *others = self.groupings
        rest = len(self.names) + sum(len(other.labels) * other.size for other in others)
        for name, fits in (
            ("groupings", effects == first.size),
            ("layout", self.layout.factors == tuple(one.blocks for one in self.groupings)),
            ("theta", self.theta.shape[1] == self.layout.size),
            ("rest", self.rest.shape[1] == rest),
            ("alias", len(self.alias) == len(first.labels) and (self.alias < kept).all()),
            ("level_covariance", (np.einsum("jgkk->jgk", self.level_covariance) >= 0).all()),
        ):
            if not fits:
                raise InputError(f"its {name} does not fit the other parts of the posterior")

    def fixed(self) -> np.ndarray:
        """Fixed effects of every component."""
        return self.rest[:, : len(self.names)]

    def part(self, index: int) -> np.ndarray:
        """Effects of another factor: (points, levels, K)."""
        at = len(self.names)
        for grouping in self.groupings[1:index]:
            at += len(grouping.labels) * grouping.size
        grouping = self.groupings[index]
        count = len(grouping.labels) * grouping.size
        return self.rest[:, at : at + count].reshape(len(self.rest), -1, grouping.size)

    def effects(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of the effects of every level of a factor."""
        if index == 0:
            mean = np.einsum("j,jgk->gk", self.weights, self.level_mean)
            inner = np.einsum("j,jgkk->gk", self.weights, self.level_covariance)
            outer = np.einsum("j,jgk->gk", self.weights, (self.level_mean - mean) ** 2)
            return mean[self.alias], np.sqrt(inner + outer)[self.alias]
        return weighted_moments(self.part(index), self.weights)

    def conditional(
        self, index: int, codes: np.ndarray, columns: np.ndarray, points: slice
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of ``z'v`` per point and row: the share of a factor in a predictor.

        Code -1 is a new level, whose effects come from the population; code -2 is a level of
        unknown identity, which is one of those that were seen, each as likely.
        """
        root = self.layout.scale_factors(self.theta[points])[index]
        root = self.layout.to_zero()[index] @ root
        spread = np.einsum("nk,jkl->jnl", columns, root)
        mean = np.zeros((len(root), len(codes)))
        variance = (spread**2).sum(axis=-1)
        if index == 0:
            level_mean, level_cov = self.level_mean[points], self.level_covariance[points]
            share = np.bincount(self.alias, minlength=level_mean.shape[1]) / len(self.alias)
        else:
            level_mean = self.part(index)[points]
            level_cov, share = None, np.full(level_mean.shape[1], 1 / level_mean.shape[1])
        known = np.flatnonzero(codes >= 0)
        at = self.alias[codes[known]] if index == 0 else codes[known]
        mean[:, known] = np.einsum("nk,jnk->jn", columns[known], level_mean[:, at])
        variance[:, known] = 0.0
        if level_cov is not None:
            z = columns[known]
            variance[:, known] = np.einsum("nk,jnkl,nl->jn", z, level_cov[:, at], z)
        lost = np.flatnonzero(codes == -2)
        if len(lost):
            centre = np.einsum("g,jgk->jk", share, level_mean)
            centred = level_mean - centre[:, None]
            cov = np.einsum("g,jgk,jgl->jkl", share, centred, centred)
            if level_cov is not None:
                cov = cov + np.einsum("g,jgkl->jkl", share, level_cov)
            z = columns[lost]
            mean[:, lost] = np.einsum("nk,jk->jn", z, centre)
            variance[:, lost] = np.einsum("nk,jkl,nl->jn", z, cov, z)
        return mean, variance

    def resampled(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Indices of components for equally weighted draws: systematic resampling, shuffled."""
        edges = np.cumsum(self.weights)
        places = (rng.random() + np.arange(count)) / count
        chosen = np.minimum(np.searchsorted(edges, places * edges[-1]), len(edges) - 1)
        return rng.permutation(chosen)

    def sample_levels(self, chosen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Effects of all levels of the first factor: (draws, levels, K)."""
        size = self.level_mean.shape[-1]
        out = np.empty((len(chosen), len(self.alias), size))
        for draw, j in enumerate(chosen):
            values, vectors = np.linalg.eigh(self.level_covariance[j])
            root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
            noise = rng.standard_normal((len(self.alias), size))
            out[draw] = self.level_mean[j][self.alias]
            out[draw] += np.einsum("gkl,gl->gk", root[self.alias], noise)
        return out


def weighted_moments(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd over the first axis."""
    mean = np.tensordot(weights, values, axes=1)
    return mean, np.sqrt(np.tensordot(weights, (values - mean) ** 2, axes=1))


def weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """Quantile over the first axis, between the middles of the steps of the distribution."""
    flat = values.reshape(len(values), -1)
    order = np.argsort(flat, axis=0)
    out = np.empty(flat.shape[1])
    for column in range(flat.shape[1]):
        sorted_weights = weights[order[:, column]]
        middle = np.cumsum(sorted_weights) - 0.5 * sorted_weights
        out[column] = np.interp(level, middle, flat[order[:, column], column])
    return out.reshape(values.shape[1:])
