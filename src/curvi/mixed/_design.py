"""The rows of a model: fixed columns, grouping factors, the response."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from curvi.mixed._hyper import Block
from curvi.mixed._origins import Entries

LARGE_REST = 400  # remaining effects from which systems are sparse


@dataclass(frozen=True)
class Moments:
    """Mean, spread and range of columns; those of two blocks of rows add up."""

    count: int
    mean: np.ndarray
    square: np.ndarray  # sum of squared deviations from the mean
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """Of at least one row of an array (rows, columns)."""
        columns = np.ascontiguousarray(values.T)  # sums over contiguous numbers are more exact
        mean = columns.mean(axis=1)
        square = ((columns - mean[:, None]) ** 2).sum(axis=1)
        return cls(len(values), mean, square, columns.min(axis=1), columns.max(axis=1))

    def __add__(self, other: Moments) -> Moments:
        """Of the rows of both (Chan, Golub and LeVeque)."""
        count = self.count + other.count
        apart, share = other.mean - self.mean, other.count / count
        return Moments(
            count,
            self.mean + share * apart,
            self.square + other.square + self.count * share * apart**2,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    def of_columns(self, start: int, stop: int) -> Moments:
        """Of some of the columns."""
        some = slice(start, stop)
        return Moments(
            self.count, self.mean[some], self.square[some], self.low[some], self.high[some]
        )

    @property
    def sd(self) -> np.ndarray:
        """Standard deviations, of the rows themselves."""
        return np.sqrt(self.square / self.count)

    @property
    def varies(self) -> np.ndarray:
        """Whether a column has more than one value, rounding apart."""
        return self.high - self.low > 1e-12 * self.size

    @property
    def size(self) -> np.ndarray:
        """Largest absolute values."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


@dataclass(frozen=True)
class Factor:
    """A grouping factor: the level of each row, and the columns whose effects vary over levels."""

    name: str
    labels: tuple[str, ...]
    codes: np.ndarray  # (rows,), -1 for a level that was not seen
    columns: np.ndarray  # (rows, size)
    blocks: tuple[Block, ...]

    @property
    def levels(self) -> int:
        """Number of levels."""
        return len(self.labels)

    @property
    def size(self) -> int:
        """Effects per level."""
        return self.columns.shape[1]

    @property
    def effects(self) -> tuple[str, ...]:
        """Names of the effects of a level."""
        return tuple(name for block in self.blocks for name in block.columns)

    @property
    def scales(self) -> np.ndarray:
        """Prior scales of the sds of all effects."""
        return np.array([scale for block in self.blocks for scale in block.scales])

    @property
    def origin(self) -> np.ndarray:
        """Where the priors of the effects are stated."""
        return np.array([v for b in self.blocks for v in (b.origin or (0.0,) * b.size)])


@dataclass(frozen=True)
class Design:
    """Rows in the order of the levels of the first factor, which has the most levels.

    ``weights`` counts how often a row occurs: groups with the same rows are kept once.
    """

    X: np.ndarray  # (rows, fixed effects)
    names: tuple[str, ...]
    scales: np.ndarray  # sds of the priors of the fixed effects
    offset: np.ndarray
    y: np.ndarray
    trials: np.ndarray
    factors: tuple[Factor, ...]
    weights: np.ndarray
    copies: np.ndarray  # how often a level of the first factor occurs
    order: np.ndarray  # rows of the table in the order of this design
    alias: np.ndarray  # for each level of the table's first factor, the level kept here
    origin: np.ndarray  # values of the columns at which the prior of the intercept is stated
    within: Entries = ()  # how columns of products were moved before, see `_origins`
    centre: np.ndarray | None = None  # prior means of the fixed effects; zero if absent
    unit: float = 1.0  # of the response

    @property
    def rows(self) -> int:
        """Number of rows that are kept."""
        return self.X.shape[0]

    @property
    def remaining(self) -> int:
        """Number of effects beside those of the first factor."""
        return len(self.names) + sum(f.levels * f.size for f in self.factors[1:])

    @property
    def is_large(self) -> bool:
        """Whether so many effects remain that systems are sparse."""
        return self.remaining > LARGE_REST

    @property
    def starts(self) -> np.ndarray:
        """First row of every level of the first factor."""
        return np.searchsorted(self.factors[0].codes, np.arange(self.factors[0].levels))


