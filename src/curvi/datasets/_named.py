"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from curvi._core.validation import one_of
from curvi.datasets import _lookup as lookup
from curvi.datasets._golub import standardise
from curvi.datasets._registry import ENTRIES, Arrays

Rows = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class Dataset:
    """Rows to train and to test on, and what is known about them.

    Attributes
    ----------
    name
        The name given to `load`.
    train
        A pair (X, y). Tables: X dense float64 of shape (rows, features), y int64 of -1 and +1.
        Images: X float32 in [0, 1] of shape (images, pixels), y int64 labels, or None where
        there are none.
    test
        The official test rows in the same form, or None.
    feature_names
        One name per column, or None where the source has none.
    description
        One line.
    image_shape
        (height, width) of an image: ``X.reshape(-1, *image_shape)`` is upright. None for tables.

    Notes
    -----
    Everything is dense. The sparsest set, a9a, takes 32 megabytes, less than it costs to treat
    sparse rows everywhere else.
    """

    name: str
    train: Rows
    test: Rows | None
    feature_names: tuple[str, ...] | None
    description: str
    image_shape: tuple[int, int] | None = None


class Listing(NamedTuple):
    """One line of `names`: a data set, what it is, and whether all its files are here."""

    name: str
    description: str
    present: bool


def load(name: str, *, download: bool = True) -> Dataset:
    """Load a data set.

    Its files are looked for in the folder named by the environment variable ``CURVI_DATA``, then
    in the user's cache folder; what is in neither is downloaded into the cache. Every file is
    parsed strictly and compared with a checksum, wherever it comes from.

    Parameters
    ----------
    name
        One of those that `names` lists.
    download
        False never uses the network.

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        There is no data set of that name.
    DataNotFoundError
        A file is missing and was not downloaded; the message says where to put it.
    DataFormatError
        A file is damaged or is not the expected one.
    """
    entry = ENTRIES[one_of(name, tuple(ENTRIES), "name")]
    parts = []
    for file in entry.files:
        place = lookup.find(file)
        if place is None:
            if not download:
                raise lookup.missing(file, "downloads were not allowed")
            place = lookup.fetch(file)
        parts.append(lookup.read(file, place))
    return _ASSEMBLE[entry.assemble](name, entry.description, parts)


def names() -> list[Listing]:
    """Every data set, with one line about it and whether its files are here already."""
    return [
        Listing(name, entry.description, all(lookup.find(file) for file in entry.files))
        for name, entry in ENTRIES.items()
    ]


def path(name: str) -> list[Path]:
    """The files of a data set that `load` would read, without reading or downloading them.

    Raises
    ------
    InputError
        There is no data set of that name.
    DataNotFoundError
        A file is missing; the message says where to put it.
    """
    found = []
    for file in ENTRIES[one_of(name, tuple(ENTRIES), "name")].files:
        place = lookup.find(file)
        if place is None:
            how = "load() downloads it" if file.urls else "it has no public address to download"
            raise lookup.missing(file, how)
        found.append(place)
    return found


def _rows(name: str, description: str, parts: Sequence[Arrays]) -> Dataset:
    pairs = [(X, y) for X, y in parts]
    return Dataset(name, pairs[0], pairs[1] if len(pairs) > 1 else None, None, description)


def _golub(name: str, description: str, parts: Sequence[Arrays]) -> Dataset:
    (train, genes), (test, _), (labels,) = parts
    X, X_test = standardise(train, test)
    return Dataset(
        name,
        (X, labels[: len(X)]),
        (X_test, labels[len(X) :]),
        tuple(str(gene) for gene in genes),
        description,
    )


def _frey(name: str, description: str, parts: Sequence[Arrays]) -> Dataset:
    ((columns,),) = parts
    return Dataset(name, (_grey(columns.T), None), None, None, description, (28, 20))


def _olivetti(name: str, description: str, parts: Sequence[Arrays]) -> Dataset:
    ((columns,),) = parts
    upright = columns.T.reshape(-1, 64, 64).transpose(0, 2, 1)  # stored column by column
    subjects = np.arange(len(upright)) // 10
    return Dataset(name, (_grey(upright), subjects), None, None, description, (64, 64))


def _mnist(name: str, description: str, parts: Sequence[Arrays]) -> Dataset:
    (images,), (labels,), (test_images,), (test_labels,) = parts
    train = (_grey(images), labels.astype(np.int64))
    test = (_grey(test_images), test_labels.astype(np.int64))
    return Dataset(name, train, test, None, description, (28, 28))


def _grey(images: np.ndarray) -> np.ndarray:
    """Grey levels 0..255 as float32 rows in [0, 1]."""
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


_ASSEMBLE: dict[str, Callable[[str, str, Sequence[Arrays]], Dataset]] = {
    "rows": _rows,
    "golub": _golub,
    "frey": _frey,
    "olivetti": _olivetti,
    "mnist": _mnist,
}
