"""Hypothesis strategies for hostile tables: names, cells, whole files."""

from __future__ import annotations

import csv
import io

from hypothesis import strategies as st

from curvi.datasets._table import _MISSING

FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1")
CONTROLS = ("\x1b[31m", "\x9b2J", "\u202e", "\u2028", "\x07", "\r", "\n", "\x7f", "\ufeff")
MARKUP = (
    "<script>",
    "&amp;",
    "{{ 7*7 }}",
    "{% raw %}",
    "$\\frac{",
    "%s",
    "{0}",
    "\\",
    "'",
    '"',
    ",",
)
NOT_NUMBERS = (
    "",
    " ",
    "nan",
    "-inf",
    "NA",
    "1_0",
    "0x1",
    "1e999",
    "\u0661",
    "1,5",
    "1 2",
    "--1",
    "1e",
)

text = st.one_of(
    st.sampled_from(FORMULAS + CONTROLS + MARKUP),
    st.text(max_size=12),
    st.lists(st.sampled_from(FORMULAS + CONTROLS + MARKUP), max_size=4).map("".join),
    st.just("intercept"),
    st.just("x" * 5000),
).filter(lambda t: "\0" not in t and not any("\ud800" <= c <= "\udfff" for c in t))
names = text.filter(lambda name: name.strip() != "")
numbers = st.floats(allow_nan=False, allow_infinity=False).map(repr)
cells = st.one_of(numbers, st.sampled_from(NOT_NUMBERS), text)


def as_file(rows: list[list[str]]) -> bytes:
    """Rows as Python's own writer quotes them."""
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_ALL).writerows(rows)
    return stream.getvalue().encode()


@st.composite
def tables(draw: st.DrawFn, cell: st.SearchStrategy[str] = cells) -> list[list[str]]:
    """A header with hostile names and a target ``y``, and rows of cells, mostly of equal length."""
    header = [*draw(st.lists(names, min_size=1, max_size=3)), "y"]
    width = len(header) - 1
    length = st.just(width) if draw(st.booleans()) else st.integers(0, width + 2)
    row = length.flatmap(lambda n: st.lists(cell, min_size=n, max_size=n))
    rows = draw(st.lists(st.tuples(row, text).map(lambda r: [*r[0], r[1]]), max_size=4))
    return [header, *rows]


@st.composite
def good_tables(draw: st.DrawFn) -> list[list[str]]:
    """Hostile names and labels around good numbers."""
    header = draw(st.lists(names.map(str.strip), min_size=1, max_size=3, unique=True))
    label = names.filter(lambda t: t.strip().lower().lstrip("+-") not in _MISSING)
    row = st.tuples(st.lists(numbers, min_size=len(header), max_size=len(header)), label)
    return [
        [*header, "target"],
        *([*r[0], r[1]] for r in draw(st.lists(row, min_size=1, max_size=4))),
    ]
