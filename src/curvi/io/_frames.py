"""Tables of columns that are read some rows at a time, text among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from curvi._core.errors import InputError, optional_import

_ROWS = 2**17  # of a part
_TABLES = (".parquet", ".csv", ".tsv")


def frames(
    path: str | os.PathLike[str], *, columns: Sequence[str] | None = None
) -> Callable[[], Iterator[Any]]:
    """Parts of a table in a file, as pandas DataFrames, for ``MixedModel.fit``.

    Text files are read twice, first for what is in their columns: one that is text anywhere is
    text in every part, so that a level ``007`` is the same in all of them.

    Parameters
    ----------
    path : path
        ``.parquet`` (with pyarrow), ``.csv`` or ``.tsv``.
    columns : sequence of str, optional
        Which columns are read; all by default.

    Returns
    -------
    callable
        Returns a fresh iterator of DataFrames whenever it is called.

    Raises
    ------
    InputError
        For a file of another kind.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    place = Path(path)
    if place.suffix not in _TABLES:
        known = ", ".join(_TABLES)
        raise InputError(f"{place} has the suffix {place.suffix!r}; tables are read from {known}")
    chosen = None if columns is None else list(columns)
    import pandas as pd  # dear, and often not needed

    if place.suffix != ".parquet":
        separator = "\t" if place.suffix == ".tsv" else ","
        # low_memory would infer dtypes of a part piece by piece
        options = {"sep": separator, "usecols": chosen, "chunksize": _ROWS, "low_memory": False}
        read = partial(pd.read_csv, place, **options)
        return lambda: iter(read(dtype=_kinds(read())))
    parquet = optional_import("pyarrow.parquet", extra="parquet", purpose="reading Parquet")

    def parts() -> Iterator[Any]:
        with parquet.ParquetFile(place, pre_buffer=False) as file:  # else all of it is read ahead
            for batch in file.iter_batches(_ROWS, columns=chosen):
                yield batch.to_pandas()

    return parts


def _kinds(parts: Iterable[Any]) -> dict[str, Any]:
    """One dtype for each column, of numbers where all parts have numbers, and text otherwise."""
    found: dict[str, set[Any]] = {}
    for part in parts:
        for name, kind in part.dtypes.items():
            found.setdefault(name, set()).add(kind)
    return {name: _common(kinds) for name, kinds in found.items()}


def _common(kinds: set[Any]) -> Any:
    families = {kind.kind for kind in kinds}
    numeric = families <= set("iuf") or families == {"b"}
    return np.result_type(*kinds) if numeric else str
