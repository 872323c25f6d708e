"""A few lines of HTML for a notebook, in its own colours, light or dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from curvi._core.text import printable
from curvi.report._page import Verdict

_MARKS = {"good": "\N{HEAVY CHECK MARK}", "caution": "!", "bad": "\N{MULTIPLICATION X}"}
_CELL = "padding:.1em .8em .1em 0;text-align:{};background:none;border:0"


def notebook_html(
    name: str,
    facts: Mapping[str, str],
    *,
    verdict: Verdict | None = None,
    table: Sequence[Sequence[str]] = (),
) -> str:
    """A name, a verdict, facts and a table, whose first row is its head; all text is escaped."""
    parts = [f"<div style='font-size:.95em'><strong>{_safe(name)}</strong>"]
    if verdict is not None:
        mark = _MARKS[verdict.level]
        parts.append(f" &nbsp;{mark} {_safe(verdict.headline)}")
        said = verdict.sentences if verdict.level != "good" else ()
        parts += [f"<br>{_safe(text)}" for text in (*said, *verdict.advice[: len(said) + 2])
                  if verdict.level != "good"]  # fmt: skip
    rows = "".join(
        f"<tr><th style='{_CELL.format('left')};font-weight:600'>{_safe(key)}</th>"
        f"<td style='{_CELL.format('left')}'>{_safe(value)}</td></tr>"
        for key, value in facts.items()
    )
    parts.append(f"<table style='border:0'>{rows}</table>" if rows else "")
    if table:
        parts.append(f"<table style='border:0;margin-top:.4em'>{_rows(table)}</table>")
    return "".join(parts) + "</div>"


def _rows(table: Sequence[Sequence[str]]) -> str:
    out = []
    for number, row in enumerate(table):
        tag = "td" if number else "th"
        styles = [_CELL.format("right" if place else "left") for place in range(len(row))]
        cells = [
            f"<{tag} style='{style}'>{_safe(cell)}</{tag}>"
            for style, cell in zip(styles, row, strict=True)
        ]
        out.append(f"<tr style='background:none'>{''.join(cells)}</tr>")
    return "".join(out)


def _safe(text: object) -> str:
    return escape(printable(str(text)))
