"""Count the cases of this suite by subject and by outcome, for the reliability page of the manual.

``python -m tests.adversarial.census`` prints the table. Nothing is run: a test has the outcome
whose word it calls (`outcomes.py`), itself or through functions of its module, or that its case
names; of several, the first of refused, warned, handled.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

OUTCOMES = ("refused", "warned", "handled")
OTHER = "property"  # stated by plain assertions
COLUMNS = (*OUTCOMES, OTHER)
FOLDER = Path(__file__).parent


def words(code: CodeType) -> Iterator[str]:
    """Every name that a function refers to, functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from words(constant)


def reached(function: FunctionType, seen: set[str]) -> set[str]:
    """The names that a function and the functions of its module that it calls refer to."""
    for name in set(words(function.__code__)) - seen:
        seen.add(name)
        other = function.__globals__.get(name)
        if isinstance(other, FunctionType) and other.__module__ == function.__module__:
            reached(other, seen)
    return seen


def outcome_of(item: Any) -> str:
    """The outcome that a collected test states."""
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {str(getattr(value, "__name__", value)) for value in given}
    function = getattr(item.function, "hypothesis", None)
    inner = function.inner_test if function is not None else item.function
    found = named & set(OUTCOMES) or reached(inner, set())
    return next((word for word in OUTCOMES if word in found), OTHER)


class Census:
    """A plugin of pytest that counts what is collected."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def pytest_itemcollected(self, item: Any) -> None:
        subject = item.path.stem.removeprefix("test_").replace("_", " ")
        count = self.counts.setdefault(subject, Counter())
        count[outcome_of(item)] += 1
        count["slow"] += item.get_closest_marker("slow") is not None


def table() -> str:
    """The counts as a Markdown table, with a line of totals."""
    import pytest

    census = Census()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(["--collect-only", "-q", "-m", "", str(FOLDER)], [census])
    if code != 0:
        raise SystemExit(said.getvalue())
    columns = (*COLUMNS, "of these slow")
    lines = [f"| subject | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    counts = dict(sorted(census.counts.items()))
    for subject, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        cells = [count[word] for word in (*COLUMNS, "slow")]
        lines.append(f"| {subject} | {' | '.join(map(str, cells))} |")
    from tests.adversarial.fuzz import FORMATS, INPUTS  # after pytest has taken over imports

    lines += [
        "",
        f"The slow suite also puts {INPUTS:,} damaged files of {len(FORMATS)} formats through the "
        "parsers: each parses, or is refused in one sentence.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("CURVI_TEST_DTYPE", "float64")
    sys.stdout.write(table() + "\n")
