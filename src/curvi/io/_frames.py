"""Tables of columns that are read some rows at a time, text among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from curvi._core.errors import InputError, optional_import

_ROWS = 2**17  # of a part
_TABLES = (".parquet", ".csv", ".tsv")


def frames(
    path: str | os.PathLike[str], *, columns: Sequence[str] | None = None
) -> Callable[[], Iterator[Any]]:
    """Parts of a table in a file, as pandas DataFrames, for ``MixedModel.fit``.

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
        return lambda: iter(pd.read_csv(place, sep=separator, usecols=chosen, chunksize=_ROWS))
    parquet = optional_import("pyarrow.parquet", extra="parquet", purpose="reading Parquet")

    def parts() -> Iterator[Any]:
        with parquet.ParquetFile(place) as file:
            for batch in file.iter_batches(_ROWS, columns=chosen):
                yield batch.to_pandas()

    return parts
