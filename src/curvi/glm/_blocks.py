"""Tables that do not fit into memory: blocks of rows, passed over as often as a fit needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import check_X_y
from sklearn.utils.validation import _check_sample_weight

from curvi._core.errors import InputError

_DTYPES = (np.float64, np.float32)


class Block(NamedTuple):
    """Some checked rows of positive weight."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class RowBlocks:
    """Blocks ``(X, y)`` or ``(X, y, weight)``, checked in every pass.

    ``source`` is a function that returns a fresh iterator, or a collection that can be iterated
    again and again.
    """

    source: Callable[[], Iterable[Any]] | Iterable[Any]

    def __post_init__(self) -> None:
        """Refuse what can be read only once: a fit passes over the rows many times."""
        if isinstance(self.source, Iterator):
            raise InputError(
                "blocks is an iterator, which can be read only once; give a function that returns "
                "a fresh one, for example lambda: read_blocks(path)"
            )
        if not callable(self.source) and not isinstance(self.source, Iterable):
            raise InputError(
                f"blocks is a {type(self.source).__name__}; give a function that returns an "
                "iterator of (X, y) or (X, y, weight), or a list of such blocks"
            )

    def __iter__(self) -> Iterator[Block]:
        """One pass; rows of weight zero are left out."""
        width = None
        for number, item in enumerate(self.source() if callable(self.source) else self.source):
            block = _checked(item, number)
            width = block.X.shape[1] if width is None else width
            if block.X.shape[1] != width:
                raise InputError(
                    f"block {number} has {block.X.shape[1]} columns, block 0 has {width}; all "
                    "blocks must have the same columns"
                )
            used = block.weight > 0
            if not used.all():
                block = Block(block.X[used], block.y[used], block.weight[used])
            if block.y.shape[0]:
                yield block


def cut(X: np.ndarray, y: np.ndarray, weight: np.ndarray, rows: int) -> list[Block]:
    """Views of a table that is checked already and stays where it is, on disk perhaps."""
    starts = range(0, X.shape[0], rows)
    return [Block(X[i : i + rows], y[i : i + rows], weight[i : i + rows]) for i in starts]


def _checked(item: Any, number: int) -> Block:
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise InputError(
            f"block {number} is not (X, y) or (X, y, weight); a block is a tuple of arrays"
        )
    try:
        X = item[0].toarray() if sparse.issparse(item[0]) else item[0]
        X, y = check_X_y(X, item[1], dtype=_DTYPES)
        given = item[2] if len(item) == 3 else None
        if given is not None and np.shape(given) == y.shape and not np.any(given):
            weight = np.zeros(X.shape[0], X.dtype)  # a block may count for nothing
        else:
            weight = _check_sample_weight(given, X, dtype=X.dtype, ensure_non_negative=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"block {number}: {error}") from error
    return Block(X, y, weight)
