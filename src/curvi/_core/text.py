"""Text from outside, made safe to print: names, paths, cells of a table."""

from __future__ import annotations

import unicodedata

_SHOWN = 40  # characters of foreign text that a message repeats


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with control and format characters, line ends among them, as escapes like ``\x1b``.

    A terminal would obey them: move its cursor, change colours and titles, or reverse what is
    written. Characters in ``keep`` stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _is_control(c) else _escaped(c) for c in text)


def quoted(text: str, most: int = _SHOWN) -> str:
    """The first ``most`` characters between quotes, printable."""
    return printable(repr(text if len(text) <= most else text[:most] + "..."))


def _is_control(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind[0] == "C" or kind in ("Zl", "Zp")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
