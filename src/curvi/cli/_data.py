"""``curvi data``: which data sets are known, and where their files are or belong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from curvi._core.files import output_folder, write_atomically
from curvi.cli._terminal import say


@dataclass(frozen=True)
class ListCommand:
    """List every data set: its name, whether its files are here, and one line about it."""

    out: Path | None = None
    """Folder for the same lines as datasets.txt."""
    overwrite: bool = False
    """Replace the file of an earlier command."""
    seed: int = 0
    """Accepted by every command; nothing is random here."""

    def run(self) -> int:
        """Print one line per data set."""
        from curvi import datasets

        known = datasets.names()
        width = max(len(entry.name) for entry in known)
        state = {True: "here   ", False: "missing"}
        lines = [f"{e.name:<{width}}  {state[e.present]}  {e.description}" for e in known]
        _print(lines, self.out, "datasets.txt", self.overwrite)
        return 0


@dataclass(frozen=True)
class PathCommand:
    """Print where the files of a data set are, or where to put those that are missing.

    Without a name, the folders that are searched.
    """

    name: Annotated[str | None, tyro.conf.Positional] = None
    """Data set, as `curvi data list` names it."""
    out: Path | None = None
    """Folder for the same lines as paths.txt."""
    overwrite: bool = False
    """Replace the file of an earlier command."""
    seed: int = 0
    """Accepted by every command; nothing is random here."""

    def run(self) -> int:
        """Print one line per file or folder; the code is 1 when a file is missing."""
        from curvi._core.validation import one_of
        from curvi.datasets import ENTRIES
        from curvi.datasets import _lookup as lookup

        places = lookup.folders()
        lines, missing = [str(place) for place in places], 0
        if self.name is None and len(places) == 1:
            lines.append(f"({lookup.VARIABLE} is not set; it may name a folder to search first)")
        if self.name is not None:
            files = ENTRIES[one_of(self.name, tuple(ENTRIES), "name")].files
            found = [lookup.find(file) for file in files]
            missing = found.count(None)
            lines = [
                str(place) if place is not None else _instruction(file, places[0])
                for file, place in zip(files, found, strict=True)
            ]
        _print(lines, self.out, "paths.txt", self.overwrite)
        return 1 if missing else 0


def _instruction(file: Any, folder: Path) -> str:
    """Where to put a missing file, and where it comes from."""
    origin = f"; downloaded from {file.urls[0]} on first use" if file.urls else ""
    return f"missing: put it at {folder / file.path}{origin}"


def _print(lines: list[str], folder: Path | None, name: str, overwrite: bool) -> None:
    text = "\n".join(lines)
    if folder is not None:
        output_folder(folder, [folder / name], overwrite=overwrite)
        write_atomically(folder / name, text + "\n")
    say(text)


@dataclass(frozen=True)
class DataCommand:
    """Data sets: what is known, and where the files are or belong."""

    action: (
        Annotated[ListCommand, tyro.conf.subcommand("list")]
        | Annotated[PathCommand, tyro.conf.subcommand("path")]
    )

    def run(self) -> int:
        """Run the action."""
        return self.action.run()
