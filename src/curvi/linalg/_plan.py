"""How matrices of a pattern are factorised: found once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from curvi.linalg._fronts import Fronts, fronts, supernodes
from curvi.linalg._ordering import Ordering


@dataclass(frozen=True)
class Plan:
    """The order of elimination, and where the entries of a pattern are used.

    Attributes
    ----------
    order, border : array of int
        Coordinates in the order of elimination, and those that come last.
    fronts : Fronts
        Of the part without border.
    inner, across, corner : array of int
        Positions of entries: outside of the border, between it and the rest, and inside of it.
        Entries inside stand twice, once for each triangle.
    """

    order: np.ndarray
    border: np.ndarray
    fronts: Fronts
    inner: np.ndarray
    inner_rows: np.ndarray
    inner_columns: np.ndarray
    across: np.ndarray
    across_rows: np.ndarray
    across_columns: np.ndarray
    corner: np.ndarray
    corner_rows: np.ndarray
    corner_columns: np.ndarray

    @property
    def size(self) -> int:
        """Coordinates outside of the border."""
        return len(self.order)


def plan(
    rows: np.ndarray,
    columns: np.ndarray,
    size: int,
    border: np.ndarray,
    places: np.ndarray | None,
    ordering: Ordering,
) -> Plan:
    """Analyse the lower triangle of a pattern."""
    outside = np.ones(size, bool)
    outside[border] = False
    within = np.flatnonzero(outside)
    number = np.empty(size, np.int64)
    number[within], number[border] = np.arange(len(within)), np.arange(len(border))
    both = outside[rows].astype(int) + outside[columns]
    inner, across, corner = (np.flatnonzero(both == k) for k in (2, 1, 0))
    one, other = number[rows[inner]], number[columns[inner]]
    apart = one != other
    ends = np.concatenate([one[apart], other[apart]]), np.concatenate([other[apart], one[apart]])
    shape = (len(within), len(within))
    graph = sparse.csr_array((np.ones(len(ends[0]), np.int32), ends), shape=shape)
    found = ordering.candidates(graph, None if places is None else places[within])
    nodes = min((supernodes(graph, one) for one in found), key=lambda made: made.work())
    position = nodes.position
    swapped = outside[columns[across]]  # the column lies outside of the border
    across_inner = np.where(swapped, columns[across], rows[across])
    across_border = np.where(swapped, rows[across], columns[across])
    upper = rows[corner] != columns[corner]
    corner_rows, corner_columns = number[rows[corner]], number[columns[corner]]
    return Plan(
        order=within[np.argsort(position)],
        border=border,
        fronts=fronts(nodes, one, other),
        inner=inner,
        inner_rows=position[one],
        inner_columns=position[other],
        across=across,
        across_rows=position[number[across_inner]],
        across_columns=number[across_border],
        corner=np.concatenate([corner, corner[upper]]),
        corner_rows=np.concatenate([corner_rows, corner_columns[upper]]),
        corner_columns=np.concatenate([corner_columns, corner_rows[upper]]),
    )
