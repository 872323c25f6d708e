"""Where a file is: the folder named by CURVI_DATA, the user's cache, then its public origin."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO

from curvi.datasets._content import MAX_BYTES, digest, read_content
from curvi.datasets._errors import DataNotFoundError, refusal
from curvi.datasets._registry import Arrays, DataFile

VARIABLE = "CURVI_DATA"
_SUFFIXES = ("", ".bz2", ".gz")
_SECONDS = 30  # without a byte, until a download is given up


def folders() -> tuple[Path, ...]:
    """The folders to look in, first come first served.

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
    found = digest(arrays)
    if found != file.sha256:
        what = f"the checksum of its content is sha256 {found}, but {file.sha256} is expected"
        raise refusal(name, "", what)
    return arrays


def missing(file: DataFile, reason: str) -> DataNotFoundError:
    """The error for a file that is nowhere: what, where it was looked for, where to put it."""
    places = folders()
    looked = " and ".join(str(place) for place in places)
    unset = "" if len(places) > 1 else f" ({VARIABLE} is not set)"
    return DataNotFoundError(
        f"{file.path} is not in {looked}{unset}; {reason}; put the file at {places[0] / file.path}"
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
    """A file to write to, up to a number of bytes: an endless answer must not fill the disk."""

    def __init__(self, stream: IO[bytes], name: str, max_bytes: int) -> None:
        self._stream = stream
        self._name = name
        self._max_bytes = self._room = max_bytes

    def write(self, chunk: bytes) -> int:
        """Write a chunk, or refuse it once the bound is passed."""
        self._room -= len(chunk)
        if self._room < 0:
            what = f"sends more than {self._max_bytes} bytes"
            raise refusal(self._name, "", what, "fetch the file by hand")
        return self._stream.write(chunk)

    def flush(self) -> None:
        """Leave flushing to the buffer: the file is flushed once, before it is verified."""


def transfer(url: str, output: BoundedWriter) -> None:
    """Copy the bytes behind an address to the writer. The only function that uses the network."""
    import pooch

    pooch.HTTPDownloader(chunk_size=2**16, timeout=_SECONDS)(url, output, None)
