r"""Symbolic analysis: which fronts a factorisation has, how they are stored and what they hand on.

A *front* is the dense part of the matrix that eliminating a supernode touches: its own s columns,
and r later coordinates. Fronts of one height in the elimination tree and of about the same size
lie in one *bucket*, as one array (`curvi.linalg._layout`), padded: own columns with the identity,
later rows with zeros. All buckets lie in one flat array.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse

from curvi.linalg._layout import Layout, layout_of
from curvi.linalg._ordering import Order, distinct


class Supernodes(NamedTuple):
    """Supernodes in the order of elimination, as ragged arrays."""

    position: np.ndarray  # of each coordinate
    own_starts: np.ndarray  # (count + 1,) positions of own columns
    later: np.ndarray  # positions of later coordinates, supernode after supernode, sorted
    later_starts: np.ndarray  # (count + 1,)
    parent: np.ndarray  # -1 for a root

    @property
    def own(self) -> np.ndarray:
        """Number of own columns."""
        return np.diff(self.own_starts)

    @property
    def reach(self) -> np.ndarray:
        """Number of later coordinates."""
        return np.diff(self.later_starts)

    def work(self) -> float:
        """About the floating-point operations of a factorisation, padding left out."""
        own, reach = self.own.astype(float), self.reach.astype(float)
        return float((own**3 / 3 + own**2 * reach + own * reach**2).sum() + (reach**2 * 20).sum())


def supernodes(graph: sparse.csr_array, order: Order) -> Supernodes:
    """What fills in, stage by stage."""
    size, count = graph.shape[0], len(order.stage)
    by_stage = np.argsort(order.stage, kind="stable")
    renamed = np.argsort(by_stage)[order.label]
    stage = order.stage[by_stage]
    position = np.argsort(np.argsort(renamed, kind="stable"))
    owner = np.sort(renamed)  # of each position
    tails = np.repeat(renamed, np.diff(graph.indptr))
    forward = renamed[graph.indices] > tails
    keys = distinct(tails[forward] * size + position[graph.indices[forward]])
    starts = np.searchsorted(stage, np.arange(stage.max(initial=-1) + 2))
    edges = np.searchsorted(keys, starts * size)
    inherited: list[list[np.ndarray]] = [[] for _ in range(len(starts) - 1)]
    parent, parts = np.full(count, -1), []
    for now in range(len(starts) - 1):
        own = np.concatenate([keys[edges[now] : edges[now + 1]], *inherited[now]])
        inherited[now] = []
        own = distinct(own)
        parts.append(own)
        holder, later = np.divmod(own, size)
        first = np.flatnonzero(np.diff(holder, prepend=-1))
        parent[holder[first]] = owner[later[first]]
        heir = parent[holder]
        passed = owner[later] != heir
        handed, when = (heir * size + later)[passed], stage[heir[passed]]
        for then in np.unique(when):
            inherited[then].append(handed[when == then])
    whole = np.concatenate(parts) if parts else np.empty(0, np.int64)
    holder, later = np.divmod(whole, max(size, 1))
    later_starts = np.searchsorted(holder, np.arange(count + 1))
    own_starts = np.searchsorted(owner, np.arange(count + 1))
    return Supernodes(position, own_starts, later, later_starts, parent)


@dataclass(frozen=True)
class Bucket:
    """Fronts of one height and size.

    Attributes
    ----------
    start, stop : int
        Where they lie in the flat array.
    own : array, shape (count, s)
        Positions of own columns; that of the padding is the size of the matrix.
    later : array, shape (count, r)
        Positions of later coordinates, padded likewise.
    base, stride, step : array, shape (count,)
        Where the parent's front begins in the flat array, and how far its rows and its columns are
        from each other.
    inside : array, shape (count, r)
        Where later coordinates stand in the parent's front; zero in the padding.
    layout : Layout
        How the fronts lie beside each other.
    """

    start: int
    stop: int
    own: np.ndarray
    later: np.ndarray
    base: np.ndarray
    stride: np.ndarray
    step: np.ndarray
    inside: np.ndarray
    layout: Layout

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Number of fronts, own columns, later coordinates."""
        return len(self.own), self.own.shape[1], self.later.shape[1]

    @cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of own columns and of later coordinates, as the fronts lie."""
        return self.layout.index(self.own), self.layout.index(self.later)

    @property
    def width(self) -> int:
        """Of a front."""
        return self.own.shape[1] + self.later.shape[1]

    @cached_property
    def targets(self) -> np.ndarray:
        """Where the parents' fronts hold the square of all later coordinates."""
        rows = self.base[:, None] + self.inside * self.stride[:, None]
        columns = self.inside * self.step[:, None]
        return self.layout.index(rows[:, :, None] + columns[:, None, :])

    @cached_property
    def triangle(self) -> tuple[np.ndarray, np.ndarray]:
        """What goes to the parents: places in the fronts' rest, and in the flat array."""
        count, _, r = self.shape
        square = np.arange(count * r**2).reshape(self.layout.index(np.empty((count, r, r))).shape)
        low = self.layout.index(np.broadcast_to(np.tri(r, dtype=bool), (count, r, r)))
        return square[low], self.targets[low]

    @cached_property
    def sums(self) -> Sums:
        """Contributions to vectors at later coordinates."""
        return Sums.of(self.layout.index(self.later).ravel())


