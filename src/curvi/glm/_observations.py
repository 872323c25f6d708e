"""The rows of a fit as the estimators see them: arrays in memory, or blocks of a stream."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi.glm._blocks import Block
from curvi.glm._bound import Rows
from curvi.glm._columns import Columns, Moments
from curvi.glm._tables import StreamedRows, StreamedTables

Encode = Callable[[np.ndarray], np.ndarray]


class Observations(abc.ABC):
    """Checked rows of positive weight."""

    dtype: np.dtype[Any]
    columns: Moments
    labels: np.ndarray

    @abc.abstractmethod
    def responses(self, encode: Encode) -> Moments:
        """Total weight, weighted mean and variance of the responses."""

    @abc.abstractmethod
    def rows(
        self, columns: Columns, prior: np.ndarray, noise: float, encode: Encode
    ) -> Rows | StreamedRows:
        """The rows in fitted units."""


@dataclass(frozen=True)
class Arrays(Observations):
    """A table in memory, dense or sparse."""

    X: Any
    y: np.ndarray
    weight: np.ndarray
    labels_of: Encode

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """Precision of the table."""
        return self.X.dtype

    @cached_property
    def columns(self) -> Moments:  # type: ignore[override]
        """Moments of the columns."""
        return Moments.of(self.X, self.weight)

    @cached_property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        """The classes that occur."""
        return self.labels_of(self.y)

    def responses(self, encode: Encode) -> Moments:
        """Total weight, weighted mean and variance of the responses."""
        return Moments.of(encode(self.y)[:, None], self.weight)

    def rows(self, columns: Columns, prior: np.ndarray, noise: float, encode: Encode) -> Rows:
        """The rows in fitted units, all at once."""
        design = columns.design(self.X)
        return Rows(design, encode(self.y), self.weight, prior, np.asarray(noise, self.dtype))


class Stream(Observations):
    """Blocks of rows; the first pass, made here, measures them. Sums do not depend on the cut."""

    def __init__(self, blocks: Iterable[Block], labels_of: Encode) -> None:
        self._blocks = blocks
        self._num_rows, self.dtype = 0, np.dtype(np.float32)
        columns: Moments | None = None
        labels: list[np.ndarray] = []
        for block in blocks:
            self._num_rows += block.y.shape[0]
            self.dtype = np.promote_types(self.dtype, block.X.dtype)
            here = Moments.of(block.X, block.weight)
            columns = here if columns is None else columns.merged(here)
            labels = [np.unique(np.concatenate([*labels, labels_of(block.y)]))]
        if columns is None:
            raise InputError("blocks gave no rows of positive weight; a fit needs at least one")
        self.columns, self.labels = columns, labels[0]

    def responses(self, encode: Encode) -> Moments:
        """Total weight, weighted mean and variance of the responses, in one pass."""
        total: Moments | None = None
        for block in self._blocks:
            here = Moments.of(encode(block.y)[:, None], block.weight)
            total = here if total is None else total.merged(here)
        if total is None:
            raise InputError("blocks gave rows at first and none later; every pass must be alike")
        return total

    def rows(
        self, columns: Columns, prior: np.ndarray, noise: float, encode: Encode
    ) -> StreamedRows:
        """The rows in fitted units, as a stream."""

        def source() -> Iterator[tuple[np.ndarray, ...]]:
            count = 0
            for block in self._blocks:
                count += block.y.shape[0]
                design = columns.dense(block.X.astype(self.dtype, copy=False))
                yield design, encode(block.y), block.weight.astype(self.dtype, copy=False)
            if count != self._num_rows:
                raise InputError(
                    f"blocks gave {self._num_rows} rows at first and {count} later; every pass "
                    "must give the same rows"
                )

        tables = StreamedTables(source, self._num_rows)
        return StreamedRows(tables, prior, noise)