def arrange(
    X: np.ndarray,
    names: tuple[str, ...],
    scales: np.ndarray,
    offset: np.ndarray,
    y: np.ndarray,
    trials: np.ndarray,
    factors: tuple[Factor, ...],
) -> Design:
    """Order rows by the levels of the factor that has the most effects."""
    first = max(range(len(factors)), key=lambda i: factors[i].levels * factors[i].size)
    factors = (factors[first], *factors[:first], *factors[first + 1 :])
    order = np.argsort(factors[0].codes, kind="stable")
    taken = tuple(_rows(factor, order) for factor in factors)
    levels = taken[0].levels
    return Design(
        X[order], names, scales, offset[order], y[order], trials[order], taken,
        np.ones(len(order)), np.ones(levels), order, np.arange(levels), np.zeros(len(names)),
    )  # fmt: skip


def _rows(factor: Factor, index: np.ndarray) -> Factor:
    return replace(factor, codes=factor.codes[index], columns=factor.columns[index])


def taken(design: Design, index: np.ndarray) -> Design:
    """Some rows of a design, with the levels of all."""
    return replace(
        design, X=design.X[index], offset=design.offset[index], y=design.y[index],
        trials=design.trials[index], weights=design.weights[index], order=design.order[index],
        factors=tuple(_rows(factor, index) for factor in design.factors),
    )  # fmt: skip


def joined(parts: list[Design]) -> Design:
    """The rows of designs with the same levels, in the order of those of the first factor."""

    def of(name: str, factor: int | None = None) -> np.ndarray:
        sources = parts if factor is None else [part.factors[factor] for part in parts]
        return np.concatenate([getattr(source, name) for source in sources])

    factors = tuple(
        replace(factor, codes=of("codes", at), columns=of("columns", at))
        for at, factor in enumerate(parts[0].factors)
    )
    whole = replace(
        parts[0], X=of("X"), offset=of("offset"), y=of("y"), trials=of("trials"),
        weights=of("weights"), order=of("order"), factors=factors,
    )  # fmt: skip
    return taken(whole, np.argsort(factors[0].codes, kind="stable"))


def merge_copies(design: Design) -> Design:
    """Keep one of all levels of the only factor whose rows are the same; ``copies`` counts them.

    Children who gave the same answers at the same ages have the same posterior, and the cost of
    a fit is that of the distinct ones.
    """
    factor = design.factors[0]
    if len(design.factors) > 1:
        return design
    table = np.column_stack([design.X, design.offset, design.y, design.trials, factor.columns])
    ends = np.append(design.starts[1:], design.rows)
    seen: dict[bytes, int] = {}
    alias = np.empty(factor.levels, int)
    kept: list[int] = []
    for level, (start, end) in enumerate(zip(design.starts, ends, strict=True)):
        rows = table[start:end]
        key = rows[np.lexsort(rows.T)].tobytes()
        if key not in seen:
            seen[key] = len(kept)
            kept.append(level)
        alias[level] = seen[key]
    if len(kept) == factor.levels:
        return design
    rows = np.concatenate([np.arange(design.starts[k], ends[k]) for k in kept])
    codes = np.repeat(np.arange(len(kept)), [ends[k] - design.starts[k] for k in kept])
    copies = np.bincount(alias, minlength=len(kept)).astype(np.float64)
    labels = tuple(factor.labels[k] for k in kept)
    merged = replace(factor, labels=labels, codes=codes, columns=factor.columns[rows])
    return replace(
        design, X=design.X[rows], offset=design.offset[rows], y=design.y[rows],
        trials=design.trials[rows], factors=(merged,), weights=copies[codes], copies=copies,
        order=design.order[rows], alias=alias,
    )  # fmt: skip


def centred(design: Design) -> tuple[Design, np.ndarray]:
    """The response around its mean, and what to add to the fixed effects afterwards.

    The intercept takes the mean, and its prior moves along, so that the posterior is the same;
    but sums of squares no longer cancel where the mean is large beside the sd.
    """
    shift = np.zeros(len(design.names))
    if "Intercept" not in design.names:
        return design, shift
    at = design.names.index("Intercept")
    mean = np.average(design.y - design.offset, weights=design.weights)
    shift[at] = mean / design.X[0, at]  # one, or the scale of its prior
    before = np.zeros(len(shift)) if design.centre is None else design.centre
    return replace(design, y=design.y - mean, centre=before - shift), shift
