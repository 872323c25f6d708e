"""Tables of columns that are read some rows at a time, text among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from curvi._core.errors import InputError, optional_import
from curvi._core.files import reading

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
        options = {
            "sep": separator,
            "usecols": None if chosen is None else chosen.__contains__,
            "chunksize": _ROWS,
            "low_memory": False,
        }
        read = partial(pd.read_csv, place, **options)

        def texts() -> Iterator[Any]:
            with reading(place), read(dtype=_kinds(read())) as table:
                for part in table:
                    yield _with_columns(part, chosen, place)

        return texts
    parquet = optional_import("pyarrow.parquet", extra="parquet", purpose="reading Parquet")

    def parts() -> Iterator[Any]:
        # With pre_buffer all of it would be read ahead.
        with reading(place), parquet.ParquetFile(place, pre_buffer=False) as file:
            for batch in file.iter_batches(_ROWS, columns=chosen):
                yield _with_columns(batch.to_pandas(), chosen, place)

    return parts


def _with_columns(part: Any, columns: list[str] | None, path: Path) -> Any:
    if missing := [name for name in columns or () if name not in part.columns]:
        raise InputError(f"{path} has no column {missing[0]!r}; choose others in columns=")
    return part


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
