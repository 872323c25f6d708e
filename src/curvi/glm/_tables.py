"""Rows of a dense design for the bound on the host: one table in memory, or a stream of blocks.

The bound is a sum over rows. It asks for tables, adds up what each gives, and does not know
whether there is one or a thousand of them: memory is bounded by the largest.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


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
    def is_binary(self) -> bool:
        """Whether the design is its own square."""
        return self.squares is self.matrix

    def blocks(self, size: int) -> list[Table]:
        """The same rows, a few at a time."""
        return [self._block(start, size) for start in range(0, self.y.shape[0], size)]

    def thinned(self, every: int) -> Table:
        """Each ``every``-th row."""
        return self if every == 1 else self._rows(slice(0, None, every))

    def _block(self, start: int, size: int) -> Table:
        return self._rows(slice(start, start + size))._replace(first=self.first + start)

    def _rows(self, part: slice) -> Table:
        matrix = self.matrix[part]
        squares = matrix if self.is_binary else self.squares[part]
        return Table(matrix, squares, self.y[part], self.weight[part], self.first)


class Tables(abc.ABC):
    """All rows, as often as they are asked for."""

    num_rows: int

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Table]:
        """A pass over all rows."""

    def thinned(self, every: int) -> WholeTable:
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
    """One table in memory, squared once; ``notes`` is for what a bound wants to remember."""

    matrix: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    squares: np.ndarray = field(init=False)
    notes: dict[Any, Any] = field(init=False, default_factory=dict)

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
