"""Data sets by name: files from the folder named by CURVI_DATA, the cache, or their origin."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

from curvi._core.validation import one_of
from curvi.datasets._content import (
    MAX_BYTES,
    DataNotFoundError,
    digest,
    format_error,
    read_content,
)
from curvi.datasets._registry import ENTRIES, Arrays, DataFile, Dataset

VARIABLE = "CURVI_DATA"
_SUFFIXES = ("", ".bz2", ".gz")


class Listing(NamedTuple):
    """A data set that `names` lists.

    Attributes
    ----------
    name : str
        What `load` and `path` take.
    description : str
        One line about the data.
    present : bool
        Whether all its files are on this machine.
    """

    name: str
    description: str
    present: bool


def load(name: str, *, download: bool = True) -> Dataset:
    """Load a data set.

    Its files are searched in the folder named by the environment variable ``CURVI_DATA``, then in
    the user's cache folder; what is in neither is downloaded into the cache. Every file is
    parsed strictly and compared with a checksum, wherever it comes from.

    Parameters
    ----------
    name
        The name of a data set, one of those that `names` lists.
    download
        Whether missing files may be downloaded; False never uses the network.

    Returns
    -------
    Dataset
        Arrays of the training rows and, where the data set has them, of the test rows.

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
        file_path = find(file)
        if file_path is None:
            if not download:
                raise missing(file, "downloads were not allowed")
            file_path = fetch(file)
        parts.append(read(file, file_path))
    return Dataset(name, entry.description, **entry.assemble(parts))


def names() -> list[Listing]:
    """List every data set with a one-line description and whether its files are present.

    Returns
    -------
    list of Listing
        One entry per data set.
    """
    return [
        Listing(name, entry.description, all(find(file) for file in entry.files))
        for name, entry in ENTRIES.items()
    ]


def path(name: str) -> list[Path]:
    """The files of a data set that `load` would read, without reading or downloading them.

    Parameters
    ----------
    name
        The name of a data set, one of those that `names` lists.

    Returns
    -------
    list of Path
        One path per file, in the folder of ``CURVI_DATA`` or in the cache.

    Raises
    ------
    InputError
        There is no data set of that name.
    DataNotFoundError
        A file is missing; the message says where to put it.
    """
    paths = []
    for file in ENTRIES[one_of(name, tuple(ENTRIES), "name")].files:
        file_path = find(file)
        if file_path is None:
            how = "load() downloads it" if file.urls else "it has no public address to download"
            raise missing(file, how)
        paths.append(file_path)
    return paths


def folders() -> tuple[Path, ...]:
    """The folders to search, in this order.

    Raises
    ------
    DataNotFoundError
        CURVI_DATA is set to something that is not a folder: going on to a download would hide it.
    """
    import pooch

    cache = Path(pooch.os_cache("curvi"))
    named = os.environ.get(VARIABLE, "")
    if not named:
        return (cache,)
    if not Path(named).is_dir():
        raise DataNotFoundError(
            f"{VARIABLE} is {named!r}, which is not a folder; set it to the folder of data sets, "
            "or unset it"
        )
    return (Path(named), cache)


def find(file: DataFile) -> Path | None:
    """The first copy of a file: as it is usually stored, unpacked, or packed in another way."""
    usual = Path(file.path)
    stem = usual.with_suffix("") if usual.suffix in _SUFFIXES else usual
    names = dict.fromkeys([usual, *(stem.with_name(stem.name + end) for end in _SUFFIXES)])
    for folder in folders():
        for name in names:
            if (folder / name).is_file():
                return folder / name
    return None


def read(file: DataFile, path: Path, name: str = "") -> Arrays:
    """Parse a copy of a file and compare its checksum.

    Raises
    ------
    DataFormatError
        The copy is damaged, or its content is not that of the registered file.
    """
    name = name or str(path)
    arrays = file.parse(read_content(path, name), name)
    checksum = digest(arrays)
    if checksum != file.sha256:
        what = f"the checksum of its content is sha256 {checksum}, but {file.sha256} is expected"
        raise format_error(name, "", what)
    return arrays


def missing(file: DataFile, reason: str) -> DataNotFoundError:
    """The error of a missing file: which, where it was searched for, and where to put it."""
    places = folders()
    searched = " and ".join(str(folder) for folder in places)
    unset = "" if len(places) > 1 else f" ({VARIABLE} is not set)"
    return DataNotFoundError(
        f"{file.path} is not in {searched}{unset}; {reason}; "
        f"put the file at {places[0] / file.path}"
    )


def fetch(file: DataFile) -> Path:
    """Download a file into the cache, and return its place there.

    The bytes go to a temporary file beside the final one, are parsed and compared with the
    checksum, and only then renamed: the cache holds complete and verified files or none.

    Raises
    ------
    DataNotFoundError
        The file has no public origin, or no origin gave a file that could be verified.
    """
    if not file.urls:
        raise missing(file, "it has no public address to download it from")
    folder = (folders()[-1] / file.path).parent
    reasons: list[str] = []
    for url in file.urls:
        try:
            return _download(file, url, folder / url.rsplit("/", 1)[-1])
        except (OSError, ValueError) as error:  # a DataFormatError is a ValueError
            reasons.append(f"the download from {url} failed ({error})")
    raise missing(file, "; ".join(reasons))


def _download(file: DataFile, url: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".download-", dir=target.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            transfer(url, BoundedWriter(stream, url, MAX_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        read(file, partial, url)
        return partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


class BoundedWriter:
    """A file with a size limit: an endless response must not fill the disk."""

    def __init__(self, stream: IO[bytes], name: str, max_bytes: int) -> None:
        self._stream = stream
        self._name = name
        self._max_bytes = self._room = max_bytes

    def write(self, chunk: bytes) -> int:
        """Write a chunk, or raise an error beyond the limit."""
        self._room -= len(chunk)
        if self._room < 0:
            what = f"sends more than {self._max_bytes} bytes"
            raise format_error(self._name, "", what, "fetch the file by hand")
        return self._stream.write(chunk)

    def flush(self) -> None:
        """Leave flushing to the buffer: the file is flushed once, before it is verified."""


def transfer(url: str, output: BoundedWriter, *, timeout: int = 30) -> None:
    """Copy the bytes behind an address to the writer. The only function that uses the network.

    ``timeout``: seconds without a byte until a download is given up.
    """
    import pooch

    pooch.HTTPDownloader(chunk_size=2**16, timeout=timeout)(url, output, None)
