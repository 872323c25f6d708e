r"""Tables with few non-zeros on the host: products and Gram matrices over these alone.

Fitted columns are affine in the stored ones, :math:`\tilde x = a x + b`, and their squares are
:math:`a^2 x^2 + 2 a b x + b^2`, so that centring never fills the table. A Gram matrix
:math:`X^\top w X` is a linear function of w: entry (j, k) is the sum of the weights of the rows in
which both columns are filled, times their entries there. The pairs of every row are listed once,
and a Gram matrix is then one sparse product, exact in double precision. On a table of zeros and
ones the three matrices of a Hessian share these pairs, which are their own squares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from curvi.glm._design import SparseDesign
from curvi.glm._rows import Tables


@dataclass(frozen=True)
class PairLists:
    """What lists of pairs of columns cost beside a dense product."""

    # Products of pairs cost more than multiplications inside a dense Gram matrix, by this factor:
    # one list of pairs for zeros and ones, six products over all pairs otherwise. Measured, the
    # making of the lists shared out to ten steps.
    binary_cost: float = 60.0
    other_cost: float = 120.0
    most_bytes: int = 2**29  # bytes of the lists


PAIRS = PairLists()


def prefers_sparse(X: Any, *, policy: PairLists = PAIRS) -> bool:
    """Whether products over non-zeros are cheaper than dense ones, for a dense or sparse table."""
    rows, columns = X.shape
    filled = X.nnz if sparse.issparse(X) else np.count_nonzero(X)
    values = X.data if sparse.issparse(X) else X
    share = filled / max(rows, 1)
    binary = bool(np.count_nonzero(values == 1) == filled)
    pairs = rows * (0.5 * share * (share + 1) if binary else share**2)
    cost = policy.binary_cost if binary else policy.other_cost
    return (
        bool(cost * pairs < rows * float(columns) ** 2)
        and _bytes(pairs, binary) < policy.most_bytes
    )


def stored_by_density(X: Any, largest: int) -> Any:
    """The table as the cheaper products take it; it is made dense up to a number of bytes."""
    if prefers_sparse(X):
        return X if sparse.issparse(X) else _compressed(X)
    small = X.shape[0] * X.shape[1] * X.dtype.itemsize <= largest
    return X.toarray() if sparse.issparse(X) and small else X


def _compressed(X: np.ndarray) -> sparse.csr_array:
    """What ``scipy.sparse.csr_array`` makes of an array, in a third of the time."""
    rows, columns = X.shape
    numbers = np.ravel(X)
    filled = np.flatnonzero(numbers != 0)
    ends = np.searchsorted(filled, columns * np.arange(rows + 1, dtype=np.int64))
    kind = sparse.get_index_dtype(maxval=max(len(filled), columns))
    parts = numbers[filled], (filled % columns).astype(kind), ends.astype(kind)
    return sparse.csr_array(parts, shape=X.shape)


def pairs_fit(design: SparseDesign, *, policy: PairLists = PAIRS) -> bool:
    """Whether the lists of pairs stay small."""
    count = np.bincount(np.asarray(design.rows), minlength=design.num_rows).astype(np.float64)
    return _bytes(float(np.sum(count**2)), binary=False) < policy.most_bytes


def _bytes(pairs: float, binary: bool) -> float:
    return pairs * (4 + 8 * (1 if binary else 3))


@dataclass(frozen=True)
class SparseTable(Tables):
    """All rows of a table, by its non-zeros; also the only block of itself.

    Attributes
    ----------
    stored : sparse array, (rows, features)
    factor, shift : of every fitted column; an intercept has the factor zero and the shift one
    """

    stored: Any
    factor: np.ndarray
    shift: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    cache: dict[Any, Any] = field(init=False, default_factory=dict)
    first: int = 0

    @classmethod
    def of(cls, design: SparseDesign, y: np.ndarray, weight: np.ndarray) -> SparseTable:
        """The rows of a sparse design."""
        ends = np.searchsorted(design.rows, np.arange(design.num_rows + 1))
        values, columns = np.asarray(design.values, np.float64), np.asarray(design.columns)
        # Columns of one value each are zeros and ones in units of that value.
        unit = np.ones(design.centre.shape[0])
        unit[columns] = values
        if np.array_equal(values, unit[columns]) and np.all(values):
            values = np.ones_like(values)
        else:
            unit[:] = 1.0
        shape = (design.num_rows, design.centre.shape[0])
        stored = sparse.csr_array((values, columns, ends), shape=shape)
        stored.sort_indices()
        scale = np.asarray(design.inverse_scale, np.float64)
        constant = int(design.intercept)
        factor = np.append(scale * unit, np.zeros(constant))
        shift = np.append(-np.asarray(design.centre, np.float64) * scale, np.ones(constant))
        numbers = np.asarray(y, np.float64), np.asarray(weight, np.float64)
        return cls(stored, factor, shift, numbers[0], numbers[1])

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        """Number of rows."""
        return int(self.y.shape[0])

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What tells one table from another."""
        entries = (self.stored.data, self.stored.indices, self.stored.indptr)
        return (*entries, self.factor, self.shift, self.y, self.weight)

    @property
    def hessian_work(self) -> float:
        """Multiplications of one Hessian, roughly."""
        return 3.0 * float(np.sum(np.diff(self.stored.indptr).astype(np.float64) ** 2))

    def __iter__(self) -> Iterator[Any]:
        """The table."""
        yield self

    def blocks(self, size: int) -> list[SparseTable]:
        """The table; its products need no blocks."""
        return [self]

    def thinned(self, every: int) -> SparseTable:
        """Every k-th row, with k times its weight."""
        part = slice(0, None, every)
        weight = every * self.weight[part]
        return SparseTable(self.stored[part], self.factor, self.shift, self.y[part], weight)

    def predictor(self, mu: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear predictor of every row."""
        a, b, size = self.factor, self.shift, self.stored.shape[1]
        linear = np.stack([a * mu, 2 * a * b * variance], axis=1)[:size]
        square = (a**2 * variance)[:size]
        if self.is_binary:
            linear[:, 1] += square
            mean, spread = (self.stored @ linear).T
        else:
            mean, spread = (self.stored @ linear).T
            spread = spread + self._squares @ square
        return mean + b @ mu, np.maximum(spread + b**2 @ variance, 0.0)

    def pull(self, by_mean: np.ndarray, by_variance: np.ndarray) -> list[np.ndarray]:
        """Minus the slopes of the weighted sum of rows in (mu, s)."""
        a, b = self.factor, self.shift
        one = self._padded(self.stored.T @ np.stack([by_mean, by_variance], axis=1))
        two = one[:, 1] if self.is_binary else self._padded(self._squares.T @ by_variance)
        first = a * one[:, 0] + b * by_mean.sum()
        second = a**2 * two + 2 * a * b * one[:, 1] + b**2 * by_variance.sum()
        return [-first, -second]

    def grams(self, weights: list[np.ndarray], *, single: bool) -> list[np.ndarray]:
        """``X'aX``, and ``X'b(X*X)`` and ``(X*X)'c(X*X)`` where there are three weights."""
        columns = np.stack(weights, axis=1)
        totals = columns.sum(axis=0)
        sums = self._padded(self.stored.T @ columns)
        ones = self._paired(0, columns)
        a, b = self.factor, self.shift
        first = _bordered((a, b), (a, b), ones[0], sums[:, 0], sums[:, 0], totals[0])
        if len(weights) == 1:
            return [first]
        # Of the squares: a^2 x^2 + 2 a b x + b^2, linear in x where x is its own square.
        square, cross, constant = a**2, 2 * a * b, b**2
        if self.is_binary:
            whole = (square + cross, constant)
            mixed = _bordered((a, b), whole, ones[1], sums[:, 1], sums[:, 1], totals[1])
            last = _bordered(whole, whole, ones[2], sums[:, 2], sums[:, 2], totals[2])
            return [first, mixed, last]
        twos, (squares,) = self._paired(1, columns[:, 1:]), self._paired(2, columns[:, 2:])
        square_sums = self._padded(self._squares.T @ columns)
        pulled = [square * square_sums[:, k] + cross * sums[:, k] for k in (1, 2)]
        inner = a[:, None] * (twos[0] * square + ones[1] * cross)
        mixed = inner + np.outer(a * sums[:, 1], constant) + np.outer(b, pulled[0])
        mixed += totals[1] * np.outer(b, constant)
        slant = cross[:, None] * twos[1] * square
        corner = square[:, None] * squares * square + cross[:, None] * ones[2] * cross
        border = np.outer(pulled[1], constant)
        last = corner + slant + slant.T + border + border.T
        return [first, mixed, last + totals[2] * np.outer(constant, constant)]

    @cached_property
    def is_binary(self) -> bool:
        """Whether all non-zeros are ones."""
        return bool(np.all(self.stored.data == 1))

    @cached_property
    def _squares(self) -> Any:
        squares = self.stored.copy()
        squares.data = squares.data**2
        return squares

    def _padded(self, sums: np.ndarray) -> np.ndarray:
        """Sums over features as sums over fitted columns; an intercept has none."""
        extra = self.factor.size - sums.shape[0]
        return np.pad(sums, [(0, extra), *[(0, 0)] * (sums.ndim - 1)])

    def _paired(self, which: int, columns: np.ndarray) -> np.ndarray:
        """Gram matrices of x with x, of x with its squares, or of the squares, for each weight."""
        size, width = self.stored.shape[1], self.factor.size
        ordered = columns if self._order is None else columns[self._order]
        flat = self._pairs[which] @ np.ascontiguousarray(ordered)
        out = np.zeros((columns.shape[1], width, width))
        out[:, :size, :size] = flat.reshape(size, size, -1).transpose(2, 0, 1)
        if self.is_binary:  # only the upper triangle was listed
            out += np.triu(out, 1).transpose(0, 2, 1)
        return out

    @cached_property
    def _order(self) -> np.ndarray | None:
        """Rows by their number of entries, which is how their pairs are listed; None: as given."""
        filled = np.diff(self.stored.indptr)
        return None if np.all(filled == filled[:1]) else np.argsort(filled, kind="stable")

    @cached_property
    def _pairs(self) -> list[Any]:
        """Sparse (features^2, rows): the products of two entries of a row, at their columns."""
        stored, (rows, size) = self.stored, self.stored.shape
        filled = np.diff(stored.indptr)
        order = np.arange(rows) if self._order is None else self._order
        counts, places, products = np.zeros(rows, np.int64), [], []
        for count in np.unique(filled[filled > 0]):
            own = filled[order] == count
            entries = stored.indptr[order[own]][:, None] + np.arange(count)
            left, right = np.triu_indices(count) if self.is_binary else np.indices((count, count))
            left, right = left.ravel(), right.ravel()
            counts[own] = left.size
            columns = stored.indices[entries].astype(np.int32)
            places.append((columns[:, left] * np.int32(size) + columns[:, right]).ravel())
            if not self.is_binary:
                x = stored.data[entries]
                one, other = x[:, left].ravel(), x[:, right].ravel()
                products.append((one * other, one * other**2, (one * other) ** 2))
        ends = np.append(0, np.cumsum(counts))
        place = np.concatenate(places) if places else np.zeros(0, np.int32)
        lists = [np.ones(place.size)]
        if not self.is_binary:
            lists = [np.concatenate(kind) for kind in zip(*products, strict=True)]
        shape = (rows, size * size)
        # Not sorted by pairs: that would cost as much as several Gram matrices.
        return [sparse.csr_array((data, place, ends), shape=shape).T for data in lists]


def _bordered(
    left: tuple[np.ndarray, np.ndarray],
    right: tuple[np.ndarray, np.ndarray],
    gram: np.ndarray,
    left_sums: np.ndarray,
    right_sums: np.ndarray,
    total: float,
) -> np.ndarray:
    """The Gram matrix of ``a x + b`` with ``c x + d``, from that of x with itself."""
    (a, b), (c, d) = left, right
    inner = a[:, None] * gram * c + np.outer(a * left_sums, d) + np.outer(b, c * right_sums)
    return inner + total * np.outer(b, d)
