"""Rows beyond memory: blocks that are read one after another, and the next one while one is used.

Blocks are what ``fit_blocks`` of an estimator takes: an object that gives a fresh iterator of
``(X, y)`` whenever it is called. How rows are cut does not matter to the answer.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from curvi._core import validation
from curvi._core.errors import InputError, optional_import
from curvi._core.files import draft_folder, reading
from curvi.io._passes import SameRows, aligned, kept

_AHEAD = 2  # blocks that are read before they are asked for
_NUMBERS = 2**22  # of a block
_KINDS = ("int", "uint", "halffloat", "float", "double", "bool")  # of Parquet that are numbers
_SUFFIXES = {".npy": "npy", ".parquet": "parquet", ".svm": "libsvm", ".libsvm": "libsvm"}

Blocks = Callable[[], Iterator[tuple[np.ndarray, ...]]]


@dataclass(frozen=True)
class RowBlocks:
    """Blocks of rows from a file or a function; each call reads them from the beginning.

    Parameters
    ----------
    source : callable
        Returns a fresh iterator of blocks ``(X, y)`` or ``(X, y, weight)``.
    num_rows : int, optional
        Rows of all blocks together, where it is known without reading them.
    columns : tuple of str
        Names of the columns of X, in their order; empty where they have none.
    prefetch : bool
        Whether a thread reads the next blocks while one is used.
    arrays : tuple of arrays, optional
        The same rows by number, from memory or a memory map. Minibatches and auto-encoders need
        them; :meth:`to_npy` makes them.

    Examples
    --------
    >>> import numpy as np
    >>> from curvi.io import RowBlocks
    >>> X, y = np.arange(6.0).reshape(3, 2), np.arange(3.0)
    >>> blocks = RowBlocks(lambda: iter([(X[:2], y[:2]), (X[2:], y[2:])]))
    >>> sum(len(part[1]) for part in blocks())
    3
    """

    source: Blocks
    num_rows: int | None = None
    columns: tuple[str, ...] = ()
    prefetch: bool = True
    arrays: tuple[np.ndarray, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Validate the source."""
        validation.require_callable(self.source, "source", "source() -> iterator of blocks")

    def __call__(self) -> Iterator[tuple[np.ndarray, ...]]:
        """One pass over all rows; the arrays of a block are the caller's to keep."""
        return aligned(prefetched(self.source) if self.prefetch else map(kept, self.source()))

    def to_npy(self, folder: str | os.PathLike[str]) -> RowBlocks:
        """Write the rows to files that can be mapped into memory, in two passes over them.

        Parameters
        ----------
        folder : path
            Where ``0.npy`` (X), ``1.npy`` (y) and ``2.npy`` (weight) go, as far as there are such
            arrays; it is made if need be, and files in it are not replaced.

        Returns
        -------
        RowBlocks
            The same rows, which can be read by number.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        same = SameRows()
        forms = _forms(same(self()))
        paths = [place / f"{number}.npy" for number in range(len(forms))]
        if there := [path for path in paths if path.exists()]:
            raise InputError(f"{there[0]} exists; choose another folder, or delete it")
        with draft_folder(place) as unfinished:
            drafts = [unfinished / path.name for path in paths]
            _write(same(self()), drafts, forms)
            for draft, path in reversed(list(zip(drafts, paths, strict=True))):
                draft.rename(path)  # X last: where it is, all are
        mapped = tuple(np.load(path, mmap_mode="r", allow_pickle=False) for path in paths)
        return replace(of_arrays(mapped), columns=self.columns)


def _forms(blocks: Iterable[Any]) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Shape of each array of all rows, and a dtype that holds those of all blocks; one pass."""
    count = 0
    shapes: list[tuple[int, ...]] = []
    kinds: list[np.dtype] = []
    for block in blocks:
        parts = [np.asarray(part) for part in block]
        shapes = shapes or [part.shape[1:] for part in parts]
        if [part.shape[1:] for part in parts] != shapes:
            raise InputError(f"the block that begins at row {count} has arrays of another shape")
        kinds = kinds or [part.dtype for part in parts]
        kinds = [np.result_type(k, part.dtype) for k, part in zip(kinds, parts, strict=True)]
        count += len(parts[0])
    if not count:
        raise InputError("there are no rows to write")
    return [((count, *shape), kind) for shape, kind in zip(shapes, kinds, strict=True)]


def _write(
    blocks: Iterable[Any], paths: list[Path], forms: list[tuple[tuple[int, ...], np.dtype]]
) -> None:
    files = [
        np.lib.format.open_memmap(path, "w+", kind, shape)
        for path, (shape, kind) in zip(paths, forms, strict=True)
    ]
    first = 0
    for block in blocks:
        last = first + len(block[0])
        for file, rows in zip(files, block, strict=True):
            if not np.can_cast(np.asarray(rows).dtype, file.dtype) or last > len(file):
                raise InputError("the source gave other rows than at first; all passes must agree")
            file[first:last] = rows
        first = last
    for file in files:
        file.flush()


def prefetched(source: Blocks) -> Iterator[tuple[np.ndarray, ...]]:
    """The blocks of a source, read ahead by a thread; an error in it is raised here."""
    blocks = map(kept, source())
    end: Any = object()
    with ThreadPoolExecutor(1) as reader:
        ahead = deque(reader.submit(next, blocks, end) for _ in range(_AHEAD))
        while (block := ahead.popleft().result()) is not end:
            ahead.append(reader.submit(next, blocks, end))
            yield block


