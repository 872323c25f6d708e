"""A Gaussian model of a table that comes in parts: two passes, and no row is kept.

The first learns levels and the means and sds of columns (`_levels`), the second evaluates the
formula part by part and adds up sums. Memory grows with levels and effects, not with rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from curvi._core.errors import InputError
from curvi.latent import RowSums
from curvi.likelihoods import Likelihood
from curvi.mixed._checks import (
    Pairs,
    inspect_columns,
    inspect_design,
    inspect_origins,
    require_offset,
    require_width,
)
from curvi.mixed._design import Design, Factor, Moments, arrange, joined
from curvi.mixed._formula import Formula, Matrices, evaluate
from curvi.mixed._hyper import INTERCEPT, Layout
from curvi.mixed._large import part_of, present_levels
from curvi.mixed._levels import Parts, Seen, seen
from curvi.mixed._response import require_variation, response_of
from curvi.mixed._standard import moves, origin_of, standardised
from curvi.mixed._sums import Summed, moved, sums_of
from curvi.mixed._table import (
    Scales,
    as_frame,
    bars_of,
    blocks_of,
    checked,
    codes_of,
    finite_columns,
    fixed_scales,
    inspect,
    layout_of,
    levels_of,
    require_groups,
)

_NUMBERS = 2**21  # in the largest array of the rows that are evaluated together


class Learned(NamedTuple):
    """A model and the sums of its rows; the design has none."""

    matrices: Matrices
    example: Any  # a table from which the formula can be learned again
    design: Design
    layout: Layout
    summed: Summed


def learn(formula: Formula, parts: Parts, likelihood: Likelihood, scales: Scales) -> Learned:
    """Two passes over the parts of a table."""
    known = seen(formula, parts)
    inspect_columns(formula, known.example, len(known.example))
    matrices = evaluate(formula, known.example)
    require_width(matrices)
    inspect_origins(matrices, known.example)
    require_groups(formula, matrices.common_columns())
    reader = _Reader.of(matrices, known, likelihood)
    pairs = Pairs()
    total, moments, within, began, rows = _pass(reader, parts, known.rows, pairs)
    X, offset, y, *columns = reader.split(moments)
    require_variation(likelihood, float(y.low[0]), float(y.high[0]), formula.response)
    response = np.concatenate([y.mean - y.sd, y.mean + y.sd])
    unit, centre = likelihood.units(response, np.ones(2))
    names = list(reader.empty.names)
    fixed = fixed_scales(X, names, scales, unit, centre - float(offset.mean[0]))
    blocks = {}
    for (name, indices), one, most in zip(bars_of(formula).items(), columns, within, strict=True):
        blocks[name] = blocks_of(matrices, indices, one, scales.group_sd, unit)
        factor = next(f for f in reader.empty.factors if f.name == name)
        inspect(replace(factor, blocks=blocks[name]), one, most.deviations, most.gram)

    origin = np.array(origin_of(names, X.mean, X.varies))
    require_offset(float(offset.size[0]), unit)

    def finished(design: Design, start: _Start | None = None) -> Design:
        start = start or _Start.at_zero(len(names), reader.shapes())
        factors = []
        for factor in design.factors:
            place = list(blocks).index(factor.name)
            factors.append(start.seen_from(replace(factor, blocks=blocks[factor.name]), place))
        return replace(
            design, scales=fixed, centre=-began.shift, origin=origin - start.X, unit=unit,
            within=matrices.common.within, factors=tuple(factors),
        )  # fmt: skip

    design = finished(reader.empty)
    layout = layout_of(design, likelihood, scales, unit)
    levels = [factor.levels for factor in design.factors]
    sums = moved(total, moves(finished(reader.empty, began)), levels, unit)
    pairs.announce(
        [next(f for f in design.factors if f.name == name) for name in blocks],
        matrices.common.crossed(known.example),
    )
    inspect_design(design, sums.gram[: len(names), : len(names)].toarray(), known.rows, likelihood)
    some = None if rows is None else standardised(finished(rows, began), layout)[0]
    summed = Summed(sums, began.shift / fixed, response / unit, some)
    return Learned(matrices, known.example, design, layout, summed)


class _Start(NamedTuple):
    """What the first rows give to begin with: numbers near the means, so that no sum cancels."""

    shift: np.ndarray  # taken off the responses, and so off the intercept
    X: np.ndarray  # taken off the columns
    factors: list[np.ndarray]  # in the order of the formula

    @classmethod
    def at_zero(cls, fixed: int, shapes: list[tuple[int, int]]) -> _Start:
        return cls(np.zeros(fixed), np.zeros(fixed), [np.zeros(size) for _, size in shapes])

    @classmethod
    def of(
        cls, reader: _Reader, X: np.ndarray, target: np.ndarray, factors: tuple[Factor, ...]
    ) -> _Start:
        names = reader.empty.names
        shift = np.zeros(len(names))
        if INTERCEPT in names:
            shift[names.index(INTERCEPT)] = float(np.mean(target))
        some = Moments.of(X)
        found = []
        for (name, indices), factor in zip(
            bars_of(reader.matrices.formula).items(), factors, strict=True
        ):
            del name
            blocks = blocks_of(reader.matrices, indices, Moments.of(factor.columns), 1.0, 1.0)
            found.append(replace(factor, blocks=blocks).origin)
        return cls(shift, np.array(origin_of(names, some.mean, some.varies)), found)

    def seen_from(self, factor: Factor, place: int) -> Factor:
        """The factor of columns from which the start was taken off."""
        away, at, blocks = factor.origin - self.factors[place], 0, []
        for block in factor.blocks:
            blocks.append(replace(block, origin=tuple(away[at : at + block.size])))
            at += block.size
        return replace(factor, blocks=tuple(blocks))

    def without(
        self, X: np.ndarray, factors: tuple[Factor, ...]
    ) -> tuple[np.ndarray, tuple[Factor, ...]]:
        """Columns less the start."""
        return X - self.X, tuple(
            replace(factor, columns=factor.columns - away)
            for factor, away in zip(factors, self.factors, strict=True)
        )


def _pass(
    reader: _Reader, parts: Parts, count: int, pairs: Pairs
) -> tuple[RowSums, Moments, list[_Within], _Start, Design | None]:
    """RowSums and moments of all rows, and those rows that a large model begins with."""
    empty = reader.empty
    start: _Start | None = None
    within = [_Within.of(*one) for one in reader.shapes()]
    total: RowSums | None = None
    moments: Moments | None = None
    rows, kept = 0, []
    for part in _cut(parts(), reader.at_once):
        X, offset, y, factors = reader.read(part, rows)
        start = start or _Start.of(reader, X, y - offset, factors)
        near, nearer = start.without(X, factors)
        design = arrange(
            near, empty.names, empty.scales, offset, y - start.shift.sum(), np.ones(len(y)), nearer
        )
        sums = sums_of(design)
        found = Moments.of(np.column_stack([X, offset, y, *(f.columns for f in factors)]))
        total = sums if total is None else total + sums
        moments = found if moments is None else moments + found
        within = [one.after(*both) for one, *both in zip(within, factors, nearer, strict=True)]
        pairs.add(factors, reader.matrices.common.crossed(part))
        rows += len(y)
        if empty.is_large:
            kept.append(part_of(design, count))
    if total is None or moments is None or start is None or rows != count:
        raise _other_rows()
    return total, moments, within, start, present_levels(joined(kept)) if kept else None


def _other_rows() -> InputError:
    return InputError(
        "the parts had other rows in the second pass than in the first; give a function that "
        "returns a fresh iterator of the same tables whenever it is called"
    )


def _cut(parts: Iterator[Any], most: int) -> Iterator[Any]:
    """The same rows, not too many at once."""
    for part in parts:
        frame = as_frame(part, may_be_empty=True)
        for start in range(0, len(frame), most):
            yield frame.iloc[start : start + most].reset_index(drop=True)


@dataclass(frozen=True)
class _Within:
    """How far the columns of a factor are from the first row of their level."""

    first: np.ndarray  # (levels, K), nan where no row was seen
    deviations: np.ndarray  # (K,)
    gram: np.ndarray  # (K, K), products of the columns less the start

    @classmethod
    def of(cls, levels: int, size: int) -> _Within:
        return cls(np.full((levels, size), np.nan), np.zeros(size), np.zeros((size, size)))

    def after(self, factor: Factor, near: Factor) -> _Within:
        """What is known after the rows of another block."""
        levels, rows = np.unique(factor.codes, return_index=True)
        new = np.isnan(self.first[levels, 0])
        self.first[levels[new]] = factor.columns[rows[new]]
        apart = np.abs(factor.columns - self.first[factor.codes]).max(axis=0)
        gram = self.gram + near.columns.T @ near.columns
        return replace(self, deviations=np.maximum(self.deviations, apart), gram=gram)


@dataclass(frozen=True)
class _Reader:
    """From a part of the table to rows of the model, whose levels are known."""

    matrices: Matrices
    likelihood: Likelihood
    labels: dict[str, tuple[str, ...]]  # of every factor, in the order of the formula
    empty: Design

    @classmethod
    def of(cls, matrices: Matrices, known: Seen, likelihood: Likelihood) -> _Reader:
        formula, labels, factors = matrices.formula, {}, []
        for name, indices in bars_of(formula).items():
            columns = formula.bars[indices[0]].columns
            labels[name] = levels_of(known.distinct[columns], columns)[1]
            size = sum(len(matrices.bar_columns(index)) for index in indices)
            nothing = np.zeros((0, size))
            factors.append(Factor(name, labels[name], np.zeros(0, np.int64), nothing, ()))
        names, none = tuple(matrices.common_columns()), np.zeros(0)
        X = np.zeros((0, len(names)))
        empty = arrange(X, names, np.ones(len(names)), none, none, none, tuple(factors))
        return cls(matrices, likelihood, labels, empty)

    def shapes(self) -> list[tuple[int, int]]:
        """Levels and effects of every factor, in the order of the formula."""
        known = {factor.name: (factor.levels, factor.size) for factor in self.empty.factors}
        return [known[name] for name in self.labels]

    @property
    def at_once(self) -> int:
        """Rows that are evaluated together."""
        sizes = [size for _, size in self.shapes()]
        width = len(self.empty.names) + 2 + sum(size**2 for size in sizes)
        return max(1, _NUMBERS // (width if self.empty.is_large else width + self.empty.remaining))

    def split(self, moments: Moments) -> list[Moments]:
        """Moments of X, the offset, the response, and the columns of every factor."""
        widths = [len(self.empty.names), 1, 1, *(size for _, size in self.shapes())]
        ends = np.cumsum(widths)
        return [moments.of_columns(e - w, e) for w, e in zip(widths, ends, strict=True)]

    def read(
        self, frame: Any, first: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[Factor, ...]]:
        """X, the offset, the response and the factors; ``first`` is the number of the first row."""
        formula = self.matrices.formula
        part = checked(formula, frame, response=True, first=first)
        factors = []
        for name, indices in bars_of(formula).items():
            codes = codes_of(self.labels[name], part, formula.bars[indices[0]].columns)
            if codes.min() < 0:
                raise _other_rows()
            factors.append((name, codes, indices))
        X, offset, lefts = finite_columns(self.matrices, part, first)
        X, lefts = self.matrices.centred(X, lefts, part)
        found = self.matrices.response.of(part)
        y, _, _ = response_of(self.likelihood, found, None, formula.response, first)
        return X, offset, y, tuple(
            Factor(name, self.labels[name], codes, np.column_stack([lefts[i] for i in indices]), ())
            for name, codes, indices in factors
        )  # fmt: skip
