"""Rows that stay on the host: compiled code asks for them by the block, or by their numbers.

A :class:`Stream` is what a program sees of them, a pytree with one leaf, the number under which the
process knows the rows: compiled code holds no data, and serves every table of the same shape.
Asking is a call back to the host, which has often read the answer ahead.
"""

from __future__ import annotations

import itertools
import math
import mmap
import threading
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from curvi._core import validation
from curvi._core.callbacks import reported
from curvi._core.errors import InputError
from curvi.io._passes import SameRows
from curvi.io._rows import RowBlocks

LARGEST_IN_MEMORY = 2**28  # bytes of memory maps that are simply read
_NUMBERS = 2**20  # of a block

_hosts: weakref.WeakValueDictionary[int, HostRows] = weakref.WeakValueDictionary()
_handles = itertools.count()


class HostRows:
    """Rows of a table on the host, in blocks of one length, and by number where that is possible.

    Parameters
    ----------
    source : RowBlocks or pytree of arrays
        The rows; arrays may be memory maps, or anything that ``np.asarray(a[index])`` reads.
    checked : bool
        Whether they have been validated, which takes a pass over them.
    """

    def __init__(self, source: Any, *, checked: bool = False, readers: int = 2) -> None:
        self.blocks = source if isinstance(source, RowBlocks) else None
        self.arrays = source.arrays if isinstance(source, RowBlocks) else source
        first = next(self._as_they_come(), None)
        if first is None:
            raise InputError("data has no rows; at least one is needed")
        width = sum(math.prod(np.shape(leaf)[1:]) for leaf in jax.tree.leaves(first))
        self.block_rows = max(1, _NUMBERS // max(width, 1))
        self.kinds = jax.tree.map(_kind, first)
        self._same = SameRows()
        known = _count(self.arrays) if checked and self.arrays is not None else None
        self.num_rows = self._checked() if known is None else known
        self.block_rows = min(self.block_rows, self.num_rows)
        self.num_blocks = -(-self.num_rows // self.block_rows)
        self._lock, self._readers = threading.Lock(), ThreadPoolExecutor(readers)
        self._ahead: dict[Any, Future[Any]] = {}
        self._pass: tuple[int, Iterator[PyTree]] = (0, iter(()))
        self.handle = next(_handles)
        self.like = jax.tree.map(
            lambda a, kind: jax.ShapeDtypeStruct(np.shape(a)[1:], kind), first, self.kinds
        )
        _hosts[self.handle] = self

    def _as_they_come(self) -> Iterator[PyTree]:
        """One pass, in blocks of any length."""
        if self.arrays is None and self.blocks is not None:
            yield from self.blocks()
            return
        count = jax.tree.leaves(self.arrays)[0].shape[0]
        size = getattr(self, "block_rows", 1)
        for start in range(0, count, size):
            yield jax.tree.map(lambda a, s=start: np.asarray(a[s : s + size]), self.arrays)

    def _checked(self) -> int:
        """Validate all rows in one pass, and find dtypes that hold all blocks; their number."""
        return sum(map(_count, self._same(self._validated())))

    def _validated(self) -> Iterator[PyTree]:
        structure = jax.tree.structure(self.kinds)
        for number, block in enumerate(self._as_they_come()):
            if jax.tree.structure(block) != structure:
                raise InputError("the blocks of data do not all have the same arrays")
            self.kinds = jax.tree.map(_kind, block, self.kinds)
            with warnings.catch_warnings():
                if number:  # said once
                    warnings.simplefilter("ignore", validation.PrecisionWarning)
                validation.checked_rows(block)
            yield block

    def _in_blocks(self) -> Iterator[PyTree]:
        """One pass, in blocks of ``block_rows``; the last one may be shorter."""
        held: list[PyTree] = []
        for block in self._same(self._as_they_come()):
            held.append(block)
            while sum(map(_count, held)) >= self.block_rows:
                whole = jax.tree.map(lambda *parts: np.concatenate(parts), *held)
                yield jax.tree.map(lambda a: a[: self.block_rows], whole)
                held = [jax.tree.map(lambda a: a[self.block_rows :], whole)]
        if sum(map(_count, held)):
            yield jax.tree.map(lambda *parts: np.concatenate(parts), *held)

    def block(self, number: int) -> PyTree:
        """Rows of a block, the last one filled up; the next one is read meanwhile."""
        if self.arrays is not None:
            following = (number + 1) % self.num_blocks
            return self._answer(number, self._slice, [following])
        with self._lock:
            place, rows = self._pass
            if number < place or number == 0:
                place, rows = 0, self._in_blocks()
            for _ in range(number - place):
                next(rows, None)
            found = next(rows, None)
            self._pass = (number + 1, rows)
        expected = min(self.block_rows, self.num_rows - number * self.block_rows)
        if found is None or _count(found) != expected:
            raise InputError("the source gave other rows than at first; all passes must agree")
        return self._filled(found)

    def take(self, index: np.ndarray, ahead: np.ndarray | None = None) -> PyTree:
        """Rows by their numbers; those of ``ahead`` are read meanwhile."""
        following = [] if ahead is None else [ahead]
        return self._answer(index, self._gathered, following)

    def _gathered(self, index: np.ndarray) -> PyTree:
        found: dict[int, np.ndarray] = {}

        def read(array: Any) -> np.ndarray:  # one that occurs twice is read once
            if id(array) not in found:
                found[id(array)] = gathered(array, index)
            return found[id(array)]

        return self._cast(jax.tree.map(read, self.arrays))

    def _slice(self, number: int) -> PyTree:
        part = slice(number * self.block_rows, (number + 1) * self.block_rows)
        return self._filled(jax.tree.map(lambda a: np.array(a[part]), self.arrays))

    def _filled(self, rows: PyTree) -> PyTree:
        index = np.minimum(np.arange(self.block_rows), _count(rows) - 1)
        short = _count(rows) < self.block_rows
        return self._cast(jax.tree.map(lambda a: a[index] if short else a, rows))

    def _cast(self, rows: PyTree) -> PyTree:
        return jax.tree.map(np.ascontiguousarray, rows, self.kinds)

    def _answer(self, wanted: Any, read: Any, following: list[Any], *, ahead: int = 4) -> PyTree:
        """What is wanted, from what was read ahead or now; then read what follows.

        ``ahead``: answers that are kept until they are asked for.
        """
        with self._lock:
            known = self._ahead.pop(_name(wanted), None)
            for one in following:
                if _name(one) not in self._ahead:
                    self._ahead[_name(one)] = self._readers.submit(read, one)
            while len(self._ahead) > ahead:
                self._ahead.pop(next(iter(self._ahead)))
        return read(wanted) if known is None else known.result()


def announce(array: Any, index: np.ndarray) -> None:
    """Tell the system which rows of a memory map will be read; other arrays are left alone."""
    pages = getattr(array, "_mmap", None)
    advice = getattr(mmap, "MADV_WILLNEED", None)  # not on every system
    if advice is None or pages is None or not array.flags.c_contiguous:
        return
    begin = array.offset % mmap.ALLOCATIONGRANULARITY
    for row in index.tolist():
        first = begin + row * array.strides[0]
        page = first // mmap.PAGESIZE * mmap.PAGESIZE
        pages.madvise(advice, page, first + array.strides[0] - page)


def gathered(array: Any, index: np.ndarray) -> np.ndarray:
    """Rows by their numbers; of a memory map the system reads them from disk all at once."""
    announce(array, index)
    if isinstance(array, np.memmap):  # a plain array is gathered twice as fast
        return np.take(array.view(np.ndarray), index, axis=0)
    return np.asarray(array[index])


def _name(wanted: Any) -> Any:
    return wanted.tobytes() if isinstance(wanted, np.ndarray) else wanted


def _kind(array: Any, *others: np.dtype) -> np.dtype:
    """The dtype that JAX gives an array, or the one that holds it and others."""
    kind = np.result_type(np.asarray(array).dtype, *others)
    return np.dtype(jax.dtypes.canonicalize_dtype(kind))


def _count(rows: PyTree) -> int:
    return int(jax.tree.leaves(rows)[0].shape[0])


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Stream:
    """Rows of the host, as a compiled program sees them.

    Attributes
    ----------
    handle : int32 array
        The number of the rows in this process; the only leaf.
    like : pytree of ShapeDtypeStruct
        One row.
    num_rows, block_rows, num_blocks : int
        How many there are, in one block, and blocks.
    host : HostRows, optional
        The rows themselves; not in what a program is given.
    """

    handle: Any
    like: PyTree
    num_rows: int
    block_rows: int
    num_blocks: int
    host: HostRows | None = field(default=None, repr=False)

    @classmethod
    def of(cls, source: Any) -> Stream:
        """A stream of blocks or of arrays, which are validated in one pass."""
        host = source if isinstance(source, HostRows) else HostRows(source)
        sizes = host.num_rows, host.block_rows, host.num_blocks
        return cls(np.int32(host.handle), host.like, *sizes, host)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """The handle, and the rest but for the rows themselves."""
        leaves, structure = jax.tree.flatten(self.like)
        shapes = tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves)
        return (self.handle,), (structure, shapes, self.num_rows, self.block_rows, self.num_blocks)

    @classmethod
    def tree_unflatten(cls, rest: Any, leaves: Any) -> Stream:
        """The same rows, or a tracer in the place of their number."""
        structure, shapes, *sizes = rest
        like = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*shape) for shape in shapes])
        return cls(leaves[0], like, *sizes)

    def __reduce__(self) -> Any:
        raise TypeError("rows that stay on disk are not pickled; save the result instead")

    @property
    def random_access(self) -> bool:
        """Whether rows can be read by their numbers."""
        return self.host is None or self.host.arrays is not None

    def block(self, number: Any) -> PyTree:
        """A block of rows, by a number that is traced; the last one is filled up."""
        return jax.pure_callback(_block, self.shape_of(self.block_rows), self.handle, number)

    def take(self, index: Array, ahead: Array | None = None) -> PyTree:
        """Rows by their numbers; those of ``ahead`` will be asked for next."""
        first = jnp.stack([jnp.asarray(self.handle, jnp.int32), jnp.int32(index.shape[0])])
        # One array: each that a callback is given takes time.
        parts = [first, index, *([] if ahead is None else [ahead])]
        given = jnp.concatenate([part.astype(jnp.int32) for part in parts])
        return jax.pure_callback(_take, self.shape_of(index.shape[0]), given)

    def counted(self, number: Array) -> Array:
        """Which rows of a block are rows, and which only fill it up."""
        places = jnp.arange(self.block_rows, dtype=jnp.int32)
        return number * self.block_rows + places < self.num_rows

    def shape_of(self, count: int) -> PyTree:
        """Shapes and dtypes of so many rows."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), self.like
        )


def _block(handle: Any, number: Any) -> PyTree:
    host, first = _hosts[int(handle)], int(number) * _hosts[int(handle)].block_rows
    last = min(first + host.block_rows, host.num_rows) - 1
    with reported(f"reading rows {first} to {last}"):
        return host.block(int(number))


def _take(given: Any) -> PyTree:
    handle, count, *_ = (numbers := np.asarray(given))
    index, ahead = np.split(numbers[2:], [count])
    with reported(f"reading a batch of {count} rows"):
        return _hosts[int(handle)].take(index, ahead if len(ahead) else None)


def streamed(data: Any) -> Stream | None:
    """A stream of blocks, or of memory maps that are too long to be read; None for other data."""
    if isinstance(data, Stream):
        return data
    if isinstance(data, RowBlocks):
        return Stream.of(data)
    validation.require_sortable_keys(data, "data")
    leaves = jax.tree.leaves(data)
    mapped = [leaf.nbytes for leaf in leaves if isinstance(leaf, np.memmap)]
    return Stream.of(data) if sum(mapped) > LARGEST_IN_MEMORY else None
