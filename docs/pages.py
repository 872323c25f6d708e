"""Run the examples of the manual's pages, and compare or replace what the pages say they print.

A page is a list of cells: a block of Python, and the output that follows it as a block of text.
Cells of a page share their names. ``python docs/pages.py PAGE...`` runs pages in one process and
prints what they print as JSON; ``python docs/regenerate.py outputs`` puts it into them.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
CELL = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
# Lines of a summary that differ in the last digits of a machine, or in seconds.
VOLATILE = ("answer", "tried", "fit of q", "mc error", "method")
_RELATIVE, _ABSOLUTE = 0.1, 0.06


def pages() -> list[Path]:
    """The pages that have examples."""
    written = [*DOCS.glob("*.md"), *DOCS.glob("start/*.md"), *DOCS.glob("how_to/*.md")]
    return sorted(page for page in written if CELL.search(page.read_text()))


def outputs(page: Path) -> list[str]:
    """What each cell of a page prints; a cell that fails ends the page with its traceback."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = []
    for code, _ in CELL.findall(page.read_text()):
        stream = io.StringIO()
        try:
            with contextlib.redirect_stdout(stream), warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(compile(code, page.name, "exec"), names)  # noqa: S102, our own pages
        except Exception:  # noqa: BLE001, reported with its page
            return [*found, traceback.format_exc(limit=2)]
        found.append(stream.getvalue())
    return found


def shown(page: Path) -> list[str]:
    """What the page says that each cell prints."""
    return [text for _, text in CELL.findall(page.read_text())]


def differences(said: list[str], printed: list[str]) -> list[str]:
    """Lines in which a page and its output differ by more than the digits of a machine."""
    if len(said) != len(printed):
        return [f"ended after {len(printed) - 1} of {len(said)} examples: {printed[-1]}"]
    return [
        f"shown {left!r}, printed {right!r}"
        for one, other in zip(said, printed, strict=True)
        for left, right in _paired(one, other)
        if not same(left, right)
    ]


def _paired(one: str, other: str) -> list[tuple[str, str]]:
    left, right = one.rstrip().splitlines(), other.rstrip().splitlines()
    width = max(len(left), len(right))
    return list(zip(left + [""] * (width - len(left)), right + [""] * (width - len(right)),
                    strict=True))  # fmt: skip


def same(left: str, right: str) -> bool:
    """Whether two lines have the same words and nearly the same numbers."""
    if left.startswith(VOLATILE) and right.startswith(VOLATILE):
        return left.split(maxsplit=1)[0] == right.split(maxsplit=1)[0]
    if NUMBER.sub("#", left).split() != NUMBER.sub("#", right).split():
        return False
    numbers = zip(NUMBER.findall(left), NUMBER.findall(right), strict=True)
    return all(
        abs(float(a) - float(b)) <= max(_ABSOLUTE, _RELATIVE * abs(float(a))) for a, b in numbers
    )


def replace_outputs(page: Path, printed: list[str]) -> None:
    """Put what was printed below each cell."""
    rest = iter(printed)

    def cell(match: re.Match[str]) -> str:
        text = next(rest).rstrip()
        return f"```python\n{match[1]}```" + (f"\n\n```text\n{text}\n```" if text else "")

    page.write_text(CELL.sub(cell, page.read_text()))


if __name__ == "__main__":
    print(json.dumps({name: outputs(DOCS / name) for name in sys.argv[1:]}))  # noqa: T201
