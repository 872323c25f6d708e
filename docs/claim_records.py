"""Records behind the claims of the paper, and the words of a verdict."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
RECORDED = RESULTS / "reproduction"
HOLDS, CONDITION, NOT = "holds", "holds with a condition", "does not hold"
SMALL = ("duke", "leukemia")
NEAR = 2.0  # nats
FEW = 3  # iterations, the paper's
NOISE = 1.1  # of a measured variance

Row = dict[str, str]


class Claim(NamedTuple):
    """A sentence of the paper, where it is measured, and what was seen."""

    part: str
    says: str
    where: str
    verdict: str
    seen: str


def rows(name: str) -> list[Row]:
    """The lines of a record."""
    return list(csv.DictReader((RECORDED / name).read_text().splitlines()))


def table_rows(name: str) -> list[Row]:
    """The lines of all tables of a page that an experiment wrote."""
    found, head = [], []
    for line in (RECORDED / name).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif not line.startswith("|--"):
            found.append(dict(zip(head, cells, strict=True)))
    return found


def grouped(lines: list[Row], *keys: str) -> dict[Any, list[Row]]:
    """Lines by the values of some columns."""
    found: dict[Any, list[Row]] = {}
    for line in lines:
        found.setdefault(tuple(line[key] for key in keys), []).append(line)
    return {key if len(keys) > 1 else key[0]: group for key, group in found.items()}


def middle(lines: list[Row], key: str = "bound") -> float:
    """The median of a column."""
    return median(float(line[key]) for line in lines)


def verdict(held: list[bool]) -> str:
    """Of a claim that was seen in several places."""
    return HOLDS if all(held) else CONDITION if any(held) else NOT


def several(words: list[str]) -> str:
    """Words as a list in a sentence."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "none"


def span(values: list[float], digits: int = 1) -> str:
    """The lowest and the highest of some numbers."""
    if not values:
        return "no"
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
