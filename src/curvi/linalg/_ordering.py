r"""Who is eliminated when: supernodes of a sparse symmetric matrix, and stages of supernodes.

Supernodes of one stage do not touch each other, whatever was eliminated before, so that a stage is
a few array operations. Four orders, found from the graph alone:

- *blocks*: connected components that are small, each at once (groups);
- *layers*: a long thin graph is block tridiagonal in its distances from one end, and eliminated by
  cyclic reduction (chains);
- *rounds*: independent coordinates of few neighbours, then those of what they leave (trees,
  crossed factors), as `curvi.linalg.eliminate`;
- *dissection*: every part is halved by a separator, again and again (lattices).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from curvi.linalg._elimination import eliminate


class Order(NamedTuple):
    """Supernode of each coordinate, counted from zero, and the stage of each supernode."""

    label: np.ndarray
    stage: np.ndarray


@dataclass(frozen=True)
class Ordering:
    """What decides between the orders.

    Attributes
    ----------
    dense : int
        Matrices up to this size are one supernode.
    leaf : int
        Parts up to this size are not dissected any more.
    thin : float
        A graph has layers if those are at most so many times as wide as a coordinate's neighbours.
    fill : float
        Rounds are given up when they fill in so many times the entries of the matrix.
    soon : int
        What is dense after so many rounds has no small separators: nothing is dissected.
    dense_end : float
        A dissection is taken at once if its largest separator, which is dense in the end, has at
        most so many times the entries of the matrix.
    """

    dense: int = 48
    leaf: int = 12
    thin: float = 2.5
    fill: float = 3.0
    soon: int = 4
    dense_end: float = 1.0

    def candidates(self, graph: sparse.csr_array, places: np.ndarray | None) -> list[Order]:
        """Orders of a graph without loops; the cheapest is taken."""
        size = graph.shape[0]
        count, component = csgraph.connected_components(graph, directed=False)
        if count > 1 and np.bincount(component).max() <= self.leaf:
            return [Order(component.astype(np.int64), np.zeros(count, np.int64))]
        if size <= self.dense:
            return [Order(np.zeros(size, np.int64), np.zeros(min(size, 1), np.int64))]
        layers = _layers(graph, component)
        degree = graph.nnz / size
        if _mean_width(layers) <= self.thin * (degree + 1):
            return [_dense_in_the_end(layers, self.dense)]
        rounds = _rounds(graph, self.fill * degree)
        if rounds is not None and rounds.stage.max() <= self.soon:
            return [rounds]
        dissection = _dissection(graph, places, self.leaf)
        if rounds is None or _largest(dissection) ** 2 <= self.dense_end * graph.nnz:
            return [dissection]
        return [rounds, dissection]


def distinct(keys: np.ndarray) -> np.ndarray:
    """Sorted keys, each once; NumPy's own hashes them, which takes ten times as long."""
    ordered = np.sort(keys)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


def _mean_width(layers: Order) -> float:
    """Of the layers, as their coordinates see it: the work of a layer is its width cubed."""
    width = np.bincount(layers.label).astype(float)
    return float(np.sqrt((width**3).sum() / width.sum()))


def _largest(order: Order) -> int:
    return int(np.bincount(order.label).max())


def distances(graph: sparse.csr_array, starts: np.ndarray) -> np.ndarray:
    """Steps to the nearest of the starts; every component holds one."""
    size = graph.shape[0]
    indptr = np.append(graph.indptr, graph.nnz + len(starts)).astype(np.int32)
    indices = np.append(graph.indices, starts).astype(np.int32)
    shape = (size + 1, size + 1)
    wide = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape)
    order, before = csgraph.breadth_first_order(wide, size, directed=True)
    rank = np.empty(size + 1, np.int64)
    rank[order] = np.arange(len(order))
    parents = rank[before[order[1:]]]  # do not fall: one generation after the other
    ends, end = [1], 1
    while end < len(order):
        end = 1 + int(np.searchsorted(parents, end))
        ends.append(end)
    out = np.full(size + 1, -1)
    out[order] = np.searchsorted(ends, np.arange(len(order)), side="right")
    return out[:size] - 1


def _best_of(component: np.ndarray, score: np.ndarray) -> np.ndarray:
    """The coordinate of the largest score in every component."""
    order = np.lexsort((score, component))
    last = np.append(np.diff(component[order]) != 0, True)
    return order[last]


