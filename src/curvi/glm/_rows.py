"""Rows of a fit: blocks as they come from the user, and tables in fitted units on the host.

The bound is a sum over rows. It asks for tables, adds up what each gives, and does not know
whether there is one or a thousand of them: memory is bounded by the largest.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import check_X_y
from sklearn.utils.validation import _check_sample_weight

from curvi._core.errors import InputError
from curvi._core.memory import row_slices
from curvi._core.validation import refuse_unreal
from curvi.glm._bound import Rows
from curvi.glm._design import Columns, Moments
from curvi.io import SameRows, aligned, column_names

DTYPES = (np.float64, np.float32)
Encode = Callable[[np.ndarray], np.ndarray]


class Table(NamedTuple):
    """Fitted columns, their squares, responses and weights of some rows.

    Of a table of zeros and ones ``squares`` is ``matrix`` itself, the same object.
    """

    matrix: np.ndarray
    squares: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    first: int = 0  # number of its first row in the table that it is a block of

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What tells one table from another."""
        return self.matrix, self.y, self.weight

    @property
    def is_binary(self) -> bool:
        """Whether the design is its own square."""
        return self.squares is self.matrix

    def blocks(self, size: int) -> list[Table]:
        """The same rows, a few at a time."""
        parts = row_slices(self.y.shape[0], size)
        return [self._rows(part)._replace(first=self.first + part.start) for part in parts]

    def thinned(self, every: int) -> Table:
        """Each ``every``-th row."""
        return self if every == 1 else self._rows(slice(0, None, every))

    def predictor(self, mu: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the predictor; one pass over a table that is its own square."""
        moments = np.stack([mu, variance], axis=1).astype(self.matrix.dtype)
        if self.is_binary:
            mean, spread = (self.matrix @ moments).T
        else:
            mean, spread = self.matrix @ moments[:, 0], self.squares @ moments[:, 1]
        return mean.astype(np.float64), spread.astype(np.float64)

    def pull(self, by_mean: np.ndarray, by_variance: np.ndarray) -> list[np.ndarray]:
        """Minus the slopes of the weighted sum of rows in (mu, s)."""
        slopes = np.stack([by_mean, by_variance]).astype(self.matrix.dtype)
        if self.is_binary:
            return list(-(slopes @ self.matrix).astype(np.float64))
        pairs = zip(slopes, (self.matrix, self.squares), strict=True)
        return [-(slope @ matrix).astype(np.float64) for slope, matrix in pairs]

    def grams(self, weights: list[np.ndarray], *, single: bool) -> list[np.ndarray]:
        """``X'aX``, and ``X'b(X*X)`` and ``(X*X)'c(X*X)`` where there are three weights."""
        dtype = np.float32 if single else self.matrix.dtype
        matrix = self.matrix.astype(dtype, copy=False)
        shared = self.is_binary or len(weights) == 1
        squares = matrix if shared else self.squares.astype(dtype, copy=False)
        pairs = ((matrix, matrix), (matrix, squares), (squares, squares))
        products = (
            left.T @ (weight.astype(dtype)[:, None] * right)
            for weight, (left, right) in zip(weights, pairs, strict=False)
        )
        return [product.astype(np.float64) for product in products]

    def _rows(self, part: slice) -> Table:
        matrix = self.matrix[part]
        squares = matrix if self.is_binary else self.squares[part]
        return Table(matrix, squares, self.y[part], self.weight[part], self.first)


class Tables(abc.ABC):
    """All rows, as often as they are asked for."""

    num_rows: int
    cache: dict[Any, Any] | None = None  # for what a bound wants to keep

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """A pass over all rows."""

    def thinned(self, every: int) -> Tables:
        """Every k-th row, with k times its weight."""
        parts, skip = [], 0
        for table in self:
            part = slice(skip, None, every)
            # Copies: views would keep every block of a stream in memory.
            matrix, y = table.matrix[part].copy(), table.y[part].copy()
            parts.append((matrix, y, every * table.weight[part]))
            skip = (skip - table.y.shape[0]) % every
        matrix, y, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
        return WholeTable(matrix, y, weight)


@dataclass(frozen=True)
class WholeTable(Tables):
    """One table in memory, squared once; ``cache`` is for what a bound wants to keep."""

    matrix: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    squares: np.ndarray = field(init=False)
    cache: dict[Any, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Square the design, unless it is its own square."""
        squares = self.matrix * self.matrix
        same = np.array_equal(squares, self.matrix)
        object.__setattr__(self, "squares", self.matrix if same else squares)

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        """Number of rows."""
        return int(self.y.shape[0])

    def __iter__(self) -> Iterator[Table]:
        """The table."""
        yield Table(self.matrix, self.squares, self.y, self.weight)


@dataclass(frozen=True)
class StreamedTables(Tables):
    """Blocks ``(matrix, y, weight)`` that a function makes anew for every pass."""

    source: Callable[[], Iterator[tuple[np.ndarray, ...]]]
    num_rows: int

    def __iter__(self) -> Iterator[Table]:
        """One block after another."""
        for matrix, y, weight in self.source():
            yield Table(matrix, matrix * matrix, y, weight)


class StreamedRows(NamedTuple):
    """The data of a fit whose rows come in blocks: tables, prior precisions, noise variance."""

    tables: Tables
    precision: np.ndarray
    noise: float


class Block(NamedTuple):
    """Some validated rows of positive weight, in the user's units."""

    X: Any
    y: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class Streaming:
    """When a dense table is read in blocks where it is, instead of copied into fitted units."""

    largest_copy: int = 2**29  # bytes
    numbers_per_block: int = 2**22

    def blocks(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> list[Block]:
        """Views of a validated table that stays where it is, on disk perhaps."""
        rows = max(1, self.numbers_per_block // X.shape[1])
        return [Block(X[part], y[part], weight[part]) for part in row_slices(X.shape[0], rows)]


@dataclass
class UserBlocks:
    """Blocks ``(X, y)`` or ``(X, y, weight)`` of the user, validated in every pass.

    ``source`` is a function that returns a fresh iterator, or a collection that can be iterated
    again and again. ``names`` are those of the columns of X, after a pass over DataFrames.
    """

    source: Callable[[], Iterable[Any]] | Iterable[Any]
    names: tuple[Any, ...] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Validate the source: a fit passes over the rows many times."""
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
        given = self.source() if callable(self.source) else self.source
        for number, item in enumerate(aligned(given)):
            block = _validated(item, number)
            if not number:
                self.names = column_names(item[0])
            width = block.X.shape[1] if width is None else width
            if block.X.shape[1] != width:
                raise InputError(
                    f"block {number} has {block.X.shape[1]} columns, block 0 has {width}; all "
                    "blocks must have the same columns"
                )
            used = block.weight > 0
            if not used.all():
                block = Block(*(part[used] for part in block))
            if block.y.shape[0]:
                yield block


def _validated(item: Any, number: int) -> Block:
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise InputError(
            f"block {number} is not (X, y) or (X, y, weight); a block is a tuple of arrays, and "
            "curvi.io.rows needs target="
        )
    for part, name in zip(item, ("X", "y", "weight"), strict=False):
        refuse_unreal(part, f"block {number}: {name}")
    try:
        X = item[0].toarray() if sparse.issparse(item[0]) else item[0]
        X, y = check_X_y(X, item[1], dtype=DTYPES)
        given = item[2] if len(item) == 3 else None
        if given is not None and np.shape(given) == y.shape and not np.any(given):
            weight = np.zeros(X.shape[0], X.dtype)  # all rows of a block may have weight zero
        else:
            weight = _check_sample_weight(given, X, dtype=X.dtype, ensure_non_negative=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"block {number}: {error}") from error
    return Block(X, y, weight)


class Observations:
    """Validated rows of positive weight: one table in memory, or blocks that are streamed.

    The first pass, made here, measures them; sums do not depend on how rows are cut into blocks.

    Attributes
    ----------
    dtype : precision of the rows
    columns : moments of the columns
    labels : the classes that occur
    """

    def __init__(
        self, blocks: Iterable[Block], labels_of: Encode, *, streamed: bool = True
    ) -> None:
        self.blocks, self.streamed = blocks, streamed
        self._same = SameRows()
        self.dtype = np.dtype(np.float32)
        columns: Moments | None = None
        labels: list[np.ndarray] = []
        for block in self._same_rows():
            self.dtype = np.promote_types(self.dtype, block.X.dtype)
            here = Moments.of(block.X, block.weight)
            columns = here if columns is None else columns.merged(here)
            found = [*labels, labels_of(block.y)]
            if len({part.dtype.kind in "biuf" for part in found}) > 1:
                raise InputError("some blocks have labels that are numbers, others have strings")
            labels = [np.unique(np.concatenate(found))]
        if columns is None:
            raise InputError("blocks gave no rows of positive weight; a fit needs at least one")
        if not np.isfinite(columns.total):
            raise InputError("sample_weight has a sum beyond the largest number; scale it down")
        self.columns, self.labels = columns, labels[0]

    def responses(self, encode: Encode) -> Moments:
        """Total weight, weighted mean and variance of the responses, in one pass."""
        parts = (Moments.of(encode(block.y)[:, None], block.weight) for block in self._same_rows())
        return reduce(Moments.merged, parts)

    def rows(
        self,
        columns: Columns,
        prior: np.ndarray,
        noise: float,
        encode: Encode,
        *,
        distant: float = 30.0,
        small: int = 2**26,
    ) -> Rows | StreamedRows:
        """The rows in fitted units, all at once or as a stream.

        ``distant``: sds from zero, beyond which squares lose three digits.
        ``small``: numbers of a table that may be made dense.
        """

        def source() -> Iterator[tuple[np.ndarray, ...]]:
            for block in self._same_rows():
                design = columns.dense(block.X.astype(self.dtype, copy=False))
                yield design, encode(block.y), block.weight.astype(self.dtype, copy=False)

        if self.streamed:
            return StreamedRows(StreamedTables(source, self._same.num_rows), prior, noise)
        (table,) = self.blocks
        X = table.X
        # Columns far from zero lose digits if they are centred after the product.
        distance = np.max(np.abs(columns.centre / columns.scale), initial=0.0)
        if sparse.issparse(X) and distance > distant and X.shape[0] * X.shape[1] < small:
            X = X.toarray()
        design, y = columns.design(X), encode(table.y)
        return Rows(design, y, table.weight, prior, np.asarray(noise, self.dtype))

    def _same_rows(self) -> Iterable[Block]:
        """A pass; those of a stream are compared with the first."""
        return self._same(self.blocks) if self.streamed else self.blocks


def canonical(X: Any) -> Any:
    """A sparse table with one entry per place, in order; a copy where the given one is not."""
    if X.has_canonical_format:
        return X
    X = X.copy()
    X.sum_duplicates()
    return X


def in_chunks(
    moments: Callable[[Any], tuple[np.ndarray, ...]], X: Any, *, numbers: int = 2**22
) -> Any:
    """Mean and sd of predictors, of a long dense table some rows at a time, not copied whole."""
    size = max(1, numbers // max(X.shape[1], 1))
    if sparse.issparse(X) or X.shape[0] <= size:
        return moments(X)
    parts = [moments(X[part]) for part in row_slices(X.shape[0], size)]
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def as_numbers(y: np.ndarray, dtype: Any) -> np.ndarray:
    """Responses in a floating dtype; dates would become numbers of days without a word."""
    if y.dtype.kind in "mM":
        raise InputError(f"y has dtype {y.dtype}; give numbers, in a unit of your choice")
    try:
        return y.astype(dtype)
    except (TypeError, ValueError) as wrong:
        raise InputError(f"y must hold numbers ({wrong})") from wrong
