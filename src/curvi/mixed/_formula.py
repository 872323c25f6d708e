"""Formulas with groups: the bars are split off here, every matrix comes from ``formulae``.

``y ~ x + (1 + x | g)`` has a common part, ``y ~ x``, and bars, ``(1 + x | g)``. formulae evaluates
both sides of a bar into one matrix of rows times groups; here the left side is evaluated as a
matrix of its own and the groups stay integers, so that no such matrix is ever made. Columns that
stand in the same bar are correlated, as in lme4; ``||`` keeps them apart.
"""

from __future__ import annotations

import difflib
import itertools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi._core.text import quoted

NAME = re.compile(r"[^\W\d][\w.]*|`[^`]+`")
QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
_DOTTED_CALL = re.compile(r"[^\W\d]\w*(\s*\.\s*\w+)+(?=\s*\()")
FUNCTIONS = {
    name: getattr(np, name)
    for name in ("abs", "cos", "exp", "expm1", "log", "log10", "log1p", "log2", "sin", "sqrt")
}


@dataclass(frozen=True)
class Bar:
    """One term ``(left | groups)``; a group is a combination of the values of its columns."""

    left: str
    columns: tuple[str, ...]
    correlated: bool = True

    @property
    def factor(self) -> str:
        """The grouping factor as it is written: ``a:b`` for combinations."""
        return ":".join(self.columns)


@dataclass(frozen=True)
class Formula:
    """The response, the common part and the bars of a formula."""

    text: str
    response: str
    common: str
    bars: tuple[Bar, ...]


