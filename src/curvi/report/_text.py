"""A report as plain text for a terminal: the verdict, facts, the clearest estimates."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from html import escape

from curvi._core.text import printable
from curvi.report._blocks import Estimate, Facts, Forest
from curvi.report._page import Report, Verdict

_LEFT_TO_THE_PAGE = ("precision", "method", "draws", "family", "how it was found")


def text_of(report: Report, *, most: int = 12) -> str:
    """The verdict and what to do, what was fitted, and the clearest estimates."""
    verdict = report.verdict
    lines = [printable(report.title), printable(f"{verdict.word.upper()}: {verdict.headline}")]
    lines += _wrapped(verdict.sentences, "  ", "  ")
    lines += _wrapped(verdict.advice[verdict.level == "good" :], "  > ", "    ")
    lines += ["", *_facts(report), ""]
    lines += _estimates(report, most)
    return printable("\n".join(lines), keep="\n").replace("\N{MINUS SIGN}", "-")


def _wrapped(sentences: Sequence[str], first: str, hanging: str, width: int = 96) -> list[str]:
    """Lines of sentences, each of which begins with ``first``."""
    return [
        line
        for sentence in sentences
        for line in textwrap.wrap(
            printable(sentence), width, initial_indent=first, subsequent_indent=hanging
        )
    ]


def _facts(report: Report) -> list[str]:
    """What was fitted, and the numbers that matter."""
    tab = next(tab for tab in report.tabs if tab.key == "model")
    facts = dict(next(block.facts for block in tab.blocks if isinstance(block, Facts)))
    facts = {name: fact for name, fact in facts.items() if name not in _LEFT_TO_THE_PAGE}
    for tile in report.tiles:
        facts[tile.name[:1].lower() + tile.name[1:]] = ", ".join(
            filter(None, (tile.value, tile.note))
        )
    width = max(map(len, facts))
    lines = [f"{printable(name):<{width}}  {printable(fact)}" for name, fact in facts.items()]
    return _wrapped(lines, "", " " * (width + 2))


def _estimates(report: Report, most: int) -> list[str]:
    """The estimates whose direction is clearest, in the order of the page."""
    tab = next((tab for tab in report.tabs if tab.key == "estimates"), None)
    if tab is None:
        return []
    lines: list[str] = []
    forests = [block for block in tab.blocks if isinstance(block, Forest)]
    left = most
    for forest in forests:
        shown = _clearest(forest, max(left, 2))
        left -= len(shown)
        lines += [printable(forest.title), *_table(forest, shown)]
        hidden = max(forest.total, len(forest.estimates)) - len(shown)
        lines += [f"  ... and {hidden} more in the report, the less certain ones"] if hidden else []
        lines.append("")
    return lines[:-1]


def _clearest(forest: Forest, most: int) -> list[Estimate]:
    if len(forest.estimates) <= most:
        return list(forest.estimates)
    order = sorted(forest.estimates, key=lambda e: (e.off, -abs(e.mean) / (e.sd or 1.0)))[:most]
    kept = set(map(id, order))
    return [e for e in forest.estimates if id(e) in kept]


def _table(forest: Forest, shown: list[Estimate]) -> list[str]:
    head = ["", "mean", "90 % interval", *(["direction"] if forest.signs else []), *forest.more]
    rows = [
        [
            printable(e.name), "0" if e.off else e.shown_mean,
            "switched off" if e.off else e.interval,
            *([e.sign] if forest.signs else []), *(printable(cell).lower() for cell in e.extra),
        ]
        for e in shown
    ]  # fmt: skip
    every = [[cell.lower() if not i else cell for cell in row] for i, row in enumerate([head])]
    every = [[printable(cell) for cell in row] for row in [*every, *rows]]
    widths = [max(len(row[k]) for row in every) for k in range(len(head))]
    return [
        "  " + "  ".join(
            f"{cell:<{w}}" if k == 0 else f"{cell:>{w}}"
            for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in every
    ]  # fmt: skip


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