class Sums(NamedTuple):
    """Sums of contributions that share a target."""

    by_target: np.ndarray
    starts: np.ndarray
    targets: np.ndarray

    @classmethod
    def of(cls, targets: np.ndarray) -> Sums:
        """Of contributions in the order of their targets."""
        by_target = np.argsort(targets, kind="stable")
        ordered = targets[by_target]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        return cls(by_target, starts, ordered[starts])

    def subtract(self, vectors: np.ndarray, contributions: np.ndarray) -> None:
        """From vectors (points, size + 1, k) contributions (points, count, k)."""
        if len(self.targets):
            moved = np.take(contributions, self.by_target, axis=1)
            if len(self.starts) < moved.shape[1]:
                moved = np.add.reduceat(moved, self.starts, axis=1)
            vectors[:, self.targets] -= moved


class Fronts(NamedTuple):
    """All buckets, children before parents, and where the entries of a pattern lie."""

    buckets: list[Bucket]
    entries: np.ndarray  # in the flat array, of the lower triangle
    ones: np.ndarray  # places of the diagonal of the padding
    total: int  # length of the flat array


def fronts(nodes: Supernodes, rows: np.ndarray, columns: np.ndarray) -> Fronts:
    """Lay out the fronts of supernodes, for entries at rows and columns of the matrix."""
    size, count = len(nodes.position), len(nodes.parent)
    height = _heights(nodes.parent)
    bucket_of = _sorted_into_buckets(height, nodes.own, nodes.reach)
    base, start = np.zeros(count, np.int64), 0
    strides, steps = np.zeros(count, np.int64), np.zeros(count, np.int64)
    shapes, members = [], []
    for b in range(bucket_of.max(initial=-1) + 1):
        inside = np.flatnonzero(bucket_of == b)
        s, r = int(nodes.own[inside].max()), int(nodes.reach[inside].max())
        layout = layout_of(s, r, len(inside))
        if layout.side_by_side:
            base[inside], steps[inside] = start + np.arange(len(inside)), len(inside)
        else:
            base[inside], steps[inside] = start + np.arange(len(inside)) * (s + r) ** 2, 1
        strides[inside] = (s + r) * steps[inside]
        shapes.append((start, s, r, layout))
        members.append(inside)
        start += len(inside) * (s + r) ** 2
    own_padded = np.asarray([s for _, s, _, _ in shapes], np.int64)[bucket_of]
    # Where later coordinates stand in the own front, as one sorted table over all fronts.
    holder = np.repeat(np.arange(count), nodes.reach)
    place = np.arange(len(holder)) - nodes.later_starts[holder] + own_padded[holder]
    table = holder * size + nodes.later
    owner = np.repeat(np.arange(count), nodes.own)

    def local(front: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Where positions stand in fronts: own columns first, then later coordinates."""
        own = position - nodes.own_starts[front]
        if not len(table):
            return own
        found = np.minimum(np.searchsorted(table, front * size + position), len(table) - 1)
        return np.where(owner[position] == front, own, place[found])

    inside_parent = local(nodes.parent[holder], nodes.later)
    buckets, ones = [], []
    for (begin, s, r, layout), inside in zip(shapes, members, strict=True):
        own = _padded(np.arange(size), nodes.own_starts, inside, s, size)
        later = _padded(nodes.later, nodes.later_starts, inside, r, size)
        within = _padded(inside_parent, nodes.later_starts, inside, r, 0)
        above = nodes.parent[inside]
        stop = begin + len(inside) * (s + r) ** 2
        parents = base[above], strides[above], steps[above]
        buckets.append(Bucket(begin, stop, own, later, *parents, within, layout))
        front, column = np.nonzero(own == size)
        ones.append(base[inside][front] + column * (strides + steps)[inside][front])
    one, other = nodes.position[rows], nodes.position[columns]
    first, second = np.minimum(one, other), np.maximum(one, other)
    front = owner[first]
    entries = base[front] + local(front, second) * strides[front]
    entries += (first - nodes.own_starts[front]) * steps[front]
    return Fronts(buckets, entries, np.concatenate([np.empty(0, np.int64), *ones]), start)


def _heights(parent: np.ndarray) -> np.ndarray:
    """Above the deepest leaf below; children come before their parents."""
    below, height = np.flatnonzero(parent >= 0), np.zeros(len(parent), np.int64)
    while True:
        reached = np.zeros_like(height)
        np.maximum.at(reached, parent[below], height[below] + 1)
        if (reached == height).all():
            return height
        height = reached


def _sorted_into_buckets(
    height: np.ndarray, own: np.ndarray, reach: np.ndarray, calls: float = 3e5
) -> np.ndarray:
    """Fronts of one height whose sizes are alike; few are joined rather than called apart."""
    kinds = np.stack([height, _rounded(own), _rounded(reach)])
    kinds, kind, counts = np.unique(kinds, axis=1, return_inverse=True, return_counts=True)
    bucket = np.zeros(len(counts), np.int64)
    joined = (-1, 0, 0, 0)  # height, own, reach, count
    for k, (now, s, r) in enumerate(kinds.T):
        count = int(counts[k])
        wide = (int(now), max(joined[1], int(s)), max(joined[2], int(r)), joined[3] + count)
        apart = _work(*joined[1:]) + _work(int(s), int(r), count)
        together = now == joined[0] and _work(*wide[1:]) <= apart + calls
        bucket[k] = bucket[k - 1] + (not together) if k else 0
        joined = wide if together else (int(now), int(s), int(r), count)
    return bucket[kind.reshape(-1)]


def _work(own: int, reach: int, count: int) -> float:
    """About the operations on a bucket; moving a number costs as much as some twenty."""
    return count * (own + 20.0) * (own + reach) ** 2


def _rounded(sizes: np.ndarray) -> np.ndarray:
    """Up to four steps per octave."""
    step = np.maximum(1, 2 ** (np.floor(np.log2(np.maximum(sizes, 1))) - 2)).astype(np.int64)
    return -(-sizes // step) * step


def _padded(
    values: np.ndarray, starts: np.ndarray, chosen: np.ndarray, width: int, fill: int
) -> np.ndarray:
    """Ragged rows as an array."""
    at = starts[chosen][:, None] + np.arange(width)
    there = at < starts[chosen + 1][:, None]
    if not len(values):
        return np.full(at.shape, fill)
    return np.where(there, values[np.minimum(at, len(values) - 1)], fill)