def _far_ends(graph: sparse.csr_array, component: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances from one end of every component, and from the other."""
    degree = np.diff(graph.indptr)
    first = distances(graph, _best_of(component, -degree))
    one = distances(graph, _best_of(component, first))
    return one, distances(graph, _best_of(component, one))


def _layers(graph: sparse.csr_array, component: np.ndarray) -> Order:
    """Cyclic reduction: of layers 1, 2, ... the odd ones first, then those of what they leave."""
    away = _far_ends(graph, component)[0]
    keys, label = np.unique(component * (away.max() + 1) + away, return_inverse=True)
    layer = keys % (away.max() + 1) + 1
    return Order(label, np.log2(layer & -layer).astype(np.int64))


def _dense_in_the_end(order: Order, most: int) -> Order:
    """The last stages as one supernode, of ``most`` coordinates: few calls, each of little work."""
    sizes = np.bincount(order.stage[order.label])
    left = np.cumsum(sizes[::-1])[::-1]  # coordinates of each stage and the later ones
    last = int(np.searchsorted(-left, -most))
    if last >= len(sizes):
        return order
    joined = order.stage >= last
    names = np.where(joined, 0, np.cumsum(~joined))
    stage = np.append(last, order.stage[~joined])
    return Order(names[order.label], stage)


def _rounds(graph: sparse.csr_array, fill: float) -> Order | None:
    """Independent coordinates of few neighbours, again and again; equal neighbours go together."""
    size = graph.shape[0]
    marks = np.random.default_rng(0).integers(1, 2**40, size)
    ones = sparse.csr_array(
        (np.ones(graph.nnz, np.int64), graph.indices, graph.indptr), graph.shape
    )
    _, first, twin = np.unique(ones @ marks + marks, return_index=True, return_inverse=True)
    found = eliminate(
        graph[first][:, first], np.empty(0, int), most_dense=len(first), most_fill=fill
    )
    if found is None:
        return None
    reversed_order = found.order[::-1]  # the first round first; the dense block is one supernode
    label = np.empty(len(first), np.int64)
    label[reversed_order] = np.minimum(np.arange(len(first)), found.num_locals)
    rounds = np.repeat(np.arange(len(found.bounds) - 1), np.diff(found.bounds))
    stage = np.append(rounds[::-1].max(initial=-1) - rounds[::-1], len(found.bounds) - 1)
    return Order(label[twin], stage[: label.max() + 1])


def _dissection(graph: sparse.csr_array, places: np.ndarray | None, leaf: int) -> Order:
    """Halve all parts at once until they are leaves."""
    size = graph.shape[0]
    label, depth = np.full(size, -1), np.zeros(0, np.int64)
    active, level = np.arange(size), 0
    while len(active):
        part = graph[active][:, active]
        count, component = csgraph.connected_components(part, directed=False)
        small = np.bincount(component, minlength=count) <= leaf
        cut = small[component]
        if not small.all():
            cut |= _separators(part, component, small, None if places is None else places[active])
        names, supernode = np.unique(component[cut], return_inverse=True)
        label[active[cut]] = len(depth) + supernode
        depth = np.concatenate([depth, np.full(len(names), level)])
        active, level = active[~cut], level + 1
    return Order(label, level - 1 - depth)


def _separators(
    graph: sparse.csr_array, component: np.ndarray, small: np.ndarray, places: np.ndarray | None
) -> np.ndarray:
    """Which coordinates separate two halves of every component that is not small."""
    one, other = _far_ends(graph, component)
    scores = [one, one - other]
    if places is not None:
        scores += [np.nan_to_num(column) for column in places.T]
    tails = np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))
    smallest = np.full(len(small), np.inf)
    chosen = np.zeros(graph.shape[0], bool)
    for score in scores:
        upper = _upper_half(component, score)
        halves = np.bincount(component, upper, len(small))
        split = (halves > 0) & (halves < np.bincount(component, minlength=len(small))) & ~small
        for side in (upper, ~upper):
            across = np.zeros(graph.shape[0], bool)
            across[tails[side[tails] & ~side[graph.indices]]] = True
            sizes = np.bincount(component, across, len(small))
            better = split & (sizes < smallest)
            smallest = np.where(better, sizes, smallest)
            chosen = np.where(better[component], across, chosen)
    return chosen | ~np.isfinite(smallest)[component]  # what nothing splits is one supernode


def _upper_half(component: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Coordinates whose score is above about the median of their component."""
    order = np.lexsort((score, component))
    starts = np.flatnonzero(np.diff(component[order], prepend=-1))
    counts = np.diff(np.append(starts, len(order)))
    middle = score[order[starts + counts // 2]]
    lowest = score[order[starts]]
    above = score > middle[component]
    # A median that is the lowest value leaves no lower half: then the ties are the lower half.
    return np.where((middle > lowest)[component], score >= middle[component], above)
