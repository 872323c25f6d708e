"""Formulas with groups: read by `_grammar`, learned from a table, and computed on others.

``y ~ x + (1 + x | g)`` has a common part, ``y ~ x``, and bars, ``(1 + x | g)``. The left side of a
bar is a matrix of its own and its groups stay integers, so that no matrix of rows times groups is
ever made. Columns that stand in the same bar are correlated, as in lme4; ``||`` keeps them apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from curvi._core.errors import InputError
from curvi._core.text import quoted
from curvi.mixed._expressions import (
    CATEGORIES,
    RESPONSES,
    WORDS,
    Call,
    Column,
    Constant,
    Node,
    column_of,
    compute,
    constant,
    levels_of_values,
    nodes,
)
from curvi.mixed._grammar import read
from curvi.mixed._terms import Columns, Sum


def _nodes_of(terms: Sum) -> Iterator[Node]:
    return itertools.chain(*(nodes(node) for term in terms.terms for node in term))


def _names(found: Iterator[Node]) -> frozenset[str]:
    return frozenset(node.name for node in found if isinstance(node, Column))


@dataclass(frozen=True)
class Bar:
    """One term ``(left | groups)``; a group is a combination of the values of its columns."""

    left: str
    columns: tuple[str, ...]
    correlated: bool
    terms: Sum

    @property
    def factor(self) -> str:
        """The grouping factor as it is written: ``a:b`` for combinations."""
        return ":".join(self.columns)

    @property
    def names(self) -> frozenset[str]:
        """Columns on its left."""
        return _names(_nodes_of(self.terms))


@dataclass(frozen=True)
class Formula:
    """The response, the common part and the bars of a formula."""

    text: str
    response: str
    node: Node  # the response
    level: str | None  # of y['yes']
    common: Sum
    bars: tuple[Bar, ...]

    @property
    def names(self) -> frozenset[str]:
        """Columns of the common part."""
        return _names(_nodes_of(self.common))

    @property
    def response_names(self) -> frozenset[str]:
        """Columns of the response."""
        return _names(nodes(self.node))

    @property
    def outcomes(self) -> frozenset[str]:
        """Columns of the response without those of trials, which may be predictors."""
        if not isinstance(self.node, Call) or self.node.function not in RESPONSES:
            return self.response_names
        named = [value for name, value in self.node.named if name in ("successes", "x")]
        return frozenset().union(*(_names(nodes(one)) for one in (*self.node.values, *named)[:1]))

    @property
    def boxes(self) -> list[Call]:
        """Calls that make categories."""
        calls = (node for part in self.parts()[1:] for node in part if isinstance(node, Call))
        return [call for call in calls if call.function in CATEGORIES]

    @property
    def boxed(self) -> frozenset[str]:
        """Columns that are made categories."""
        return frozenset().union(*(_names(nodes(call)) for call in self.boxes))

    @property
    def chosen(self) -> frozenset[str]:
        """Columns whose reference is named."""
        named = [call for call in self.boxes if any(
            isinstance(n, Constant) and n.text not in WORDS for n in nodes(call))]  # fmt: skip
        return frozenset().union(*(_names(nodes(call)) for call in named))

    def parts(self) -> list[list[Node]]:
        """All nodes: of the response, the common part, and the left side of every bar."""
        sums = [self.common, *(bar.terms for bar in self.bars)]
        return [list(nodes(self.node)), *(list(_nodes_of(one)) for one in sums)]


def parse(text: Any) -> Formula:
    """Split a formula into its parts, or say what is wrong with it."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"formula is {text!r}; give a text such as 'y ~ x + (1 | group)'")
    parsed = read(text)
    bars = [
        Bar(bar.text, tuple(itertools.chain(*bar.nested[:depth])), bar.correlated, bar.left)
        for bar in parsed.bars
        for depth in range(1, len(bar.nested) + 1)
    ]
    _require_once(text, bars)
    found = Formula(text, parsed.text, parsed.response, parsed.level, parsed.common, tuple(bars))
    if again := found.outcomes & column_names(found, response=False):
        raise InputError(
            f"formula {quoted(text, 80)} has the response {quoted(min(again))} on the right, as a "
            "predictor or group; leave it out there"
        )
    return found


def _require_once(text: str, bars: list[Bar]) -> None:
    """Refuse an effect that a factor has twice: nothing could tell the two apart."""
    seen: set[tuple[frozenset[str], frozenset[Node]]] = set()
    for bar in bars:
        if len(set(bar.columns)) < len(bar.columns):
            raise InputError(
                f"formula {quoted(text)} has a column twice in the groups {bar.factor}"
            )
        for term in (*[()] * bar.terms.intercept, *bar.terms.terms):
            key = frozenset(bar.columns), frozenset(term)
            if key in seen:
                name = ":".join(map(str, term)) or "the intercept"
                raise InputError(
                    f"formula {quoted(text)} has {name} twice for the groups {bar.factor}; write "
                    "it once, in one bar"
                )
            seen.add(key)


def column_names(formula: Formula, *, response: bool = True) -> set[str]:
    """Columns that the formula takes from a table."""
    bars = itertools.chain(*(bar.names | set(bar.columns) for bar in formula.bars))
    return set(bars) | formula.names | (formula.response_names if response else set())


@dataclass(frozen=True)
class Responses:
    """The response of some rows: numbers, or texts that are two classes, or successes of trials."""

    kind: str  # "numeric", "categoric" or "proportion"
    values: np.ndarray


