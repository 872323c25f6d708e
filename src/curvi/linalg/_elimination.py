r"""Elimination of a sparse symmetric matrix, many coordinates at a time.

The matrix has a *dense block*, coordinates that touch nearly all others, and sparse *locals*.
Locals are eliminated in rounds. Those of a round do not touch each other, so that each round is a
few array operations; on a chain that is cyclic reduction, on groups it is block elimination. The
order is (dense block, last round, ..., first round): in it the inverse root of the matrix,

.. math:: P^{-1} = R R^\top, \qquad
    R^{-1} = \begin{pmatrix} G^{-1} & 0 \\ S^{-1} K & S^{-1} (I + N) \end{pmatrix},

is lower triangular, S diagonal and N sparse with zeros inside of a round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from curvi._core.errors import InputError

MOST_DENSE_ROWS = 256  # coordinates that may be dense


@dataclass(frozen=True, eq=False)
class Elimination:
    """Who is eliminated when, and the entries that this fills in.

    Parameters
    ----------
    order : array of int
        The coordinates: dense block, last round, ..., first round.
    num_dense : int
        Coordinates of the dense block.
    bounds : array of int
        Where each round begins among the locals, in their order, and their number at the end.
    rows, columns : array of int
        The entries of N, by rows: ``rows > columns``, both counted among the locals.
    own : array of bool
        Which of them the matrix has itself; the others fill in.
    """

    order: np.ndarray
    num_dense: int
    bounds: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    own: np.ndarray

    @property
    def dimension(self) -> int:
        """Number of coordinates."""
        return len(self.order)

    @property
    def num_locals(self) -> int:
        """Coordinates outside of the dense block."""
        return len(self.order) - self.num_dense

    @cached_property
    def places(self) -> np.ndarray:
        """Where each coordinate stands in the order."""
        return np.argsort(self.order)

    @cached_property
    def digest(self) -> bytes:
        """Of all that it consists of."""
        whole = b"".join(part.astype(np.int64).tobytes() for part in self.arrays().values())
        return hashlib.blake2b(whole, digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Elimination) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that it consists of."""
        names = ("order", "bounds", "rows", "columns", "own")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray]) -> Elimination:
        """The inverse of :meth:`arrays`; InputError for arrays that are no elimination."""
        found = {name: np.asarray(part).astype(int) for name, part in arrays.items()}
        order, bounds = found["order"], found["bounds"]
        rows, columns, own = found["rows"], found["columns"], found["own"].astype(bool)
        flat = {part.ndim for part in found.values()} == {1}
        good: Any = flat and len(own) == len(rows) == len(columns)
        good = good and bool((np.sort(order) == np.arange(len(order))).all())
        good = good and len(bounds) > 0 and bounds[0] == 0 and (np.diff(bounds) >= 0).all()
        good = good and bounds[-1] <= len(order)
        if good and len(rows):
            first = bounds[np.searchsorted(bounds, rows, side="right") - 1]
            inside = (columns >= 0).all() and rows.max() < bounds[-1]
            keys = rows * len(order) + columns
            good = inside and (columns < first).all() and (np.diff(keys) > 0).all()
        if not good:
            raise InputError("the structure of a sparse precision is damaged")
        return cls(order, len(order) - int(bounds[-1]), bounds, rows, columns, own)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where the entries of each row of N begin."""
        return np.searchsorted(self.rows, np.arange(self.num_locals + 1))

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For all entries (i, a) and (i, b) of a row with a > b: their numbers, and that of (a, b).

        They are in the order of rows. The entry (a, b) exists: eliminating i fills it in.
        """
        lengths = np.diff(self.starts)
        first, second = [np.empty(0, int)], [np.empty(0, int)]
        for length in np.unique(lengths[lengths > 1]):
            upper = np.array([(a, b) for a in range(length) for b in range(a)])
            begin = self.starts[:-1][lengths == length, None]
            first.append((begin + upper[:, 0]).ravel())
            second.append((begin + upper[:, 1]).ravel())
        one, other = np.concatenate(first), np.concatenate(second)
        by_row = np.argsort(self.rows[one], kind="stable")
        one, other = one[by_row], other[by_row]
        return one, other, self.slots(self.columns[one], self.columns[other])

    def slots(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The numbers of entries of N."""
        keys = self.rows * self.num_locals + self.columns
        return np.searchsorted(keys, rows * self.num_locals + columns)

    def rounds(self) -> Iterator[Round]:
        """The rounds in the order of the coordinates: the one that was eliminated last comes first.

        Each has its locals, and slices of the entries and of the pairs.
        """
        one = self.pairs[0]
        row_of_pair = self.rows[one]
        for begin, end in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            entries = slice(*np.searchsorted(self.rows, [begin, end]))
            pairs = slice(*np.searchsorted(row_of_pair, [begin, end]))
            yield Round(slice(int(begin), int(end)), entries, pairs)


@dataclass(frozen=True)
class Round:
    """Locals that are eliminated together, their entries of N, and pairs of those."""

    locals: slice
    entries: slice
    pairs: slice


def eliminate(
    pattern: sparse.spmatrix, dense: np.ndarray, *, most_dense: int = MOST_DENSE_ROWS,
    most_fill: float = 40.0, dense_from: float = 0.5,
) -> Elimination | None:  # fmt: skip
    """Choose rounds for a pattern; None where too much fills in.

    Parameters
    ----------
    pattern : sparse matrix, shape (d, d)
        Non-zero where two coordinates touch; symmetric. The diagonal does not matter.
    dense : array of int
        Coordinates that are dense.
    most_dense : int
        Coordinates that may be dense in the end.
    most_fill : float
        Entries per coordinate that elimination may fill in.
    dense_from : float
        Share of entries from which what is left joins the dense block.
    """
    dimension = pattern.shape[0]
    inside = np.zeros(dimension, bool)
    inside[dense] = True
    active = np.flatnonzero(~inside)
    graph = _cleaned(sparse.csr_matrix(pattern, dtype=np.int32)[active][:, active])
    rng, chosen, filled = np.random.default_rng(0), [], 0
    edges: list[tuple[np.ndarray, np.ndarray]] = []
    while len(active):
        if graph.nnz > dense_from * len(active) ** 2:
            break
        taken = _independent(graph, rng)
        rest = np.flatnonzero(~taken)
        across = graph[taken][:, rest].tocoo()
        edges.append((active[taken][across.row], active[rest][across.col]))
        filled += across.nnz
        if filled > most_fill * max(dimension, 1):
            return None
        chosen.append(active[taken])
        link = sparse.csr_matrix(across)
        graph = _cleaned(graph[rest][:, rest] + link.T @ link)
        active = active[rest]
    first = np.concatenate([np.flatnonzero(inside), active])
    if len(first) > most_dense:
        return None
    blocks = chosen[::-1]
    order = np.concatenate([first, *blocks]).astype(int)
    bounds = np.cumsum([0, *(len(block) for block in blocks)])
    places = np.argsort(order) - len(first)
    tails = np.concatenate([np.empty(0, int), *(places[a] for a, _ in edges)])
    heads = np.concatenate([np.empty(0, int), *(places[b] for _, b in edges)])
    kept = heads >= 0  # what was left is dense, and no entry of N
    tails, heads = tails[kept], heads[kept]
    by_row = np.lexsort((heads, tails))
    tails, heads = tails[by_row], heads[by_row]
    given = sparse.coo_matrix(pattern)
    known = places[given.row] * dimension + places[given.col]
    keys = tails * dimension + heads  # sorted
    at = np.searchsorted(keys, known)
    known, at = known[at < len(keys)], at[at < len(keys)]
    own = np.zeros(len(keys), bool)
    own[at[keys[at] == known]] = True
    return Elimination(order, len(first), bounds, tails, heads, own)


def _cleaned(graph: sparse.csr_matrix) -> sparse.csr_matrix:
    """Ones where two different coordinates touch."""
    found = sparse.coo_matrix(graph)
    apart = found.row != found.col
    ones = np.ones(int(apart.sum()), np.int32)  # products count neighbours: no 8 bits
    joined = sparse.csr_matrix((ones, (found.row[apart], found.col[apart])), found.shape)
    joined.data[:] = 1
    return joined


def _independent(graph: sparse.csr_matrix, rng: np.random.Generator) -> np.ndarray:
    """Coordinates of few neighbours, no two of which touch, as many as possible."""
    degree = np.diff(graph.indptr)
    free = degree <= 2 * degree.min() + 2
    taken = np.zeros(len(degree), bool)
    rows = np.repeat(np.arange(len(degree)), degree)
    while free.any():
        rank = np.where(free, rng.permutation(len(degree)) + degree * len(degree), np.inf)
        least = np.full(len(degree), np.inf)
        np.minimum.at(least, rows, rank[graph.indices])
        best = free & (rank < least)
        taken |= best
        free &= ~best
        free[graph.indices[best[rows]]] = False
    return taken
