"""What the command line says; text from outside cannot command the terminal."""

from __future__ import annotations

import sys
from typing import TextIO

from curvi._core.text import printable


def say(text: str) -> None:
    """Print lines, control characters in them escaped."""
    _write(text, sys.stdout)


def complain(text: str) -> None:
    """Print one line about what is wrong, after the name of the program."""
    _write(f"curvi: {printable(text)}", sys.stderr)


def pass_on(text: str) -> None:
    """Print lines that another process has written."""
    _write(text, sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"  # a terminal may know less than UTF-8
    known = printable(text, keep="\n").encode(encoding, "backslashreplace").decode(encoding)
    stream.write(known + "\n")
