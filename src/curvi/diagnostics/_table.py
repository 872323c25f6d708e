"""Plain-text tables: aligned columns, a verdict on top, the middle of long tables left out."""

from __future__ import annotations

import textwrap

import numpy as np

_MOST_ROWS = 40


def summary_table(
    *,
    verdict: tuple[str, str | list[str]],
    facts: dict[str, str],
    names: list[str],
    columns: dict[str, np.ndarray],
    most_rows: int = _MOST_ROWS,
) -> str:
    """Format a verdict, some facts and one row per name."""
    head, text = verdict
    lines = [head]
    for sentence in [text] if isinstance(text, str) else text:
        lines += textwrap.wrap(sentence, 96, initial_indent="  ", subsequent_indent="  ")
    width = max(len(name) for name in facts)
    hanging = " " * (width + 2)
    for name, fact in facts.items():
        lines += textwrap.wrap(f"{name:<{width}}  {fact}", 110, subsequent_indent=hanging)
    shown = list(range(len(names)))
    if len(names) > most_rows:
        half = most_rows // 2
        shown = [*range(half), *range(len(names) - half, len(names))]
    stub = max([len(names[i]) for i in shown], default=0)
    lines.append("")
    lines.append(" " * stub + "".join(f"{name:>12}" for name in columns))
    for place, i in enumerate(shown):
        if place and i != shown[place - 1] + 1:
            lines.append(f"... {len(names) - len(shown)} more ...")
        cells = "".join(f"{column[i]:>12.4g}" for column in columns.values())
        lines.append(f"{names[i]:<{stub}}{cells}")
    return "\n".join(lines)
