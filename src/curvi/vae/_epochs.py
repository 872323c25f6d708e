"""Batches that visit every row of a table once per epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from curvi._core.compilation import Cost, compiled
from curvi._core.meshes import split_batch
from curvi.engine import ObjectiveProblem, Resources, step_key
from curvi.io import Stream
from curvi.vae._direct import MappedRows


class ShuffledRows(NamedTuple):
    """Rows, shuffled once, and the multipliers that shuffle them again in every epoch.

    ``count`` is the number of rows where more are stored, all by default: tables of nearly the same
    length are stored in one shape, so that they share compiled code.
    """

    rows: PyTree
    multipliers: Array
    count: Any = None


def stored_count(rows: PyTree) -> int:
    """Rows that are stored, on the device or on the host."""
    on_disk = isinstance(rows, Stream | MappedRows)
    return int(rows.num_rows if on_disk else jax.tree.leaves(rows)[0].shape[0])


def stored_rows(
    num_rows: int, columns: int, *, small_rows: int = 1024, small_table: int = 2**17,
    large_table: int = 2**24,
) -> int:  # fmt: skip
    """The number of rows that a table is filled up to, so that tables share compiled code.

    All small tables of the same columns have one shape, larger ones powers of two, and where memory
    counts at most an eighth more than there are.

    ``small_rows``, ``small_table``: rows, and entries, of a small table.
    ``large_table``: entries of a large one.
    """
    least = small_rows if small_rows * columns <= small_table else 1
    power = max(least, 2 ** (num_rows - 1).bit_length())
    if power * columns <= large_table:
        return power
    grain = max(power // 16, 1)
    return -(-num_rows // grain) * grain


def shuffling_multipliers(
    num_rows: int, generator: np.random.Generator, *, count: int = 256
) -> np.ndarray:
    """Numbers a, coprime to n, for which i -> a i + c mod n fits 32 bits: each is a permutation.

    ``count``: number of multipliers.
    """
    most = max(2, min(num_rows, (2**32 - 1) // max(num_rows, 1) - 1))
    drawn = generator.integers(1, most, size=16 * count)
    coprime = [int(a) for a in drawn if math.gcd(int(a), num_rows) == 1] or [1]
    return np.resize(np.asarray(coprime, np.uint32), count)


def below(limits: Any, key: PRNGKeyArray, count: int) -> Array:
    """Random integers below limits that are far below 2^32, from one call of the generator.

    ``jax.random.randint`` takes two and a correction of its last bits, and as long to compile.
    """
    bits = jax.random.bits(key, (count,), jnp.uint32)
    return (bits % jnp.asarray(limits).astype(jnp.uint32)).astype(jnp.int32)


@dataclass(frozen=True)
class EpochProblem(ObjectiveProblem):
    """An objective over batches that visit every row once per epoch.

    ``resources.rows`` are :class:`ShuffledRows`. Epoch e visits them in the order
    ``(a_e i + c_e) mod n``, a permutation that is a function of seed and epoch alone: it costs
    nothing, keeps no state, and a run can resume at any step. Other streams draw rows at random.
    """

    fixed_key: bool = False

    def sample(
        self, resources: Resources, step: Array, stream: int = 0, size: int | None = None
    ) -> tuple[PyTree, PRNGKeyArray]:
        """Batch and key of a step."""
        rows, _, count = resources.rows
        num_rows = stored_count(rows) if count is None else count
        key, ahead = step_key(resources, step, stream), None
        if stream != 0 or size is not None:
            wanted = size or self.batch_size or stored_count(rows)
            index = split_batch(below(num_rows, jax.random.fold_in(key, 1), wanted))
        else:
            index = split_batch(self._visited(resources, step, num_rows))
            if isinstance(rows, Stream):
                ahead = self._visited(resources, step + 1, num_rows)
        if isinstance(rows, Stream):
            return rows.take(index, ahead), key
        if isinstance(rows, MappedRows):
            return rows.take(index), key
        # Every index is a row: nothing has to be filled in.
        return jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=0, mode="clip"), rows), key

    def read_ahead(self, resources: Resources, first: int, count: int) -> None:
        """Have rows on disk read that steps from ``first`` on will visit."""
        rows = resources.rows.rows
        if isinstance(rows, MappedRows) and rows.host is not None:
            rows.host.read_ahead(lambda steps: _numbers(self, resources, steps), first, count)

    @property
    def knows_its_length(self) -> bool:
        """The number of rows tells about how many steps there will be."""
        return True

    def cost(self, params: PyTree, resources: Resources, *, per_weight: float = 6.0) -> Cost | None:
        """About what a run costs, in products: a small table is compiled in a hurry.

        A gradient takes six numbers per weight and row. It is counted for 100 steps, or for a tenth
        of 50 epochs: the code has to last for more, but only a part of it is worth optimising, and
        most of the work is done by the BLAS.

        ``per_weight``: numbers of a gradient, for every weight and row.
        """
        stored = stored_count(resources.rows.rows)
        size = self.batch_size or stored
        steps = max(100.0, 5.0 * stored / size)
        weights = sum(leaf.size for leaf in jax.tree.leaves(params))
        return Cost(per_weight * weights * size * steps / 10_000, steps)

    def _visited(self, resources: Resources, step: Array, num_rows: Any) -> Array:
        rows, multipliers, _ = resources.rows
        size = self.batch_size or stored_count(rows)
        per_epoch = -(-num_rows // size)
        epoch, within = step // per_epoch, step % per_epoch
        # The last batch of an epoch is filled up from its beginning.
        place = (within * size + jnp.arange(size, dtype=jnp.int32)) % num_rows
        key = jax.random.fold_in(jax.random.fold_in(resources.key, 2), epoch)
        choice, offset = below(jnp.asarray([multipliers.shape[0], num_rows]), key, 2)
        product = jnp.take(multipliers, choice, mode="clip") * place.astype(jnp.uint32)
        spread = (product % jnp.asarray(num_rows, jnp.uint32)).astype(jnp.int32)
        return (spread + offset) % num_rows


@compiled
def _numbers(problem: EpochProblem, resources: Resources, steps: Array) -> Array:
    """Numbers of the rows in the file that steps visit, one after another."""
    rows, _, count = resources.rows
    visited = jax.vmap(lambda step: problem._visited(resources, step, count))(steps)
    return jnp.take(rows.order, visited.reshape(-1), mode="clip")
