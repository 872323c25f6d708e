"""From a user's table to a design: validation, default priors, levels of groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from curvi._core import validation
from curvi._core.errors import InputError, warn_user
from curvi._core.text import quoted
from curvi.likelihoods import Extra, Likelihood
from curvi.mixed._checks import (
    Pairs,
    inspect_bars,
    inspect_design,
    inspect_zero,
    require_offset,
    require_size,
    require_work,
)
from curvi.mixed._design import Design, Factor, Moments, arrange
from curvi.mixed._expressions import unknown_column
from curvi.mixed._formula import Formula, Matrices, column_names
from curvi.mixed._hyper import Block, Layout
from curvi.mixed._standard import origin_of

WIDE = 2.5  # default prior scales in units of the response over those of a column


@dataclass(frozen=True)
class Scales:
    """Prior scales as a user gives them; None is replaced by a default in the units of the data."""

    fixed: float | None = None
    intercept: float | None = None
    group_sd: float | None = None
    noise: float | None = None


def as_frame(table: Any, *, may_be_empty: bool = False) -> Any:
    """A pandas table from a pandas table or a mapping of names to columns."""
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        frame = table
    elif isinstance(table, Mapping):
        lengths = {str(name): np.shape(values) for name, values in table.items()}
        for name, shape in lengths.items():
            if len(shape) != 1 or shape != next(iter(lengths.values())):
                raise InputError(
                    f"column {quoted(name)} has shape {shape}; give columns of one length"
                )
        frame = pd.DataFrame({str(name): np.asarray(v) for name, v in table.items()})
    else:
        raise InputError(
            f"table is a {type(table).__name__}; give a pandas DataFrame or a dict of columns"
        )
    if not len(frame) and not may_be_empty:
        raise InputError("the table has no rows")
    return frame.reset_index(drop=True)


def checked(
    formula: Formula, frame: Any, *, response: bool, groups_may_miss: bool = False, first: int = 0
) -> Any:
    """The columns of the table that the formula names; missing values and names are refused.

    ``first`` is the number of the first row, where the table is a part of another.
    """
    groups = {name for bar in formula.bars for name in bar.columns}
    names = column_names(formula, response=response)
    known = [str(name) for name in frame.columns]
    for name in sorted(names):
        if name not in known:
            raise unknown_column(name, frame)
    used = [name for name in known if name in names]
    part = frame[used]
    require_real(part)
    for name in used:
        validation.refuse_unreal(part[name], f"column {quoted(name)}")
        missing = np.flatnonzero(part[name].isna().to_numpy())
        if len(missing) and not (groups_may_miss and name in groups):
            kind = "group column" if name in groups else "column"
            raise InputError(
                f"{kind} {quoted(name)} is missing in row {first + missing[0]}, in "
                f"{len(missing)} of {len(part)} rows; drop these rows, or fill them"
            )
    return part


def require_real(frame: Any) -> None:
    """Refuse complex numbers, which are neither numbers of a model nor names of groups."""
    import pandas as pd

    for name, column in frame.items():
        boxed = column.dtype.kind == "O" and pd.api.types.infer_dtype(column) == "complex"
        if column.dtype.kind == "c" or boxed:
            raise InputError(
                f"column {quoted(str(name))} holds complex numbers; give a column of real parts, "
                "imaginary parts, sizes or angles"
            )


def bars_of(formula: Formula) -> dict[str, list[int]]:
    """Numbers of the bars of every factor; bars over the same groups share one."""
    found: dict[str, list[int]] = {}
    for index, bar in enumerate(formula.bars):
        found.setdefault(bar.factor, []).append(index)
    return found


def blocks_of(
    matrices: Matrices, indices: list[int], moments: Moments, scale: float | None, unit: float
) -> tuple[Block, ...]:
    """The blocks of a factor with their priors, from the moments of its columns."""
    blocks, at = [], 0
    for index in indices:
        columns = tuple(matrices.bar_columns(index))
        units = [spread(moments, at + k, column) for k, column in enumerate(columns)]
        scales = tuple(scale if scale is not None else WIDE * unit / one for one in units)
        correlated = matrices.formula.bars[index].correlated
        some = slice(at, at + len(columns))
        # Columns that are not correlated are so where they are zero: that is what || means.
        means = moments.mean[some] if correlated else np.zeros(len(columns))
        origin = origin_of(columns, means, moments.varies[some])
        blocks.append(Block(columns, scales, correlated, origin, matrices.lefts[index].within))
        at += len(columns)
    return tuple(blocks)


def _factors(
    matrices: Matrices, frame: Any, lefts: list[np.ndarray], scale: float | None, unit: float
) -> tuple[Factor, ...]:
    """Grouping factors in the order of the formula."""
    factors, formula = [], matrices.formula
    for name, indices in bars_of(formula).items():
        codes, labels = levels_of(frame, formula.bars[indices[0]].columns)
        stacked = np.column_stack([lefts[index] for index in indices])
        moments = Moments.of(stacked)
        blocks = blocks_of(matrices, indices, moments, scale, unit)
        factor = Factor(name, labels, codes, stacked, blocks)
        away = np.abs(stacked - _level_means(factor)[codes]).max(axis=0)
        near = stacked - factor.origin
        inspect(factor, moments, away, near.T @ near)
        factors.append(factor)
    return tuple(factors)


def _level_means(factor: Factor) -> np.ndarray:
    counts = np.maximum(np.bincount(factor.codes, minlength=factor.levels), 1)
    sums = [np.bincount(factor.codes, values, factor.levels) for values in factor.columns.T]
    return np.stack(sums, axis=1) / counts[:, None]


def levels_of(frame: Any, columns: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes and labels of the levels: combinations of values that occur."""
    import pandas as pd

    codes, labels = np.zeros(len(frame), np.int64), [""]
    for depth, column in enumerate(columns):
        part, values = pd.factorize(frame[column], sort=True)
        place: dict[str, int] = {}  # values that read alike, 1 and "1", are one level
        part = np.array([place.setdefault(label_of(v), len(place)) for v in values])[part]
        texts = list(place)
        pairs = codes * len(texts) + part
        present, codes = np.unique(pairs, return_inverse=True)
        join = ":" if depth else ""
        labels = [labels[p // len(texts)] + join + texts[p % len(texts)] for p in present]
    if len(set(labels)) < len(labels):
        raise InputError(
            f"two levels of {':'.join(columns)} read alike, because values contain a colon; "
            "write them without"
        )
    return codes, tuple(labels)


def label_of(value: Any) -> str:
    """The text of a value, the same for 3 and 3.0: a missing value makes a column of floats."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def labels_of(column: Any) -> np.ndarray:
    """`label_of` every value of a column; missing ones have an arbitrary text."""
    import pandas as pd

    codes, values = pd.factorize(column)
    return np.array([*(label_of(value) for value in values), ""], object)[codes]


def codes_of(labels: tuple[str, ...], frame: Any, columns: tuple[str, ...]) -> np.ndarray:
    """Codes of the levels of new rows: -1 where a level was not seen, -2 where it is missing."""
    import pandas as pd

    missing = frame[list(columns)].isna().any(axis=1).to_numpy()
    texts = labels_of(frame[columns[0]])
    for column in columns[1:]:
        texts = texts + ":" + labels_of(frame[column])
    codes = pd.Index(labels, dtype=object).get_indexer(texts).astype(np.int64)
    codes[missing] = -2
    return codes


def inspect(factor: Factor, moments: Moments, deviations: np.ndarray, gram: np.ndarray) -> None:
    """Warn of a factor that the data say little about.

    ``deviations`` are the largest distances of its columns from one value per level, ``gram`` has
    their products.
    """
    name, levels = factor.name, factor.levels
    require_work(factor)
    inspect_bars(factor, gram)
    if levels == 1:
        warn_user(
            f"{name} has a single level: its sd is known from the prior alone; leave the term out, "
            "or give it more groups"
        )
    inspect_zero(factor, moments.low, moments.high)
    for column, size, most in zip(factor.effects, moments.size, deviations, strict=True):
        if column == "Intercept" or levels == moments.count:
            continue
        if most <= 1e-12 * size:
            warn_user(
                f"{column} does not vary within any level of {name}: its effect per level is told "
                "from the intercept of the level by the prior alone"
            )


def spread(moments: Moments, column: int, name: str) -> float:
    """The unit of a column: one for an intercept, its sd, or its size where it is constant."""
    if name == "Intercept":
        return 1.0
    sd, size = float(moments.sd[column]), float(moments.size[column])
    return sd if moments.varies[column] else (size or 1.0)


def build(
    formula: Formula,
    matrices: Matrices,
    frame: Any,
    likelihood: Likelihood,
    response: tuple[np.ndarray, np.ndarray],
    scales: Scales,
) -> tuple[Design, Layout]:
    """The design of a table, and the layout of its hyperparameters, with their priors."""
    X, offset, lefts = finite_columns(matrices, frame)
    X, lefts = matrices.centred(X, lefts, frame)
    names = matrices.common_columns()
    require_groups(formula, names)
    y, trials = response
    unit, centre = likelihood.units(y, trials)
    moments = Moments.of(X)
    fixed = fixed_scales(moments, names, scales, unit, centre - float(np.mean(offset)))
    origin = np.array(origin_of(names, moments.mean, moments.varies))
    factors = _factors(matrices, frame, lefts, scales.group_sd, unit)
    design = arrange(X, tuple(names), fixed, offset, y, trials, factors)
    design = replace(design, origin=origin, unit=unit, within=matrices.common.within)
    require_offset(float(np.abs(offset).max()), unit)
    pairs = Pairs()
    categories = matrices.common.crossed(frame)
    pairs.add(factors, categories)
    pairs.announce(factors, categories)
    plain = (X - origin) * (fixed / unit)
    inspect_design(design, plain.T @ plain, len(y), likelihood)
    return design, layout_of(design, likelihood, scales, unit)


def finite_columns(
    matrices: Matrices, frame: Any, first: int = 0
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """X, the offset and the columns of every bar; ``first`` is the number of the first row."""
    X, offset, lefts = matrices.evaluate(frame)
    for values, name in [*zip(X.T, matrices.common_columns(), strict=True), (offset, "offset")]:
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise InputError(f"column {quoted(name)} is {values[bad[0]]} in row {first + bad[0]}")
        if values is not offset:  # a small one does no harm, a large one is refused by its unit
            require_size(values, f"column {quoted(name)}")
    for left, bar in zip(lefts, matrices.formula.bars, strict=True):
        bad = np.flatnonzero(~np.isfinite(left).all(axis=1))
        if len(bad):
            raise InputError(f"({bar.left} | {bar.factor}) is not finite in row {first + bad[0]}")
        for column in left.T:
            require_size(column, f"({bar.left} | {bar.factor})")
    return X, offset, lefts


def require_groups(formula: Formula, names: list[str]) -> None:
    """Refuse a formula that is no mixed model."""
    if not formula.bars:
        raise InputError(
            f"formula {quoted(formula.text)} has no group term; add one such as (1 | group), or "
            "use curvi.BayesianLinearRegression, -LogisticRegression or -PoissonRegression"
        )
    if not names and len({bar.factor for bar in formula.bars}) == 1:
        raise InputError(
            f"formula {quoted(formula.text)} has neither an intercept nor another fixed effect; "
            "keep the intercept, or add a column"
        )


def layout_of(design: Design, likelihood: Likelihood, scales: Scales, unit: float) -> Layout:
    """Hyperparameters of a design, with their priors."""
    extras = tuple(
        Extra(extra.name, scales.noise or extra.scale * unit, extra.prior)
        if extra.name == "residual sd"
        else extra
        for extra in likelihood.extras
    )
    return Layout(tuple(f.blocks for f in design.factors), extras)


def fixed_scales(
    moments: Moments, names: list[str], scales: Scales, unit: float, centre: float
) -> np.ndarray:
    """Sds of the priors of the fixed effects; a column that is constant is warned of."""
    out = np.empty(len(names))
    for index, name in enumerate(names):
        if name == "Intercept":
            continue
        if not moments.varies[index] and "Intercept" in names:
            value = f"{float(moments.low[index]):.6g}"
            warn_user(
                f"column {quoted(name)} is constant ({value}): its effect is told from the "
                "intercept by the prior alone; leave it out"
            )
        default = WIDE * unit / spread(moments, index, name)
        out[index] = scales.fixed if scales.fixed is not None else default
    if "Intercept" in names:
        # The value at the means of all columns, which is of the size of the response.
        default = WIDE * np.hypot(unit, centre)
        given = scales.intercept
        out[names.index("Intercept")] = given if given is not None else default
    return out
