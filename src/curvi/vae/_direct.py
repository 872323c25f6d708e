"""Rows of a memory map that compiled code on a CPU gathers itself, without a call to the host."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from curvi.io import _streams as streams
from curvi.vae._mapped import LazyRows
from curvi.vae._objective import Rows


class Announcer:
    """Tells the system, in a thread, which rows of a long map will be read."""

    steps = 64  # whose rows are announced at once

    def __init__(self, source: np.ndarray) -> None:
        self.source, self.until = source, 0
        self._thread = ThreadPoolExecutor(1)

    def read_ahead(
        self, numbers: Callable[[Any], Array], first: int, count: int, *, chunks: int = 2
    ) -> None:
        """Announce what the next chunks of ``count`` steps read, as far as that was not done.

        ``chunks``: chunks of steps that are announced: the next one, and the one behind it.
        """
        self.until = max(self.until, first // self.steps * self.steps)
        while self.until < first + chunks * count:
            steps = self.until + np.arange(self.steps, dtype=np.int32)
            self._thread.submit(streams.announce, self.source, np.asarray(numbers(steps)))
            self.until += self.steps


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class MappedRows:
    """Rows on disk as compiled code sees them: an array that the system reads where it is touched.

    Attributes
    ----------
    table : array, (rows, ...)
        The map itself; nothing of it is copied.
    order : int32 array
        Numbers of the rows that are used.
    rotation : tuple of arrays, optional
        Centre, directions and constant of what the encoder reads.
    condition : array, optional
        In the order of the rows.
    dtype : str
        Of the rows that are handed on.
    host : Announcer, optional
        Who reads ahead; not in what a program is given.
    """

    table: Array
    order: Array
    rotation: tuple[Array, Array, Array] | None
    condition: Array | None
    dtype: str
    host: Announcer | None = field(default=None, repr=False)

    @classmethod
    def of(cls, rows: Any, *, alignment: int = 64) -> MappedRows | None:
        """Of rows of one memory map without gaps; None for others, and on other devices.

        ``alignment``: bytes: where XLA takes an array as it is.
        """
        x = rows.x if isinstance(rows, Rows) else None
        if not isinstance(x, LazyRows) or x.source is None or x.gaps:
            return None
        source, made = x.source, rows.features
        rotation = None if made is x else getattr(made, "rotation", None)
        plain = source.dtype == jax.dtypes.canonicalize_dtype(source.dtype)
        aligned = source.flags.c_contiguous and source.ctypes.data % alignment == 0
        if not (made is x or rotation) or not (plain and aligned) or jax.default_backend() != "cpu":
            return None
        affine = None
        if rotation is not None:
            parts = (rotation.centre, rotation.map, rotation.constant)
            affine = tuple(jax.device_put(np.asarray(part, x.dtype)) for part in parts)
        condition = None if rows.condition is None else jax.device_put(np.asarray(rows.condition))
        return cls(
            jax.device_put(source, may_alias=True),
            jax.device_put(x.order.astype(np.int32)),
            affine,
            condition,
            x.dtype.name,
            Announcer(source) if source.nbytes > streams.LARGEST_IN_MEMORY else None,
        )

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Arrays, and the dtype."""
        return (self.table, self.order, self.rotation, self.condition), self.dtype

    @classmethod
    def tree_unflatten(cls, dtype: Any, leaves: Any) -> MappedRows:
        """The same rows, or tracers in the place of their arrays."""
        table, order, rotation, condition = leaves
        return cls(table, order, rotation, condition, dtype)

    @property
    def num_rows(self) -> int:
        """Rows that are used."""
        return int(self.order.shape[0])

    def take(self, index: Array) -> Rows:
        """Rows by their places in the order."""
        numbers = jnp.take(self.order, index, mode="clip")
        found = jnp.take(self.table, numbers, axis=0, mode="clip")
        x = found.reshape(index.shape[0], -1).astype(self.dtype)
        condition = self.condition
        if condition is not None:
            condition = jnp.take(condition, index, axis=0, mode="clip")
        if self.rotation is None:
            return Rows(x, x, condition)
        centre, directions, constant = self.rotation
        last = jnp.full((x.shape[0], 1), constant, x.dtype)
        return Rows(jnp.concatenate([(x - centre[None]) @ directions, last], axis=1), x, condition)

    def shape_of(self, count: int) -> Rows:
        """Shapes and dtypes of so many rows."""
        shapes: Rows = jax.eval_shape(self.take, jax.ShapeDtypeStruct((count,), jnp.int32))
        return shapes
