"""Rows of numbers as CSV and Markdown."""

from __future__ import annotations

import csv
import io
import statistics
from typing import Any

_HUGE = 1e7


QUICK = "Quick settings: runs of one or two seconds, one setting per method, 3,000 rows of a9a."


def as_csv(rows: list[dict[str, Any]]) -> str:
    """CSV text of equal dictionaries."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """A Markdown table of equal dictionaries."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)


def median_and_range(values: list[int] | list[float], digits: int = 0) -> str:
    """``median (lowest to highest)``, or the one value where all are equal."""
    ordered = sorted(values)
    middle = statistics.median(ordered)

    def form(value: float) -> str:
        if abs(value) > _HUGE:
            return f"{value:.1e}"
        return f"{value:.{digits}f}"

    if form(ordered[0]) == form(ordered[-1]):
        return form(middle)
    return f"{form(middle)} ({form(ordered[0])} to {form(ordered[-1])})"
