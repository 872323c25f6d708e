"""What can go wrong with data files, and the one way in which parsers say it."""

from __future__ import annotations

from curvi._core.errors import CurviError

REPLACE = "replace the file with an intact copy"


class DataFormatError(CurviError, ValueError):
    """A data file is damaged, is not what its name says, or is larger than it can honestly be."""


class DataNotFoundError(CurviError, FileNotFoundError):
    """A data file is in none of the places looked at; the message says where to put it."""


def refusal(name: str, where: str, what: str, remedy: str = REPLACE) -> DataFormatError:
    """The error for one file: its name, the place in it, what is wrong there, what to do.

    Parameters
    ----------
    name
        The file, as the user knows it.
    where
        ``"line 3"`` or ``"byte 16"``; empty when the whole file is meant.
    what
        What is wrong, as a clause.
    remedy
        What to do about it, as a clause.
    """
    place = f"{name}, {where}" if where else name
    return DataFormatError(f"{place}: {what}; {remedy}")
