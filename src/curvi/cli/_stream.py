"""``curvi fit`` of Parquet: a table like any other, or blocks where it is long."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from curvi._core.errors import InputError, optional_import
from curvi._core.files import reading
from curvi.cli._launch import shared_mesh
from curvi.cli._table import FittedTable, choose_model, estimator_of
from curvi.io import RowBlocks, rows

SMALL = 2**26  # bytes of a table that is read as a whole, text columns and all
_GROWTH = 200  # times the size of a file that its texts may have beyond that
_NUMBER = 8  # bytes


def is_long(path: Path) -> bool:
    """Whether a Parquet file holds more than is read as a whole, once it is unpacked.

    Its footer tells the bytes of its columns before compression, but repeated values are stored
    once even there: a cell counts as a number at least.
    """
    if path.suffix != ".parquet":
        return False
    parquet = optional_import("pyarrow.parquet", extra="parquet", purpose="reading Parquet")
    with reading(path):
        footer = parquet.read_metadata(path)
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    stored = sum(group.total_byte_size for group in groups)
    return bool(max(stored, _NUMBER * footer.num_rows * footer.num_columns) > SMALL)


def as_text(path: Path, folder: str) -> Path:
    """A Parquet file as a CSV file in a folder; any other file as it is."""
    if path.suffix in (".npy", ".npz"):
        raise InputError(
            f"{path} holds arrays of NumPy, whose columns have no names; write a CSV or Parquet "
            "file, or fit the arrays in Python"
        )
    if path.suffix != ".parquet":
        return path
    parquet = optional_import("pyarrow.parquet", extra="parquet", purpose="reading Parquet")
    written = Path(folder) / f"{path.stem}.csv"
    with reading(path):
        # A text that is repeated stays one until it is known what all of them would take.
        kinds = parquet.read_schema(path)
        texts = [field.name for field in kinds if str(field.type) in ("string", "large_string")]
        table = parquet.read_table(path, read_dictionary=texts)
        require_modest(path, table)
        frame = table.to_pandas()
    frame.to_csv(written, index=False, float_format="%.17g")
    return written


def require_modest(path: Path, table: Any) -> None:
    """Refuse a table whose texts, written out, take many times the size of its file."""
    from pyarrow import compute

    size = 0
    for column in table.itercolumns():
        for chunk in column.chunks if str(column.type).startswith("dictionary<values=str") else ():
            lengths = compute.binary_length(chunk.dictionary).take(chunk.indices)
            size += compute.sum(lengths).as_py() or 0
    if size > max(SMALL, _GROWTH * path.stat().st_size):
        raise InputError(
            f"{path} holds {size} bytes of text, more than {_GROWTH} times its size, because it "
            "repeats long texts; leave these columns out of the file, or shorten them"
        )


def fit_stream(
    path: Path, *, target: str, model: str, ignore: tuple[str, ...], checkpoint: Any,
    **options: Any,
) -> FittedTable:  # fmt: skip
    """Fit the rows of a file that stay on disk; every pass reads them again.

    Raises
    ------
    InputError
        The target does not fit the model, several models are possible, or several processes were
        launched: each would read and fit all rows.
    """
    if shared_mesh() is not None:
        raise InputError(
            f"{path} is read in blocks by one process, whose threads share the cores; leave "
            "'curvi launch' out"
        )
    blocks = rows(path, target=target)
    if ignore:
        kept = [name for name in blocks.columns if name not in ignore]
        blocks = rows(path, target=target, columns=kept)
    values, count = _distinct(blocks)
    texts = tuple(f"{value:.15g}" if value.dtype.kind in "biuf" else str(value) for value in values)
    chosen, reason = choose_model(texts, target) if model == "auto" else (model, "chosen")
    estimator = estimator_of(chosen, options)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict says it
        try:
            estimator.fit_blocks(blocks, checkpoint=checkpoint)
        except ValueError as error:
            raise InputError(" ".join(str(error).split())) from error
    return FittedTable(
        estimator=estimator,
        model=chosen,
        reason=f"{reason}, read in blocks",
        target=target,
        names=blocks.columns,
        classes=texts if chosen == "logistic" else (),
        spread=estimator._posterior.columns.scale,
        num_rows=count,
        seconds=time.perf_counter() - began,
    )


def _distinct(blocks: RowBlocks) -> tuple[np.ndarray, int]:
    """Values of the target, each once, and the number of rows; one pass over the file."""
    found, count = np.zeros(0), 0
    for _, y in blocks():
        unique = np.unique(y)
        found = np.unique(np.concatenate([found.astype(unique.dtype), unique]))
        count += len(y)
    if len(found) < 2:
        raise InputError(f"the target has {len(found)} value(s); there is nothing to explain")
    return found, count
