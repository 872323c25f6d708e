r"""Where numeric columns have their zero, which must not change what a model finds.

A column of a formula is a polynomial in numeric columns of the table, times indicators of levels
and functions that stay as they are. Where x - m in place of x gives columns that combine those
that are there, priors are stated for these, and m is the mean: x:h is a column around the mean of
x if h is there, too. Where it does not, as in ``0 + x``, the model itself depends on the zero of x.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from curvi.mixed._expressions import Call, Column, Constant, Node, Operation

Entries = tuple[tuple[int, int, float], ...]  # what of a column (first) is added to another
Monomial = tuple[tuple[str, int], ...]  # names and powers, sorted
Symbol = tuple[Monomial, frozenset[tuple[str, int]]]  # times levels and functions
Vector = dict[Symbol, float]

ONE: Vector = {((), frozenset()): 1.0}


def symbol(name: str, index: int) -> Vector:
    """A level of a category, or a column of a function that stays as it is."""
    return {((), frozenset({(name, index)})): 1.0}


def added(first: Vector, second: Vector, times: float = 1.0) -> Vector:
    """The sum of one and a multiple of another."""
    out = dict(first)
    for key, value in second.items():
        out[key] = out.get(key, 0.0) + times * value
    return {key: value for key, value in out.items() if value}


def multiplied(first: Vector, second: Vector) -> Vector:
    """The product of two."""
    out: Vector = {}
    for (left, some), (right, others) in itertools.product(first, second):
        powers = dict(left)
        for name, power in right:
            powers[name] = powers.get(name, 0) + power
        key = tuple(sorted(powers.items())), some | others
        value = first[left, some] * second[right, others]
        out[key] = out.get(key, 0.0) + value
    return out


def polynomial(node: Node) -> Vector | None:
    """An expression as a polynomial in columns; None for any other."""
    if isinstance(node, Column):
        return {(((node.name, 1),), frozenset()): 1.0}
    if isinstance(node, Constant):
        number = isinstance(node.value, int | float) and abs(node.value) < math.inf
        return {key: float(node.value or 0) for key in ONE} if number else None
    if isinstance(node, Call):
        return polynomial(node.values[0]) if node.function == "I" and node.values else None
    return _operated(node)


def polynomials(node: Node, width: int) -> list[Vector] | None:
    """The columns of a component, if they are polynomials: also those of poly(x, 2, raw=True)."""
    raw = isinstance(node, Call) and node.function == "poly" and "degree" in (node.memory or ())
    found = polynomial(node.values[0] if raw else node)  # type: ignore[union-attr]
    if found is None or (width > 1 and not raw):
        return None
    return list(itertools.accumulate([found] * width, multiplied))


def _operated(node: Operation, *, degree: int = 8, most: int = 200) -> Vector | None:
    """A sign between polynomials; what would be of a high degree or many terms stays as it is."""
    parts = [part for part in map(polynomial, node.values) if part is not None]
    if len(parts) < len(node.values) or sum(map(len, parts)) > most:
        return None
    if len(parts) == 1:
        return added({}, parts[0], -1.0 if node.sign == "-" else 1.0)
    first, second = parts
    number = sum(second.values()) if set(second) <= set(ONE) else 0.5  # of a constant
    power = int(number) if node.sign == "**" and number in range(degree + 1) else 0
    if node.sign in ("+", "-"):
        return added(first, second, -1.0 if node.sign == "-" else 1.0)
    if node.sign == "/" and set(second) == set(ONE):
        return {key: value / number for key, value in first.items()}
    factors = [first, second] if node.sign == "*" else [first] * power
    if not factors or math.prod(map(len, factors)) > most:
        return None
    return functools.reduce(multiplied, factors)


def variables(vectors: Iterable[Vector]) -> set[str]:
    """Columns of the table in polynomials."""
    return {name for vector in vectors for monomial, _ in vector for name, _ in monomial}


def shifted(vector: Vector, centres: dict[str, float]) -> Vector:
    """With every named column less its centre."""
    out: Vector = {}
    for (monomial, rest), coefficient in vector.items():
        terms: dict[Monomial, float] = {(): coefficient}
        for name, power in monomial:
            away = -centres.get(name, 0.0)
            terms = {
                (*left, *(((name, k),) if k else ())): v * math.comb(power, k) * away ** (power - k)
                for left, v in terms.items()
                for k in range(power + 1)
            }
        out = added(out, {(left, rest): value for left, value in terms.items()})
    return out


class Span:
    """All combinations of columns, by elimination; a column that others give adds nothing."""

    def __init__(self, vectors: list[Vector]) -> None:
        self.vectors = vectors
        self.pivots: dict[Symbol, tuple[Vector, dict[int, float]]] = {}
        for place, vector in enumerate(vectors):
            rest, used = self._reduced(vector)
            if rest:
                pivot = max(rest, key=lambda key: abs(rest[key]))
                scale = 1 / rest[pivot]
                weights = {k: -v * scale for k, v in used.items()}
                weights[place] = scale
                self.pivots[pivot] = ({key: v * scale for key, v in rest.items()}, weights)

    def _reduced(self, vector: Vector, *, least: float = 1e-9) -> tuple[Vector, dict[int, float]]:
        """What is left of a vector, and the weights of the columns that were taken off."""
        size = max(map(abs, vector.values()), default=0.0)
        left, used = dict(vector), dict[int, float]()
        # A pivot holds none of those before it, so that none of them comes again.
        while found := next((key for key in left if key in self.pivots), None):
            basis, weights = self.pivots[found]
            amount = left[found]
            left = added(left, basis, -amount)
            left.pop(found, None)
            for place, weight in weights.items():
                used[place] = used.get(place, 0.0) + amount * weight
        return {key: v for key, v in left.items() if abs(v) > least * size}, used

    def closed(self) -> set[str]:
        """Columns of the table that may be moved: what comes of it is in the span again."""
        found = variables(self.vectors)
        for vector in self.vectors:
            for name in variables([vector]) & found:
                away = added(shifted(vector, {name: 1.0}), vector, -1.0)
                if self._reduced(away)[0]:
                    found.discard(name)
        return found

    def entries(self, centres: dict[str, float]) -> Entries:
        """How the columns around centres follow from those that are there."""
        out = []
        for place, vector in enumerate(self.vectors):
            away = added(shifted(vector, centres), vector, -1.0)
            used = self._reduced(away)[1]
            out += [(other, place, weight) for other, weight in sorted(used.items()) if weight]
        return tuple(out)


def at_zero(effects: np.ndarray, entries: Entries) -> np.ndarray:
    """Effects of the columns that are there, from those of the columns around their centres."""
    out = np.array(effects)
    for other, place, weight in entries:
        out[..., other] += weight * effects[..., place]
    return out


def at_centres(effects: np.ndarray, entries: Entries) -> np.ndarray:
    """The reverse of `at_zero`."""
    if not entries:
        return np.array(effects)
    turn = at_zero(np.eye(effects.shape[-1]), entries)
    found: Any = np.linalg.solve(turn.T, effects.T)
    return np.asarray(found.T)
