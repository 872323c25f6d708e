"""The problem that methods see when an auto-encoder is trained: epochs of shuffled rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi.linalg import LinearMap
from curvi.solvers import Layered, Problem
from curvi.vae._objective import VAEObjective

_MULTIPLIERS = 256


class EpochResources(NamedTuple):
    """Arrays of a run: key, rows, and the multipliers that shuffle them."""

    key: PRNGKeyArray
    rows: PyTree
    multipliers: Array


def shuffling_multipliers(num_rows: int, generator: np.random.Generator) -> np.ndarray:
    """Numbers a, coprime to n, for which i -> a i + c mod n fits 32 bits: each is a permutation."""
    most = max(2, min(num_rows, (2**32 - 1) // max(num_rows, 1) - 1))
    drawn = generator.integers(1, most, size=16 * _MULTIPLIERS)
    coprime = [int(a) for a in drawn if math.gcd(int(a), num_rows) == 1] or [1]
    return np.resize(np.asarray(coprime, np.uint32), _MULTIPLIERS)


@dataclass(frozen=True)
class EpochProblem(Problem):
    """An objective over batches that visit every row once per epoch.

    Rows are shuffled once on the host; epoch e then visits them in the order
    ``(a_e i + c_e) mod n``, a permutation that is a function of seed and epoch alone: it costs
    nothing, keeps no state, and a run can resume at any step. Other streams draw rows at random.
    """

    objective: Any
    batch_size: int

    @property
    def fixed(self) -> bool:
        """Always fresh noise."""
        return False

    def sample(
        self, resources: EpochResources, step: Array, stream: int = 0, size: int | None = None
    ) -> tuple[PyTree, PRNGKeyArray]:
        """Batch and key of a step."""
        key = jax.random.fold_in(jax.random.fold_in(resources.key, stream), step)
        num_rows = jax.tree.leaves(resources.rows)[0].shape[0]
        count = size or self.batch_size
        if stream == 0 and size is None:
            index = self._visited(resources, step, num_rows)
        else:
            index = jax.random.randint(jax.random.fold_in(key, 1), (count,), 0, num_rows)
        return jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=0), resources.rows), key

    def _visited(self, resources: EpochResources, step: Array, num_rows: int) -> Array:
        per_epoch = -(-num_rows // self.batch_size)
        epoch, within = step // per_epoch, step % per_epoch
        # The last batch of an epoch is filled up from its beginning.
        within = within * self.batch_size + jnp.arange(self.batch_size, dtype=jnp.int32)
        place = within % num_rows
        key = jax.random.fold_in(jax.random.fold_in(resources.key, 2), epoch)
        choice = jax.random.randint(key, (), 0, resources.multipliers.shape[0])
        offset = jax.random.randint(jax.random.fold_in(key, 1), (), 0, num_rows, jnp.int32)
        product = resources.multipliers[choice] * place.astype(jnp.uint32)
        spread = (product % jnp.uint32(num_rows)).astype(jnp.int32)
        return (spread + offset) % num_rows

    def value(self, params: PyTree, sample: tuple[PyTree, PRNGKeyArray]) -> Float[Array, ""]:
        """The objective on a batch and key."""
        return self.objective(params, *sample)

    def gauss_newton(
        self, params: PyTree, sample: tuple[PyTree, PRNGKeyArray]
    ) -> tuple[Array, PyTree, LinearMap]:
        """Of the objective."""
        if not isinstance(self.objective, VAEObjective):
            return super().gauss_newton(params, sample)
        return self.objective.gauss_newton(params, *sample)

    def layered(self) -> Layered:
        """The objective, if it shows its layers."""
        return self.objective if isinstance(self.objective, Layered) else super().layered()
