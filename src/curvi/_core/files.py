"""Files that are either complete or absent, and that replace nothing unasked."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from curvi._core.errors import InputError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file or none: a temporary file beside it, fsync, then rename.

    Text is written as UTF-8. A crash leaves the old file, or none, and at worst a hidden
    temporary one beside it. A new file has the permissions that the umask leaves, a replaced one
    keeps its own.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name[:50]}-{secrets.token_hex(8)}.tmp")
    # Created by its mode, the kernel applies the umask: reading that would mean to set it, for all
    # threads, for a moment.
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    handle = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            if path.exists():
                temporary.chmod(path.stat().st_mode & 0o777)  # private before it has content
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_existing(paths: Iterable[Path]) -> None:
    """Raise InputError for the first of the files that is there already."""
    found = [path for path in paths if path.exists() or path.is_symlink()]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        verb = "exist" if more else "exists"
        raise InputError(
            f"{found[0]}{more} {verb} already; choose another folder with --out, or replace "
            "files with --overwrite"
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
