"""What a table cannot tell, and what is easily meant otherwise: announced before a fit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import linalg

from curvi._core.errors import InputError, warn_user
from curvi._core.memory import require_memory
from curvi._core.text import quoted
from curvi.mixed._design import Design, Factor
from curvi.mixed._formula import Formula, Matrices
from curvi.mixed._hyper import INTERCEPT


def require_size(values: np.ndarray, what: str, *, most: float = 1e100) -> None:
    """Refuse numbers whose squares leave the range of double precision."""
    size = float(np.abs(values).max(initial=0.0))
    if size > most or 0 < size < 1 / most:
        raise InputError(
            f"{what} has values of size {size:.3g}, whose squares are beyond double precision; "
            "give it in another unit"
        )


def require_offset(offset: float, unit: float, *, most: float = 1e10) -> None:
    """Refuse an offset beside which the response is lost to rounding."""
    if offset > most * unit:
        raise InputError(
            f"the offset has values of size {offset:.3g}, and the unit of the response is "
            f"{unit:.3g}: nothing of it is left beside such an offset; check their units"
        )


def inspect_columns(formula: Formula, frame: Any, rows: int) -> None:
    """Categories of the fixed part: too many of them, numbers as text, an order that is lost.

    A part of a table, with all levels, is enough.
    """
    groups = {bar.columns[0] for bar in formula.bars if len(bar.columns) == 1}
    for name in (n for n in map(str, frame.columns) if n in formula.names):
        column = frame[name]
        boxed = name in formula.boxed
        if column.dtype.kind in "biuf" and not boxed:
            continue
        levels = int(column.nunique())
        require_memory(
            4 * 8.0 * rows * levels,
            f"a column for each of {levels} values of {quoted(name)} in {rows} rows",
            f"write (1 | {name}), which is made for factors of many levels",
        )
        if name in groups:
            warn_user(
                f"{name} is a fixed effect and a group: its levels have their own fixed effects, "
                f"and the sd of (1 | {name}) is known from the prior alone; keep one of the two"
            )
        if not boxed:
            _inspect_texts(column, name, levels)


def _inspect_texts(column: Any, name: str, levels: int) -> None:
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        given = list(column.cat.remove_unused_categories().cat.categories)
        if not column.cat.ordered and given != sorted(given, key=_key):
            warn_user(
                f"the categories of {quoted(name)} have no order: they are sorted, and "
                f"{quoted(str(min(given, key=_key)))} is the reference, not "
                f"{quoted(str(given[0]))}; use .cat.as_ordered() to keep the order in which they "
                "were declared"
            )
        return
    numbers = pd.to_numeric(pd.Series(column.unique()), errors="coerce")
    if numbers.notna().all():
        warn_user(
            f"column {quoted(name)} holds numbers as text: each of its {levels} values is a "
            f"category; convert it with astype(float), or write C({name}) if that is meant"
        )


def _key(value: Any) -> tuple[bool, Any]:
    return (isinstance(value, str), value)


@dataclass
class Pairs:
    """Which factors have the same groups, from the codes of rows that may come in parts."""

    found: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def add(self, factors: Sequence[Factor]) -> None:
        """See more rows."""
        for (i, a), (j, b) in itertools.combinations(enumerate(factors), 2):
            known = self.found.setdefault((i, j), np.zeros(0, np.int64))
            if a.levels == b.levels and len(known) <= a.levels:  # more pairs: not the same groups
                new = a.codes.astype(np.int64) * b.levels + b.codes
                self.found[i, j] = np.unique(np.concatenate([known, new]))

    def announce(self, factors: Sequence[Factor]) -> None:
        """Warn of one factor under two names."""
        for (i, j), known in self.found.items():
            a, b = factors[i], factors[j]
            same = a.levels == b.levels > 1 and len(known) == a.levels
            if same and set(a.effects) & set(b.effects):
                warn_user(
                    f"{a.name} and {b.name} are the same groups under two names: the prior alone "
                    "tells their effects apart; keep one of them"
                )


def inspect_design(design: Design, gram: np.ndarray, rows: int, likelihood: str) -> None:
    """Warn of columns and groups that the rows cannot tell apart.

    ``gram`` has the products of the fixed columns, in the coordinates of the fit.
    """
    names = design.names
    if len(names) > rows:
        warn_user(
            f"the formula has {len(names)} fixed effects and the table {rows} rows: the prior "
            "decides what the rows cannot; leave out columns, or make factors groups"
        )
    elif (found := collinear(gram)) and {names[k] for k in found[1]} != {INTERCEPT}:
        column, others = found
        listed = ", ".join(names[k] for k in others[:4])
        warn_user(
            f"column {quoted(names[column])} is a combination of {listed}: the prior alone tells "
            "their effects apart; leave one of them out"
        )
    for factor in design.factors:
        if factor.levels == rows > 1 and INTERCEPT in factor.effects and likelihood in _LOST:
            warn_user(
                f"{factor.name} has one row per level: its effects and {_LOST[likelihood]} are "
                "told apart by the prior alone; leave the term out"
            )


_LOST = {
    "gaussian": "the residual sd",
    "student-t": "the residual sd",
    "bernoulli": "the chance of each answer",
}


def inspect_origins(matrices: Matrices, frame: Any, *, most: float = 5.0) -> None:
    """Warn of terms that depend on a zero far outside of the data.

    Effects that are not correlated with the intercept of their factor have `inspect_zero`.
    """
    sums = [("the fixed effects", matrices.common)]
    bars = matrices.formula.bars
    constant = {b.factor for b, left in zip(bars, matrices.lefts, strict=True) if left.intercept}
    for bar, left in zip(bars, matrices.lefts, strict=True):
        if bar.factor not in constant or (left.intercept and bar.correlated):
            sums.append((f"({bar.left} | {bar.factor})", left))
    for where, columns in sums:
        for name in columns.tied:
            values = frame[name].to_numpy(np.float64)
            if abs(np.mean(values)) > most * np.std(values) > 0:
                warn_user(
                    f"{where} depend on where {name} has its zero, which is far from its values, "
                    "because the intercept or a term of lower order is missing; add it (x * h in "
                    f"place of x:h), or write center({name})"
                )


def inspect_zero(factor: Factor, low: np.ndarray, high: np.ndarray) -> None:
    """Warn of effects that are uncorrelated at a zero far outside of the data."""
    if INTERCEPT not in factor.effects:
        return
    away = np.maximum(low, -high)  # of zero from the nearest value
    ends = np.cumsum([block.size for block in factor.blocks])
    for block, end in zip(factor.blocks, ends, strict=True):
        if block.correlated and INTERCEPT in block.columns:
            continue
        for place, name in enumerate(block.columns, end - block.size):
            if name != INTERCEPT and away[place] > high[place] - low[place] > 0:
                warn_user(
                    f"{name} is not correlated with the intercept of {factor.name} where it is "
                    f"zero, which is far from its values: that forbids most slopes; centre {name}, "
                    f"or write (1 + {name} | {factor.name})"
                )


def collinear(
    gram: np.ndarray, *, least: float = 1e-11, small: float = 1e-6
) -> tuple[int, list[int]] | None:
    """The first column that those before it give, and which of them do."""
    sizes = np.sqrt(np.diag(gram))
    unit = gram / np.maximum(np.outer(sizes, sizes), 1e-300)
    root = np.zeros_like(unit)  # Cholesky factor of the columns before
    for column in np.flatnonzero(sizes):
        before = slice(0, column)
        root[column, before] = linalg.solve_triangular(
            root[before, before] + np.diag(sizes[before] == 0), unit[before, column], lower=True
        )
        gap = 1 - root[column, before] @ root[column, before]
        if gap < least:
            weights = linalg.solve_triangular(
                root[before, before] + np.diag(sizes[before] == 0), root[column, before],
                lower=True, trans="T",
            )  # fmt: skip
            return int(column), [int(k) for k in np.flatnonzero(np.abs(weights) > small)]
        root[column, column] = np.sqrt(gap)
    return None
