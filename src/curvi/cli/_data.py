"""``curvi data``: which data sets are known, and where their files are or belong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class ListCommand:
    """List every data set: its name, whether its files are here, and one line about it."""

    def run(self) -> None:
        """Print one line per data set."""
        from curvi import datasets

        known = datasets.names()
        width = max(len(entry.name) for entry in known)
        for entry in known:
            state = "here   " if entry.present else "missing"
            print(f"{entry.name:<{width}}  {state}  {entry.description}")


@dataclass(frozen=True)
class PathCommand:
    """Print where the files of a data set are, or where to put those that are missing.

    Without a name, the folders that are searched.
    """

    name: Annotated[str | None, tyro.conf.Positional] = None
    """Data set, as `curvi data list` names it."""

    def run(self) -> int:
        """Print one line per file or folder; the code is 1 when a file is missing."""
        from curvi._core.validation import one_of
        from curvi.datasets import _lookup as lookup
        from curvi.datasets._registry import ENTRIES

        places = lookup.folders()
        if self.name is None:
            for place in places:
                print(place)
            if len(places) == 1:
                print(f"({lookup.VARIABLE} is not set; it may name a folder to search first)")
            return 0
        missing = 0
        for file in ENTRIES[one_of(self.name, tuple(ENTRIES), "name")].files:
            found = lookup.find(file)
            if found is not None:
                print(found)
                continue
            missing += 1
            origin = f"; downloaded from {file.urls[0]} on first use" if file.urls else ""
            print(f"missing: put it at {places[0] / file.path}{origin}")
        return 1 if missing else 0


@dataclass(frozen=True)
class DataCommand:
    """Data sets: what is known, and where the files are or belong."""

    action: (
        Annotated[ListCommand, tyro.conf.subcommand("list")]
        | Annotated[PathCommand, tyro.conf.subcommand("path")]
    )

    def run(self) -> int:
        """Run the action."""
        return self.action.run() or 0
