"""Rows of numbers as Markdown."""

from __future__ import annotations

from typing import Any


def as_table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table from equal dictionaries."""
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(row[column]) for column in head) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
