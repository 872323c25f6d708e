"""Rows of an auto-encoder that stay on disk: views that are read when an array is asked for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from curvi._core.errors import InputError
from curvi._core.meshes import current_mesh
from curvi.io import RowBlocks
from curvi.io import _streams as streams
from curvi.vae._objective import Rows

_NUMBERS = 2**22  # that are validated, or encoded, at once


class LazyRows:
    """Rows in an order of their own: shape and dtype of an array, and ``np.asarray`` reads them.

    Parameters
    ----------
    read : callable
        From numbers of rows to an array of them, (rows, width).
    order : array of int
        The rows of this view.
    width : int
        Columns.
    dtype : dtype
        Of what is read.
    gaps : bool
        Whether any entry is missing (NaN).
    source : memory map, optional
        Whose rows these are, as they stand.
    rotation : Rotation, optional
        What made these rows of others, in the same order.
    """

    ndim = 2

    def __init__(
        self, read: Callable[[np.ndarray], np.ndarray], order: np.ndarray, width: int, dtype: Any,
        *, gaps: bool = False, source: Any = None, rotation: Any = None,
    ) -> None:  # fmt: skip
        self.read, self.order, self.source, self.rotation = read, order, source, rotation
        self.shape, self.dtype, self.gaps = (len(order), width), np.dtype(dtype), gaps

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return self.itemsize * self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> LazyRows:
        return LazyRows(
            self.read, self.order[index], self.shape[1], self.dtype, gaps=self.gaps,
            source=self.source, rotation=self.rotation,
        )  # fmt: skip

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.read(self.order), dtype)

    def changed(self, fn: Callable[[np.ndarray], np.ndarray], width: int) -> LazyRows:
        """The same rows after a function of them."""
        return LazyRows(
            lambda index: fn(np.asarray(self[index])), np.arange(len(self)), width, self.dtype
        )


def on_disk(X: Any) -> Any:
    """The memory map that rows are read from; None for a table that belongs in memory.

    Raises
    ------
    InputError
        For blocks that cannot be read by number, or that have responses.
    """
    if isinstance(X, RowBlocks):
        if X.arrays is None:
            raise InputError(
                "an auto-encoder visits its rows in random order, and these blocks come one after "
                "another; write them to a file that can be mapped: blocks.to_npy(folder)"
            )
        if len(X.arrays) > 1:
            raise InputError("an auto-encoder has no responses; leave the target of rows() out")
        return X.arrays[0]
    is_long = isinstance(X, np.memmap) and X.nbytes > streams.LARGEST_IN_MEMORY
    return X if is_long else None


def refuse_blocks(X: Any, what: str) -> None:
    """Raise InputError for blocks of rows where an array is needed."""
    if isinstance(X, RowBlocks):
        raise InputError(
            f"{what} takes rows in memory, and X is blocks of them; give an array, np.load(path) "
            "or some of its rows at a time"
        )


def row_parts(source: Any) -> list[slice]:
    """Slices of a memory map that are read at once."""
    size = max(2, _NUMBERS // max(math.prod(source.shape[1:]), 1))
    return [slice(first, first + size) for first in range(0, len(source), size)]


def all_rows(X: Any, check: Callable[[Any], np.ndarray]) -> Any:
    """Rows for training, as ``check`` returns them: an array, or a view of what stays on disk.

    Raises
    ------
    InputError
        From ``check``, which is given rows on disk some at a time; and where a mesh is to share
        them.
    """
    source = on_disk(X)
    if source is None:
        return check(X)
    if current_mesh() is not None:
        raise InputError("rows on disk have no mesh; give an array, or leave the mesh out")
    width, gaps, dtype = math.prod(source.shape[1:]), False, np.dtype(np.float32)
    for part in row_parts(source):
        block = check(np.asarray(source[part]))
        gaps, dtype = gaps or bool(np.isnan(block).any()), block.dtype

    def read(index: np.ndarray) -> np.ndarray:
        return streams.gathered(source, index).reshape(len(index), width).astype(dtype, copy=False)

    order = np.arange(len(source))
    return LazyRows(_once(read), order, width, dtype, gaps=gaps, source=source)


def _once(read: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """The same, which keeps the last batch that each thread has read.

    What the encoder reads and what the decoder explains are made of the same rows.
    """
    last = threading.local()

    def found(index: np.ndarray) -> np.ndarray:
        if not np.array_equal(getattr(last, "index", ()), index):
            rows = read(index)
            if rows.size > _NUMBERS:
                return rows
            last.index, last.rows = index, rows
        return last.rows

    return found


def in_memory(rows: Any, *, most: int = 2**25) -> Any:
    """Rows as they are; of rows on disk as many as fit well, at random.

    ``most``: numbers of the rows from which means, directions and first weights come.
    """
    if not is_lazy(rows):
        return rows
    first = jax.tree.leaves(rows)[0]
    count = max(2, most // first.shape[1])
    if count >= len(first):
        return jax.tree.map(np.asarray, rows)
    index = np.sort(np.random.default_rng(0).choice(len(first), count, replace=False))
    return jax.tree.map(np.asarray, picked(rows, index))


def is_lazy(rows: Any) -> bool:
    """Whether rows are on disk."""
    return any(isinstance(leaf, LazyRows) for leaf in jax.tree.leaves(rows))


def picked(rows: Any, index: np.ndarray | slice) -> Any:
    """Some rows, on disk as views; what was one array stays one."""
    known: dict[int, Any] = {}

    def one(leaf: Any) -> Any:
        if id(leaf) not in known:
            known[id(leaf)] = leaf[index]
        return known[id(leaf)]

    return jax.tree.map(one, rows)


def has_gaps(x: Any) -> bool:
    """Whether an entry is missing."""
    return x.gaps if isinstance(x, LazyRows) else bool(np.isnan(x).any())


def filled(X: Any, fill: np.ndarray, conditions: np.ndarray | None) -> Rows:
    """What the encoder reads, without gaps, beside what is to be explained."""
    if not has_gaps(X):
        return Rows(X, X, conditions)

    def without(x: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(x), fill, x)

    features = X.changed(without, X.shape[1]) if is_lazy(X) else without(X)
    return Rows(features, X, conditions)