@dataclass(frozen=True)
class Response:
    """The response of a formula, with what it has learned."""

    node: Node
    kind: Literal["numeric", "categoric", "proportion"]
    level: str | float | int | bool | None = None  # that is a success
    trials: Node | None = None

    @classmethod
    def learned(cls, node: Node, level: Any, table: Any) -> Response:
        """What the rows of a fit tell."""
        if isinstance(node, Call) and node.function in RESPONSES:
            if node.function in ("B", "binary"):
                given = node.arguments("x", "success")
                value = compute(given["x"], table)[0]
                chosen = given.get("success")
                first = levels_of_values(value, str(node))[0]
                success = first if chosen is None else constant(chosen, f"success of {node}")
                return cls(given["x"], "numeric", success)
            given = node.arguments("successes", "trials")
            if set(given) != {"successes", "trials"} or not isinstance(given["successes"], Column):
                raise InputError(f"{node} needs a column of successes and one of trials")
            return cls(given["successes"], "proportion", trials=given["trials"])
        if level is not None:
            return cls(node, "categoric", level)
        value, node = compute(node, table)
        return cls(node, "numeric" if isinstance(value, np.ndarray) else "categoric")

    def of(self, table: Any) -> Responses:
        """The response of the rows of a table."""
        value = compute(self.node, table)[0]
        if self.kind == "proportion":
            return Responses(self.kind, self._proportions(np.asarray(value), table))
        if self.level is not None:
            return Responses(self.kind, _is_level(value, self.level))
        return Responses(self.kind, np.asarray(value))

    def of_trials(self, table: Any) -> np.ndarray:
        """Trials of rows, whose successes need not be known."""
        node = self.trials
        if node is None:
            raise InputError("there are no trials")
        if isinstance(node, Column):
            value = column_of(table, node.name)
        else:
            value = constant(node, "the number of trials")
        if not isinstance(value, np.ndarray | int | float):
            raise InputError(f"the number of trials is {node}, which is no number")
        return np.broadcast_to(np.asarray(value, np.float64), len(table))

    def _proportions(self, successes: np.ndarray, table: Any) -> np.ndarray:
        trials = self.of_trials(table)
        for values, what in ((successes, "successes"), (trials, "trials")):
            if values.dtype.kind != "f" or np.any(values % 1 != 0):
                raise InputError(f"the {what} of proportion(...) are not whole numbers")
        if np.any(successes > trials):
            raise InputError("there are more successes than trials")
        return np.column_stack([successes, trials])


def _is_level(value: Any, level: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        try:
            return np.asarray(value == float(level), np.float64)
        except ValueError:
            return np.zeros(len(value))
    return np.array([str(one) == str(level) for one in value], np.float64)


@dataclass(frozen=True)
class Matrices:
    """What a formula makes of a table, by what it has learned from the rows of a fit."""

    formula: Formula
    common: Columns
    response: Response
    lefts: tuple[Columns, ...]  # one for every bar

    def common_columns(self) -> list[str]:
        """Names of the columns of fixed effects, offsets left out."""
        return self.common.labels()

    def bar_columns(self, index: int) -> list[str]:
        """Names of the columns on the left of a bar."""
        return self.lefts[index].labels()

    def evaluate(self, table: Any) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """X, the offset, and the columns of every bar, on the rows of a table."""
        lefts = [left.values(table) for left in self.lefts]
        return self.common.values(table), self.common.offset(table), lefts

    def centred(
        self, X: np.ndarray, lefts: list[np.ndarray], table: Any
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The same columns with numbers around their means, where the span allows it."""
        pairs = zip(lefts, self.lefts, strict=True)
        return self.common.around(X, table), [left.around(v, table) for v, left in pairs]

    def stated_as(self, before: Matrices) -> Matrices:
        """The same with the centres of an earlier fit, where its priors are stated."""
        sums = (self.common, *self.lefts), (before.common, *before.lefts)
        common, *lefts = (
            replace(
                mine, centres=tuple((n, dict(old.centres).get(n, 0.0)) for n, _ in mine.centres)
            )
            for mine, old in zip(*sums, strict=True)
        )
        return replace(self, common=common, lefts=tuple(lefts))


def evaluate(formula: Formula, table: Any) -> Matrices:
    """Evaluate a formula on its table: transformations and categories are learned here."""
    try:
        with np.errstate(all="ignore"):
            return _learned(formula, table)
    except (InputError, ArithmeticError, np.linalg.LinAlgError) as error:
        raise InputError(
            f"formula {quoted(formula.text, 80)} cannot be evaluated: {error}"
        ) from error


def _learned(formula: Formula, table: Any) -> Matrices:
    lefts = []
    for bar in formula.bars:
        left = Columns.learned(bar.terms, table)
        if left.offsets or not (left.pieces or left.intercept):
            raise InputError(
                f"the group term ({bar.left} | {bar.factor}) has no columns, or an offset; write "
                f"(1 | {bar.factor}) for an intercept per group"
            )
        # Columns that are not correlated are so where they are zero: that is what || means.
        lefts.append(left if bar.correlated else replace(left, centres=()))
    response = Response.learned(formula.node, formula.level, table)
    if response.level is not None and not np.any(response.of(table).values):
        raise InputError(f"no row of {response.node} is {quoted(str(response.level))}")
    response.of(table)  # refused here rather than later
    return Matrices(formula, Columns.learned(formula.common, table), response, tuple(lefts))
