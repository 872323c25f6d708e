"""Text from outside, made safe to print: names, paths, cells of a table."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with control and format characters, line ends among them, as escapes like ``\x1b``.

    A terminal would obey them: move its cursor, change colours and titles, or reverse what is
    written. Characters in ``keep`` stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _is_control(c) else _escaped(c) for c in text)


def quoted(text: str, most: int = 40) -> str:
    """The first ``most`` characters between quotes, printable."""
    return printable(repr(text if len(text) <= most else text[:most] + "..."))


def listed(names: Sequence[str], most: int = 4, between: str = ", ") -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def _is_control(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind[0] == "C" or kind in ("Zl", "Zp")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