def parse(text: Any) -> Formula:
    """Split a formula into its parts, or say what is wrong with it."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"formula is {text!r}; give a text such as 'y ~ x + (1 | group)'")
    if text.count("~") != 1:
        raise InputError(
            f"formula {quoted(text)} has {text.count('~')} signs ~; write response ~ terms, such "
            "as 'y ~ x + (1 | group)'"
        )
    # A dotted call would reach the attributes of a function, and through them the program.
    if found_call := _DOTTED_CALL.search(QUOTED.sub("_", text)):
        raise InputError(
            f"formula {quoted(text)} calls {quoted(found_call[0])}; functions have plain names, "
            "such as log(x), sqrt(x) and scale(x)"
        )
    response, right = (side.strip() for side in text.split("~"))
    if not response or not right:
        side = "left" if not response else "right"
        raise InputError(f"formula {quoted(text)} has nothing on the {side} of ~")
    common, bars = _split(right, text)
    found: list[Bar] = []
    for inner in bars:
        found.extend(_bar(inner, text))
    terms = [(bar.left.replace(" ", ""), bar.columns) for bar in found]
    if len(set(terms)) < len(terms):
        raise InputError(f"formula {quoted(text)} has the same group term twice; write it once")
    return Formula(text, response, common or "1", tuple(found))


def _split(right: str, text: str) -> tuple[str, list[str]]:
    """The right side without its bars, and what stands inside their parentheses."""
    depth, start, pieces, bars, last = 0, 0, [], [], 0
    for at, character in enumerate(right):
        if character == "(":
            depth, start = depth + 1, at if depth == 0 else start
        elif character == ")":
            depth -= 1
            if depth < 0:
                raise InputError(f"formula {quoted(text)} closes a parenthesis that is not open")
            inside = right[start + 1 : at]
            if depth == 0 and "|" in inside:
                before, after = right[:start].rstrip(), right[at + 1 :].lstrip()
                if (before and before[-1] != "+") or (after and after[0] not in "+-"):
                    raise InputError(
                        f"the group term ({inside}) in formula {quoted(text)} is not added to the "
                        "other terms; join terms by +"
                    )
                pieces.append(right[last:start])
                bars.append(inside)
                last = at + 1
        elif character == "|" and depth == 0:
            raise InputError(
                f"formula {quoted(text)} has a bar outside of parentheses; write (1 | group)"
            )
    if depth:
        raise InputError(f"formula {quoted(text)} does not close every parenthesis")
    rest = re.sub(r"\s+", " ", "".join([*pieces, right[last:]])).strip()
    rest = re.sub(r"(\+\s*)+", "+ ", rest).strip("+ ").strip()
    return rest, bars


def _bar(inner: str, text: str) -> list[Bar]:
    left, _, right = inner.partition("|")
    correlated = not right.startswith("|")
    right = right.removeprefix("|").strip()
    if "|" in right or not left.strip() or not right:
        raise InputError(
            f"the group term ({inner}) in formula {quoted(text)} is not of the form "
            "(terms | group); write (1 | g), (1 + x | g) or (1 | a/b)"
        )
    nested = [part.strip() for part in right.split("/")]
    bars = []
    for depth in range(len(nested)):
        names = [name.strip() for part in nested[: depth + 1] for name in part.split(":")]
        for name in names:
            if not NAME.fullmatch(name):
                raise InputError(
                    f"the group {quoted(name)} in formula {quoted(text)} is not the name of a "
                    "column; combine columns with : (crossed) or / (nested), and compute anything "
                    "else beforehand"
                )
        bars.append(Bar(left.strip(), tuple(name.strip("`") for name in names), correlated))
    return bars


def unknown_column(name: str, table: Any) -> InputError:
    """What to say of a name that the table does not have."""
    known = [str(column) for column in table.columns]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {quoted(near[0])}?" if near else f"it has: {', '.join(known[:10])}"
    return InputError(f"the table has no column {quoted(name)}; {hint}")


def column_names(formula: Formula) -> set[str]:
    """Names that the formula may take from a table, functions included."""
    texts = [formula.response, formula.common, *(bar.left for bar in formula.bars)]
    names = {n.strip("`") for t in texts for n in NAME.findall(t)}
    return names | {name for bar in formula.bars for name in bar.columns}


@dataclass(frozen=True)
class Matrices:
    """What a formula makes of a table: matrices with the memory of their transformations."""

    formula: Formula
    common: Any  # formulae's matrix of common terms, or None
    response: Any
    lefts: tuple[Any, ...]  # one matrix of common terms per bar

    def common_columns(self) -> list[str]:
        """Names of the columns of fixed effects, offsets left out."""
        return list(itertools.chain(*(_labels(t) for t in _terms(self.common) if not _offset(t))))

    def bar_columns(self, index: int) -> list[str]:
        """Names of the columns on the left of a bar."""
        return list(itertools.chain(*(_labels(t) for t in _terms(self.lefts[index]))))

    def evaluate(self, table: Any) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """X, the offset, and the columns of every bar, on the rows of a table."""
        rows = len(table)
        fixed, offset = [np.zeros((rows, 0))], np.zeros(rows)
        for term in _terms(self.common):
            if _offset(term):
                offset = offset + np.asarray(_new(term, table), np.float64).reshape(rows)
            else:
                fixed.append(_new(term, table))
        lefts = [
            np.column_stack([_new(term, table) for term in _terms(left)]) for left in self.lefts
        ]
        return np.column_stack(fixed), offset, lefts


def _terms(matrix: Any) -> list[Any]:
    return [] if matrix is None else list(matrix.terms.values())


def _offset(term: Any) -> bool:
    return getattr(term, "kind", None) == "offset"


def _labels(term: Any) -> list[str]:
    return ["Intercept"] if term.kind == "intercept" else [str(name) for name in term.labels]


def _new(term: Any, table: Any) -> np.ndarray:
    if term.kind == "intercept":
        return np.ones((len(table), 1))
    with np.errstate(all="ignore"):  # what is not finite is reported by column
        values = np.asarray(term.eval_new_data(table), np.float64)
    return values.reshape(len(table), -1)


def evaluate(formula: Formula, table: Any, whole: Any = None) -> Matrices:
    """Evaluate a formula on its table: transformations and categories are learned here.

    The whole table, with columns that the formula does not name, helps to correct a name.
    """
    known = table if whole is None else whole
    common = f"{formula.response} ~ {formula.common}"
    response = _design(common, table, formula.text, known)
    lefts = [_design(bar.left, table, formula.text, known).common for bar in formula.bars]
    for bar, left in zip(formula.bars, lefts, strict=True):
        if left is None:
            raise InputError(
                f"the group term ({bar.left} | {bar.factor}) has no columns; write (1 | "
                f"{bar.factor}) for an intercept per group"
            )
    return Matrices(formula, response.common, response.response, tuple(lefts))


def response_alone(formula: Formula, table: Any) -> Any:
    """The response of some rows."""
    return _design(f"{formula.response} ~ 1", table, formula.text, table).response


def _design(text: str, table: Any, formula: str, known: Any) -> Any:
    """One evaluation by formulae, in a namespace of functions of numbers and nothing else."""
    from formulae import design_matrices
    from formulae.environment import Environment

    try:
        with np.errstate(all="ignore"):
            return design_matrices(text, table, na_action="pass", env=Environment([{**FUNCTIONS}]))
    except Exception as error:  # formulae raises many kinds, with its own words
        name = str(error.args[0]) if isinstance(error, KeyError) and error.args else ""
        if name and not re.search(rf"\b{re.escape(name)}\s*\(", text):  # not a function
            raise unknown_column(name, known) from error
        said = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"formula {quoted(formula, 80)} cannot be evaluated: {said[:200]}; name columns of the "
            "table, and functions such as log, sqrt, center, scale, poly and C"
        ) from error
