"""Passes over rows that somebody else makes: blocks to keep, columns in order, the same rows.

A fit passes over its rows many times. A source that uses a buffer again, changes the order of its
columns or makes other rows in a later pass would give a wrong answer, and nothing would say so.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from curvi._core.errors import InputError


def kept(block: Any) -> Any:
    """A block of its own: the source may write the next one into the same arrays."""
    if not isinstance(block, tuple | list):  # refused by name, where it is used
        return block
    return tuple(part.copy() if hasattr(part, "copy") else copy.deepcopy(part) for part in block)


def aligned(blocks: Iterable[Any]) -> Iterator[Any]:
    """Blocks whose columns stand in the order of the first, where columns have names.

    Raises
    ------
    InputError
        A block has other columns than the first one.
    """
    first: tuple[Any, ...] | None = None
    for number, block in enumerate(blocks):
        if not isinstance(block, tuple | list) or not len(block):
            yield block
            continue
        names = column_names(block[0])
        first = (names,) if first is None else first
        if names == first[0]:
            yield block
            continue
        yield (_in_order(block[0], names, first[0], number), *block[1:])


def column_names(X: Any) -> tuple[Any, ...] | None:
    """The names of the columns of a table; None where they have none."""
    names = getattr(X, "columns", None)
    return None if names is None or callable(names) else tuple(names)


def _in_order(X: Any, names: Any, wanted: Any, number: int) -> Any:
    if names is None or wanted is None:
        named, plain = (number, 0) if wanted is None else (0, number)
        raise InputError(
            f"block {named} has names of columns and block {plain} has none, so that their order "
            "cannot be compared; give all blocks as DataFrames, or none"
        )
    if len(set(wanted)) != len(wanted) or set(names) != set(wanted):
        odd = sorted(set(map(str, names)) ^ set(map(str, wanted)))
        which = f"they differ in {', '.join(map(repr, odd[:5]))}" if odd else "some occur twice"
        raise InputError(
            f"block {number} has {len(names)} columns, block 0 has {len(wanted)}, and {which}; "
            "all blocks must have the same columns"
        )
    return X[list(wanted)]


class SameRows:
    """Digests of the rows of a first pass, with which those of every later pass are compared.

    They do not depend on how the rows are cut into blocks. All numbers enter a sum of their bits;
    responses, and the numbers of every so many rows, enter a checksum that knows their order. That
    costs less than a tenth of a nanosecond per byte, and finds accidents, not forgeries.
    """

    def __init__(self, every: int = 64) -> None:
        self.every = every
        self._known: dict[int, tuple[Any, ...]] | None = None
        self.num_rows = 0

    def __call__(self, blocks: Iterable[Any]) -> Iterator[Any]:
        """The blocks of a pass, which are pytrees of arrays.

        Raises
        ------
        InputError
            In a later pass, for rows that are not those of the first.
        """
        found: dict[int, tuple[Any, ...]] = {}
        state: tuple[Any, ...] = ()
        count = 0
        for number, block in enumerate(blocks):
            arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(block)]
            state = state or ((0, 0),) * len(arrays)
            pairs = zip(state, arrays, strict=False)
            state = tuple(self._digest(known, array, count) for known, array in pairs)
            first, count = count, count + len(arrays[0])
            found[count] = state
            if self._known is None:
                yield block
                continue
            if count > self.num_rows:
                raise self._other_count(f"{count} or more")
            if self._known.get(count, state) != state:
                raise InputError(
                    f"block {number} (rows {first} to {count - 1}) has other numbers than in the "
                    "first pass; every pass must give the same rows in the same order"
                )
            yield block
        if self._known is None:
            self._known, self.num_rows = found, count
        elif count != self.num_rows:
            raise self._other_count(f"{count}")

    def _other_count(self, later: str) -> InputError:
        return InputError(
            f"blocks gave {self.num_rows} rows at first and {later} later; every pass must give "
            "the same rows"
        )

    def _digest(self, known: tuple[int, int], array: np.ndarray, first: int) -> tuple[int, int]:
        total, checksum = known
        if array.dtype.kind not in "biuf" or array.dtype.itemsize not in (1, 2, 4, 8):
            text = "\0".join(map(str, array.reshape(-1).tolist()))
            return total, zlib.crc32(f"{text}\0".encode("utf-8", "surrogatepass"), checksum)
        if array.ndim > 1:
            words = array.view(f"u{array.dtype.itemsize}")
            total = (total + int(np.sum(words, dtype=np.uint64))) % 2**64
            array = array[-first % self.every :: self.every]
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return total, zlib.crc32(raw.data, checksum)
