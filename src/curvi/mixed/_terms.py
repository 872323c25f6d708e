"""Terms of a formula as columns of numbers.

A term is a product of components, each a column or a call. Categories are coded so that the columns
of all terms are linearly independent (S. Chambers and T. Hastie, Statistical Models in S, chapter
2): an indicator of every level where no other term spans what they have in common, and contrasts
otherwise.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi._core.memory import require_memory
from curvi._core.text import quoted
from curvi.mixed._expressions import (
    CATEGORIES,
    CONTRASTS,
    Call,
    Column,
    Constant,
    Node,
    codes_of_values,
    column_of,
    compute,
    constant,
    levels_of_values,
)
from curvi.mixed._origins import (
    ONE,
    Entries,
    Span,
    Vector,
    multiplied,
    polynomials,
    symbol,
    variables,
)

Term = tuple[Node, ...]


@dataclass(frozen=True)
class Sum:
    """Terms in the order in which they are written, with a constant or without."""

    intercept: bool
    terms: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True)
class Written:
    """Terms of a sum so far: those that stand alone, and those of others, such as x in x*h."""

    alone: set[frozenset[Node]] = field(default_factory=set)
    within: set[frozenset[Node]] = field(default_factory=set)


def united(terms: list[Term], more: list[Term]) -> list[Term]:
    """Terms with more of them, each once: a:b and b:a are one."""
    found = {frozenset(term): term for term in (*reversed(more), *reversed(terms))}
    return [t for t in dict.fromkeys([*terms, *more]) if found[frozenset(t)] is t]


def crossed(first: Term, second: Term) -> Term:
    """The interaction of two terms; what is in both counts once."""
    return tuple(dict.fromkeys([*first, *second]))


@dataclass(frozen=True)
class Component:
    """A factor of a term that has seen a table: numbers, or a category with its levels."""

    node: Node
    name: str
    levels: tuple[str | int | float | bool, ...] | None = None  # None of numbers
    sums: bool = False  # contrasts that sum to zero instead of differences from a level
    reference: int = 0
    width: int = 1

    def __post_init__(self) -> None:
        texts = {isinstance(level, str) for level in self.levels or ()}
        if self.levels is not None and not (
            len(set(self.levels)) == len(self.levels) > self.reference >= 0 and len(texts) == 1
        ):
            raise InputError("the levels of a component are not different values of one kind")

    @classmethod
    def learned(cls, node: Node, table: Any) -> Component:
        """Levels of a category, or the memory of a number."""
        name, inner, contrast = str(node), node, None
        if isinstance(node, Call) and node.function in CATEGORIES:
            inner, contrast = _category(node)
        if contrast and isinstance(inner, Column):
            value = _raw(inner, table)
        else:
            value, inner = compute(inner, table)
        if not contrast and isinstance(value, np.ndarray) and value.ndim:
            width = 1 if value.ndim == 1 else value.shape[1]
            return cls(inner, name, width=width)
        if not hasattr(value, "shape") or np.ndim(value) != 1:
            raise InputError(f"{name} is the same in all rows; name a column")
        levels = levels_of_values(value, name)
        sums, chosen = contrast or (False, None)
        reference = len(levels) - 1 if sums else 0
        if chosen is not None:
            if chosen not in levels:
                raise InputError(f"{name} has no level {quoted(str(chosen))}")
            reference = levels.index(chosen)
        return cls(inner, name, levels, sums, reference)

    def labels(self, full: bool) -> list[str]:
        """Names of its columns; ``full`` keeps a column for every level."""
        if self.levels is None:
            if self.width == 1:
                return [self.name]
            return [f"{self.name}[{k}]" for k in range(self.width)]
        every = full and not self.sums
        kept = [str(v) for k, v in enumerate(self.levels) if every or k != self.reference]
        mean = ["mean"] if full and self.sums else []
        return [f"{self.name}[{level}]" for level in [*mean, *kept]]

    def columns(self, full: bool) -> int:
        """How many columns it has."""
        return self.width if self.levels is None else len(self.levels) - (not full)

    def values(self, table: Any, full: bool) -> np.ndarray:
        """Its columns on the rows of a table."""
        value = _raw(self.node, table) if self.levels is not None else compute(self.node, table)[0]
        if self.levels is None:
            try:
                return np.asarray(value, np.float64).reshape(len(table), self.width)
            except (TypeError, ValueError):
                raise InputError(
                    f"{quoted(self.name)} holds text; it held numbers when fitted"
                ) from None
        codes = codes_of_values(value, self.levels, self.name)
        found = np.zeros((len(table), len(self.levels)))
        found[np.arange(len(table)), codes] = 1.0
        if full and not self.sums:
            return found
        found = np.delete(found, self.reference, axis=1)
        if self.sums:
            found[codes == self.reference] = -1.0
        return np.column_stack([np.ones(len(table)), found]) if full else found

    def vectors(self, full: bool) -> list[Vector]:
        """Its columns as polynomials, levels, and functions that stay as they are."""
        if self.levels is None:
            found = polynomials(self.node, self.width)
            return found or [symbol(self.name, k) for k in range(self.width)]
        every = [symbol(self.name, k) for k in range(len(self.levels))]
        if not full or self.sums:  # contrasts are a basis of their own
            kept = every[: self.reference] + every[self.reference + 1 :]
            return [ONE, *kept] if full else kept
        left = dict(ONE)  # the reference is what no other level is
        for k, level in enumerate(every):
            left.update(dict.fromkeys(level, -1.0) if k != self.reference else {})
        return [left if k == self.reference else level for k, level in enumerate(every)]


def _raw(node: Any, table: Any) -> Any:
    """Values of a category: a column as it is, for a number of many digits is a name."""
    value = compute(node, table)[0]
    return table[node.name] if isinstance(node, Column) else value


def _category(node: Call) -> tuple[Node, tuple[bool, Any]]:
    """What is made a category, whether contrasts sum to zero, and the level left out."""
    second = CATEGORIES[node.function]
    given = node.arguments("data", second)
    sums, chosen = node.function == "S", given.get(second)
    if node.function != "C":
        level = None if chosen is None else constant(chosen, f"{second} of {node}")
        return given["data"], (sums, level)
    if isinstance(chosen, Constant) and chosen.text in ("None", *CONTRASTS):
        return given["data"], (chosen.text == "Sum", None)
    if chosen is None:
        return given["data"], (False, None)
    if not isinstance(chosen, Call) or chosen.function not in CONTRASTS:
        raise InputError(f"{node} has no contrast; write C(h, Treatment('level')) or C(h, Sum)")
    option = CONTRASTS[chosen.function]
    level = None
    if chosen.values or chosen.named:
        level = constant(chosen.arguments(option)[option], f"{option} of {node}")
    return given["data"], (chosen.function == "Sum", level)


@dataclass(frozen=True)
class Piece:
    """A product of components; those that are ``full`` have a column for every level."""

    components: tuple[Component, ...]
    full: tuple[bool, ...]

    def labels(self) -> list[str]:
        """Names of its columns."""
        pairs = zip(self.components, self.full, strict=True)
        return [":".join(parts) for parts in itertools.product(*(c.labels(f) for c, f in pairs))]

    def values(self, table: Any, moved: Any = None) -> np.ndarray:
        """Its columns on the rows of a table, polynomials on those of another one if given."""
        found = np.ones((len(table), 1))
        for component, full in zip(self.components, self.full, strict=True):
            columns = found.shape[1] * component.columns(full)
            require_memory(
                8.0 * len(table) * columns,
                f"{columns} columns of {':'.join(c.name for c in self.components)}",
                "write (1 | group) for factors of many levels",
            )
            powers = moved is not None and polynomials(component.node, component.width)
            part = component.values(moved if powers and not component.levels else table, full)
            found = (found[:, :, None] * part[:, None, :]).reshape(len(table), columns)
        return found

    def vectors(self) -> list[Vector]:
        """Its columns, by what they are made of."""
        found = [ONE]
        for component, full in zip(self.components, self.full, strict=True):
            pairs = itertools.product(found, component.vectors(full))
            found = [multiplied(a, b) for a, b in pairs]
        return found


@dataclass(frozen=True)
class Crossed:
    """A combination of categories: the level of every row, and how many there may be."""

    name: str
    codes: np.ndarray
    levels: int


@dataclass(frozen=True)
class Columns:
    """The columns of a sum that has seen a table, and its offset.

    ``centres`` are means of those columns of the table that may be moved without changing the span.
    """

    intercept: bool
    pieces: tuple[Piece, ...]
    offsets: tuple[Node, ...] = ()
    centres: tuple[tuple[str, float], ...] = ()

    @classmethod
    def learned(cls, terms: Sum, table: Any) -> Columns:
        """Learn every component, and how categories are coded."""
        offsets: list[Any] = []
        plain: list[Term] = []
        for term in terms.terms:
            calls = [n for n in term if isinstance(n, Call) and n.function == "offset"]
            if calls and len(term) > 1:
                raise InputError(f"{calls[0]} interacts with a term; it is added as it is")
            if calls:
                offsets.append(compute(calls[0], table)[1])
            else:
                plain.append(term)
        known = {node: Component.learned(node, table) for term in plain for node in term}
        learned = [tuple(known[node] for node in term) for term in plain]
        found = cls(terms.intercept, tuple(coded(terms.intercept, learned)), tuple(offsets))
        centres = {name: float(np.mean(table[name])) for name in sorted(found.span.closed())}
        found = replace(found, centres=tuple(centres.items()))
        found._require_digits(table)
        return found

    def _require_digits(self, table: Any, *, most: float = 0.1) -> None:
        """Refuse powers and products so far from zero that rounding hides how they vary."""
        far = {}
        for name, centre in self.centres:
            away = float(np.abs(column_of(table, name) - centre).max())
            far[name] = abs(centre) / away if away else 0.0
        for label, vector in zip(self.labels(), self.span.vectors, strict=False):
            for monomial, _ in vector:
                times = math.prod(far.get(name, 0.0) ** power for name, power in monomial)
                if sum(power for _, power in monomial) > 1 and times * np.finfo(float).eps > most:
                    raise InputError(
                        f"{label} is so far from zero that rounding hides how it varies; write "
                        f"center({monomial[0][0]}) in place of {monomial[0][0]}"
                    )

    def crossed(self, table: Any) -> list[Crossed]:
        """Categories, and combinations of them, whose levels all have a fixed effect."""
        out = []
        for piece in self.pieces:
            if all(c.levels is not None for c in piece.components):
                codes, count = np.zeros(len(table), np.int64), 1
                for c in piece.components:
                    more = codes_of_values(_raw(c.node, table), c.levels or (), c.name)
                    codes, count = codes * len(c.levels or ()) + more, count * len(c.levels or ())
                out.append(Crossed(":".join(str(c.node) for c in piece.components), codes, count))
        return out

    @cached_property
    def span(self) -> Span:
        """What the columns are made of; nothing where no number can be moved."""
        parts = [c for piece in self.pieces for c in piece.components if c.levels is None]
        if not any(polynomials(part.node, part.width) for part in parts):
            return Span([])
        constant_ = [ONE] if self.intercept else []
        return Span([*constant_, *itertools.chain(*(piece.vectors() for piece in self.pieces))])

    @property
    def tied(self) -> list[str]:
        """Columns of the table whose zero matters."""
        return sorted(variables(self.span.vectors) - dict(self.centres).keys())

    @cached_property
    def within(self) -> Entries:
        """How columns around the centres follow from those that are there."""
        return self.span.entries(dict(self.centres))

    def around(self, values: np.ndarray, table: Any) -> np.ndarray:
        """The columns around the centres, computed there: x**2 less 2 c x has few digits left."""
        if not self.within:
            return values
        away = {name: column_of(table, name) - centre for name, centre in self.centres}
        return self.values(table, table.assign(**away))

    def labels(self) -> list[str]:
        """Names of the columns, offsets left out."""
        constant_ = ["Intercept"] if self.intercept else []
        return [*constant_, *itertools.chain(*(piece.labels() for piece in self.pieces))]

    def values(self, table: Any, moved: Any = None) -> np.ndarray:
        """The columns on the rows of a table, polynomials on those of another one if given."""
        ones = np.ones((len(table), int(self.intercept)))
        with np.errstate(all="ignore"):  # what is not finite is reported by column
            parts = (piece.values(table, moved) for piece in self.pieces)
            return np.column_stack([ones, *parts])

    def offset(self, table: Any) -> np.ndarray:
        """The sum of the offsets."""
        found = np.zeros(len(table))
        with np.errstate(all="ignore"):
            for node in self.offsets:
                found = found + compute(node, table)[0]
        return found


def coded(intercept: bool, terms: list[tuple[Component, ...]]) -> list[Piece]:
    """How the categories of every term are coded, so that no column follows from the others.

    With contrasts alone, the product of a set of categories spans what is new in their
    interaction, and a full set of indicators spans that and what the others have without it. Terms
    of fewer categories come first, as what they span is left out of the rest.
    """
    spanned: dict[frozenset[str], set[frozenset[str]]] = {}
    if intercept:
        spanned[frozenset()] = {frozenset()}
    pieces: dict[int, list[Piece]] = {}
    names = [[c.name for c in term if c.levels is not None] for term in terms]
    for place in sorted(range(len(terms)), key=lambda k: len(names[k])):
        numbers = frozenset(c.name for c in terms[place] if c.levels is None)
        known = spanned.setdefault(numbers, set())
        new = [s for s in _subsets(names[place]) if frozenset(s) not in known]
        known.update(map(frozenset, new))
        pieces[place] = []
        for members, full in _joined(new):
            kept = [c for c in terms[place] if c.levels is None or c.name in members]
            pieces[place].append(Piece(tuple(kept), tuple(c.name in full for c in kept)))
    return [piece for place in range(len(terms)) for piece in pieces[place]]


def _subsets(names: list[str]) -> list[tuple[str, ...]]:
    sizes = range(len(names) + 1)
    return [some for size in sizes for some in itertools.combinations(names, size)]


def _joined(new: list[tuple[str, ...]]) -> list[tuple[frozenset[str], frozenset[str]]]:
    """Sets of categories, and which of them are full, that together span the given sets."""
    blocks = [(frozenset(some), frozenset[str]()) for some in new]
    while True:
        pair = next(
            (
                (a, b)
                for a, b in itertools.combinations(blocks, 2)
                if a[0] < b[0] and len(b[0] - a[0]) == 1 and a[1] == b[1]
            ),
            None,
        )
        if pair is None:
            return blocks
        (small, full), large = pair
        place = blocks.index(large)
        blocks[place] = (large[0], full | (large[0] - small))
        blocks.remove(pair[0])
