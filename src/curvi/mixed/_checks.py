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
from curvi.likelihoods import Likelihood
from curvi.mixed._design import Design, Factor
from curvi.mixed._formula import Formula, Matrices
from curvi.mixed._hyper import INTERCEPT
from curvi.mixed._terms import Crossed


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
    """Categories in terms: too many of them, numbers as text, an order that is lost.

    A part of a table, with all levels, is enough.
    """
    used = formula.names.union(*(bar.names for bar in formula.bars))
    for name in (n for n in map(str, frame.columns) if n in used):
        column = frame[name]
        boxed = name in formula.boxed
        if column.dtype.kind in "biuf" and not boxed:
            continue
        levels = int(column.nunique())
        if not boxed:
            _inspect_texts(column, name, levels)
        require_memory(
            4 * 8.0 * rows * levels,
            f"a column for each of {levels} values of {quoted(name)} in {rows} rows",
            f"write (1 | {name}), which is made for factors of many levels",
        )
        if name not in formula.chosen:
            _inspect_order(column, name)


def _inspect_texts(column: Any, name: str, levels: int, *, most: int = 20) -> None:
    """Numbers as text: a few may be meant, many are a column that was not read as one."""
    import pandas as pd

    if getattr(getattr(column.dtype, "categories", None), "dtype", column.dtype).kind in "biuf":
        return
    texts = pd.Series(column.unique()).astype(str).str.replace(r"^([^,.]*),([^,.]*)$", r"\1.\2",
                                                               regex=True)  # fmt: skip
    if pd.to_numeric(texts, errors="coerce").isna().any():
        return
    said = (
        f"column {quoted(name)} holds numbers as text: each of its {levels} values is a category; "
        f"convert it with pd.to_numeric (decimal commas become points before), or write C({name}) "
        "if they are labels"
    )
    if levels > most:
        raise InputError(said)
    warn_user(said)


def _inspect_order(column: Any, name: str) -> None:
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype) and not column.cat.ordered:
        given = list(column.cat.remove_unused_categories().cat.categories)
        if given != sorted(given, key=_key):
            warn_user(
                f"the categories of {quoted(name)} have no order: they are sorted, and "
                f"{quoted(str(min(given, key=_key)))} is the first of them, not "
                f"{quoted(str(given[0]))}; use .cat.as_ordered() to keep the order in which they "
                f"were declared, or C({name}, Treatment('level')) to name the reference"
            )


def _key(value: Any) -> tuple[bool, Any]:
    return (isinstance(value, str), value)


@dataclass
class Pairs:
    """Which groups others tell apart, from the codes of rows that may come in parts.

    The others are factors, and categories among the fixed effects.
    """

    found: dict[tuple[str, int, int], np.ndarray] = field(default_factory=dict)

    def add(self, factors: Sequence[Factor], categories: Sequence[Crossed]) -> None:
        """See more rows."""
        for (i, a), (j, b) in itertools.combinations(enumerate(factors), 2):
            if a.levels == b.levels:
                self._see(("factor", i, j), a.codes, a.levels, b)
        for (i, one), (j, b) in itertools.product(enumerate(categories), enumerate(factors)):
            self._see(("fixed", i, j), one.codes, one.levels, b)

    def _see(self, key: tuple[str, int, int], codes: np.ndarray, levels: int, b: Factor) -> None:
        known = self.found.setdefault(key, np.zeros(0, np.int64))
        if len(known) <= levels:  # more pairs: a level of one is in several of the other
            new = codes.astype(np.int64) * b.levels + b.codes
            self.found[key] = np.unique(np.concatenate([known, new]))

    def announce(self, factors: Sequence[Factor], categories: Sequence[Crossed]) -> None:
        """Warn of one factor under two names, and of groups that fixed effects tell apart."""
        for (kind, i, j), known in self.found.items():
            b = factors[j]
            if kind == "factor":
                a = factors[i]
                same = a.levels > 1 and len(known) == a.levels and set(a.effects) & set(b.effects)
                if same:
                    warn_user(
                        f"{a.name} and {b.name} are the same groups under two names: the prior "
                        "alone tells their effects apart; keep one of them"
                    )
            elif b.levels > 1 and INTERCEPT in b.effects:
                name, apart = categories[i].name, len(np.unique(known // b.levels))
                is_it = "is a fixed effect and a group" if name == b.name else (
                    f"is a fixed effect, and tells the groups of {b.name} apart")  # fmt: skip
                if len(known) == apart:
                    warn_user(
                        f"{name} {is_it}: its levels have their own fixed effects, and the sd of "
                        f"(1 | {b.name}) is known from the prior alone; keep one of the two"
                    )


def require_width(matrices: Matrices, *, most: int = 3000) -> None:
    """Refuse columns so many that a fit would take hours, before any is computed."""
    formula = matrices.formula
    sums = [("fixed effects", matrices.common)]
    sums += [(f"effects per level of {bar.factor}", left)
             for bar, left in zip(formula.bars, matrices.lefts, strict=True)]  # fmt: skip
    for what, columns in sums:
        if (count := len(columns.labels())) > most:
            raise InputError(
                f"formula {quoted(formula.text)} has {count} {what}, and every step of a fit takes "
                "the cube of their number: that would take hours; make a factor of many levels a "
                "group, as in (1 | factor)"
            )


def require_work(factor: Factor, *, hyper: int = 60, most: float = 5e9) -> None:
    """Refuse effects per group so many that a fit would take hours or for ever."""
    count = sum(block.size + block.correlations for block in factor.blocks)
    if count > hyper and float(count) ** 2 * float(factor.size) ** 3 * factor.levels > most:
        raise InputError(
            f"{factor.name} has {factor.size} effects in each of {factor.levels} levels, and "
            f"{count} sds and correlations: that would take hours; leave out terms on the left of "
            "its bar, give a category fewer levels there, or make it a group, as in "
            "(1 | group:category)"
        )


def inspect_bars(factor: Factor, gram: np.ndarray) -> None:
    """Warn of effects of a level that its rows cannot tell apart, by products of the columns."""
    names = factor.effects
    if (found := collinear(gram)) and {names[k] for k in found[1]} != {INTERCEPT}:
        listed = ", ".join(names[k] for k in found[1][:4])
        warn_user(
            f"the effect of {quoted(names[found[0]])} in the groups of {factor.name} is a "
            f"combination of {listed}: the prior alone tells them apart; leave one of them out"
        )


def inspect_design(design: Design, gram: np.ndarray, rows: int, likelihood: Likelihood) -> None:
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
        if factor.levels == rows > 1 and INTERCEPT in factor.effects and likelihood.row_effects:
            warn_user(
                f"{factor.name} has one row per level: its effects and {likelihood.row_effects} "
                "are told apart by the prior alone; leave the term out"
            )


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
    np.fill_diagonal(unit, 1.0)  # a column of zeros is no combination of others
    root, failed = linalg.lapack.dpotrf(unit, lower=True)
    gaps = np.diag(root)[: failed - 1 if failed else None] ** 2  # of each from those before it
    low = np.flatnonzero(gaps < least)
    if not (low.size or failed):
        return None
    column = int(low[0]) if low.size else failed - 1
    before = root[:column, :column]
    across = linalg.solve_triangular(before, unit[:column, column], lower=True)
    weights = linalg.solve_triangular(before, across, lower=True, trans="T")
    return column, [int(k) for k in np.flatnonzero(np.abs(weights) > small)]