def of_arrays(arrays: tuple[np.ndarray, ...]) -> RowBlocks:
    """Blocks of arrays that share their leading axis."""
    count = len(arrays[0])
    width = sum(math.prod(array.shape[1:]) for array in arrays)
    size = max(1, _NUMBERS // max(width, 1))

    def source() -> Iterator[tuple[np.ndarray, ...]]:
        for first in range(0, count, size):
            yield tuple(np.asarray(array[first : first + size]) for array in arrays)

    return RowBlocks(source, num_rows=count, arrays=arrays)


def rows(
    path: str | os.PathLike[str],
    *,
    target: str | os.PathLike[str] | None = None,
    columns: Sequence[str] | None = None,
    num_features: int | None = None,
) -> RowBlocks:
    """Blocks of the rows of a file, which may be larger than memory.

    Parameters
    ----------
    path : path
        A table of numbers: ``.npy`` (memory-mapped), ``.parquet`` (by row group, with pyarrow),
        ``.svm`` or ``.libsvm`` (LIBSVM text).
    target : str
        Of Parquet: the column of responses. Of ``.npy``: the file of responses. Rows without any,
        such as images, have blocks ``(X,)``.
    columns : sequence of str, optional
        Of Parquet: the features, in their order; all other columns by default, as they stand.
    num_features : int, optional
        Of LIBSVM text: the number of features, which the text itself does not tell.

    Returns
    -------
    RowBlocks
        For ``fit_blocks`` of a regression, ``VAE.fit`` (``.npy``) and :class:`curvi.DataTarget`.

    Raises
    ------
    InputError
        For a file of another kind, or options that do not belong to it.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    place = Path(path)
    kind = _SUFFIXES.get(place.suffix)
    if kind is None:
        known = ", ".join(_SUFFIXES)
        raise InputError(f"{place} has the suffix {place.suffix!r}; rows are read from {known}")
    if kind == "libsvm":
        if num_features is None:
            raise InputError(f"{place} is LIBSVM text; give num_features=")
        return _libsvm(place, validation.positive_integer(num_features, "num_features"))
    if kind == "npy":
        return _npy(place, None if target is None else Path(target))
    return _parquet(place, None if target is None else str(target), columns)


def _npy(path: Path, responses: Path | None) -> RowBlocks:
    files = [path] if responses is None else [path, responses]
    arrays = tuple(map(_mapped, files))
    if arrays[0].ndim < 2 or any(array.shape != arrays[0].shape[:1] for array in arrays[1:]):
        shapes = " and ".join(f"{f} {a.shape}" for f, a in zip(files, arrays, strict=True))
        raise InputError(f"{shapes}: give a table of rows, and one response to each")
    return of_arrays(arrays)


def _mapped(path: Path) -> np.ndarray:
    with reading(path):
        return np.lib.format.open_memmap(path, mode="r")


def _parquet(path: Path, target: str | None, columns: Sequence[str] | None) -> RowBlocks:
    parquet = optional_import("pyarrow.parquet", extra="parquet", purpose="reading Parquet")
    with reading(path), parquet.ParquetFile(path) as file:
        schema, count = file.schema_arrow, int(file.metadata.num_rows)
    found = list(schema.names)
    names = [name for name in found if name != target] if columns is None else list(columns)
    responded = [] if target is None else [target]
    missing = [name for name in [*names, *responded] if name not in found]
    if missing or target in names:
        raise InputError(
            f"{path} has no column {missing[0]!r}; it has {', '.join(found[:20])}"
            if missing
            else f"{target!r} is the target and cannot be a feature"
        )
    for name in names:  # before a text that is stored once is read as often as it is repeated
        if not str(kind := schema.field(name).type).startswith(_KINDS):
            raise InputError(
                f"column {name!r} of {path} holds {kind} and no numbers; encode it first, or "
                "leave it out (columns=, or --ignore of curvi fit)"
            )

    def source() -> Iterator[tuple[np.ndarray, ...]]:
        # With pre_buffer all of it would be read ahead. Texts of a target are stored once.
        with (
            reading(path),
            parquet.ParquetFile(path, pre_buffer=False, read_dictionary=responded) as file,
        ):
            size = max(1, _NUMBERS // max(len(names), 1))
            for batch in file.iter_batches(size, columns=[*names, *responded]):
                parts = [_numbers(batch.column(name), name, path) for name in names]
                responses = (_complete(batch.column(name), name, path) for name in responded)
                yield np.column_stack(parts), *responses

    return RowBlocks(source, num_rows=count, columns=tuple(names))


def _complete(column: Any, name: str, path: Path) -> np.ndarray:
    if column.null_count:
        raise InputError(f"column {name!r} of {path} has missing values; fill them in first")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _numbers(column: Any, name: str, path: Path) -> np.ndarray:
    values = _complete(column, name, path)
    return values.astype(values.dtype if values.dtype == np.float32 else np.float64)


def _libsvm(path: Path, num_features: int) -> RowBlocks:
    size = max(1, _NUMBERS // num_features)

    def source() -> Iterator[tuple[np.ndarray, ...]]:
        with path.open("rb") as stream:
            numbered = enumerate(stream, start=1)
            while lines := list(itertools.islice(numbered, size)):
                yield _parsed(lines, num_features, path)

    return RowBlocks(source)


def _parsed(
    lines: list[tuple[int, bytes]], num_features: int, path: Path
) -> tuple[np.ndarray, np.ndarray]:
    X, y = np.zeros((len(lines), num_features)), np.zeros(len(lines))
    for row, (number, line) in enumerate(lines):
        try:
            label, *entries = line.partition(b"#")[0].split()
            y[row] = float(label)
            for entry in entries:
                index, _, value = entry.partition(b":")
                if not 1 <= int(index) <= num_features:
                    raise InputError(f"{path}, line {number}: there is no feature {int(index)}")
                X[row, int(index) - 1] = float(value)
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}, line {number}: not LIBSVM text ({error})") from error
    return X, y
