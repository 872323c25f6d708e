"""What a first pass over the parts of a table learns: levels, and means and sds of columns.

Formulas are evaluated part by part later on, by what they learn here: from a small table that has
every level of its categories, and the mean and sd of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi._core.text import quoted
from curvi.mixed._design import Moments
from curvi.mixed._expressions import CATEGORIES, ROW_BY_ROW, Call, Column
from curvi.mixed._formula import Formula, column_names
from curvi.mixed._parts import agreeing
from curvi.mixed._table import checked

Parts = Callable[[], Iterator[Any]]
_BY_MOMENTS = ("center", "scale", "standardize")


@dataclass(frozen=True)
class Seen:
    """All that a pass over the rows has learned."""

    rows: int
    first: Any  # the first part
    distinct: dict[tuple[str, ...], Any]  # combinations of values that occur
    example: Any  # a small table from which a formula learns what it would from all rows


def seen(formula: Formula, parts: Parts) -> Seen:
    """Read all parts once; missing values are refused."""
    import pandas as pd

    boxed = _boxed(formula)
    bare = replace(formula, bars=tuple(replace(bar, columns=()) for bar in formula.bars))
    evaluated = column_names(bare)
    sets = {bar.columns for bar in formula.bars}
    distinct: dict[tuple[str, ...], Any] = {}
    moments: dict[str, Moments] = {}
    rows, first = 0, None
    for frame, numeric in agreeing(parts(), column_names(formula)):
        part = checked(formula, frame, response=True, first=rows)
        first = frame if first is None else first
        alone = [n for n in part.columns if n in evaluated and (n not in numeric or n in boxed)]
        for key in {*sets, *((name,) for name in alone)}:
            new = part[list(key)].drop_duplicates()
            known = [distinct[key], new] if key in distinct else [new]
            distinct[key] = pd.concat(known, ignore_index=True).drop_duplicates()
        for name in (n for n in part.columns if n in evaluated and n not in alone):
            with np.errstate(all="ignore"):  # what is not finite is reported by its row later
                found = Moments.of(part[[name]].to_numpy(np.float64))
                moments[name] = moments[name] + found if name in moments else found
        rows += len(part)
    levels = {name: distinct[name,][name] for name in alone}
    return Seen(rows, first, distinct, _example(levels, moments))


def _example(levels: dict[str, Any], moments: dict[str, Moments]) -> Any:
    """Every level, and numbers whose mean and sd are those of all rows."""
    import pandas as pd

    count = max([2, *map(len, levels.values())])
    count += count % 2
    index, signs = np.arange(count), np.resize([-1.0, 1.0], count)
    columns = {n: v.iloc[index % len(v)].reset_index(drop=True) for n, v in levels.items()}
    numbers = {n: m.mean[0] + signs * m.sd[0] for n, m in moments.items()}
    return pd.DataFrame({**columns, **numbers})


def _boxed(formula: Formula) -> set[str]:
    """Columns that the formula makes categories of; what no part can tell is refused."""
    boxed, scaled = set[str](), set[str]()
    for place, part in enumerate(formula.parts()):
        for call in (node for node in part if isinstance(node, Call)):
            column = call.values[0] if place and call.values else None
            if isinstance(column, Column) and call.function in CATEGORIES:
                boxed.add(column.name)
            elif isinstance(column, Column) and call.function in _BY_MOMENTS:
                scaled.add(column.name)
            elif call.function not in ROW_BY_ROW:
                raise InputError(
                    f"{quoted(f'{call.function}(...)')} in formula {quoted(formula.text)} may ask "
                    "for all rows at once, and the table comes in parts; give it as a column of "
                    "the table, or fit the whole table (a DataFrame)"
                )
    both = boxed & scaled
    if both:
        raise InputError(
            f"column {quoted(min(both))} is both a category and scaled in formula "
            f"{quoted(formula.text)}; give the table a column for each"
        )
    return boxed
