"""Files that are either complete or absent, and that replace nothing unasked."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from curvi._core.errors import InputError
from curvi._core.text import printable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_DRAFTS = ".unfinished-"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file or none: a temporary file beside it, fsync, rename, fsync of the folder.

    Text is written as UTF-8. A crash leaves the old file, or none, and at worst a hidden
    temporary one beside it, which :func:`sweep_temporaries` removes. A new file has the
    permissions that the umask leaves, a replaced one keeps its own.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{_stem(path)}{secrets.token_hex(8)}.tmp")
    # Created by its mode, the kernel applies the umask: reading that would mean to set it, for all
    # threads, for a moment.
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    handle = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            _is_ours(stream.fileno())  # as long as it is open: nobody sweeps it away
            if path.exists():
                temporary.chmod(path.stat().st_mode & 0o777)  # private before it has content
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        # A disk that is full does not say which file it has no room for.
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def sweep_temporaries(path: Path) -> None:
    """Remove what processes that were killed have left beside a file; nothing that is written now.

    Where files cannot be locked nothing is removed: a writer may be alive.
    """
    stem = _stem(path)
    for name in _names_in(path.parent):
        middle = name.removeprefix(stem).removesuffix(".tmp")
        if name != f"{stem}{middle}.tmp" or len(middle) != 16:
            continue
        with contextlib.suppress(OSError):
            handle = os.open(path.with_name(name), os.O_RDWR)
            try:
                if _is_ours(handle):
                    path.with_name(name).unlink(missing_ok=True)
            finally:
                os.close(handle)


@contextlib.contextmanager
def draft_folder(place: Path) -> Iterator[Path]:
    """A hidden folder for files that are not finished, which is gone at the end.

    Those of processes that were killed are removed, as far as no writer can be alive.
    """
    for left in list(place.iterdir()):
        if left.name.startswith(_DRAFTS) and left.is_dir() and not left.is_symlink():
            with contextlib.suppress(OSError), _locked(left) as is_ours:
                if is_ours:
                    shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_DRAFTS, dir=place) as folder, _locked(Path(folder)):
        yield Path(folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder as long as this process lives; False where another one has it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        yield False
        return
    try:
        yield _is_ours(handle)
    finally:
        os.close(handle)


def _stem(path: Path) -> str:
    return f".{path.name[:50]}-"


def _names_in(folder: Path) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        yield from [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]


def _is_ours(handle: int) -> bool:
    """Lock an open file until it is closed or its process dies; False where another has it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a loss of power; some systems cannot open a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_output(
    path: Path, option: str, *, overwrite: bool, inputs: Iterable[Path | None] = ()
) -> None:
    """Raise InputError, before any work, for a file that cannot or must not be written.

    A file that the same command reads is refused whatever ``overwrite`` says.
    """
    refuse_inputs([path], option, inputs)
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{option} {path}: the folder cannot be written to; choose another place")
    if not overwrite:
        refuse_existing([path], option)


def refuse_inputs(paths: Iterable[Path], option: str, inputs: Iterable[Path | None]) -> None:
    """Raise InputError for an output that the same command reads, links resolved."""
    read = {os.path.realpath(path) for path in inputs if path is not None}
    for path in paths:
        if os.path.realpath(path) in read:
            raise InputError(
                f"{option} would replace {path}, which this command reads or writes for another "
                "purpose; choose another place"
            )


def refuse_existing(paths: Iterable[Path], option: str = "--out") -> None:
    """Raise InputError for the first of the files that is there already."""
    found = [path for path in paths if path.exists() or path.is_symlink()]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        verb = "exist" if more else "exists"
        raise InputError(
            f"{found[0]}{more} {verb} already; choose another place with {option}, or "
            "replace what is there with --overwrite"
        )


def output_folder(folder: Path, names: Iterable[Path], *, overwrite: bool) -> None:
    """Make the folder of a command's files, or say why it cannot be used, before any work."""
    if not overwrite:
        refuse_existing(names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {folder} cannot be made a folder ({error.strerror}); choose another place"
        ) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """What a library raises at a damaged file becomes one sentence with the name of the file."""
    try:
        yield
    except InputError:
        raise
    except (OSError, EOFError, ValueError) as error:
        if getattr(error, "errno", None):  # of the system: no such file, no permission
            raise
        why = " ".join(printable(str(error)).split())[:100]
        raise InputError(
            f"{printable(str(path))} cannot be read as what its name says, or is damaged ({why}); "
            "give an intact copy, or another format"
        ) from error
