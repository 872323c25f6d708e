"""Values of a formula: trees of columns, numbers and listed functions, computed on a table.

What a function learns from the rows of a fit (a mean, knots) is kept in its node as plain data, and
used again on new rows and after loading. A tree is data and nothing in it can run: it has the kinds
of node that are here, with the functions and signs that are listed here.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi._core.text import quoted
from curvi.mixed._transforms import TRANSFORMS

NUMERIC: dict[str, Callable[[Any], Any]] = {
    name: getattr(np, name)
    for name in ("abs", "cos", "exp", "expm1", "log", "log10", "log1p", "log2", "sin", "sqrt")
}
CATEGORIES = {"C": "contrast", "S": "omit", "T": "ref"}  # and the name of their second argument
CONTRASTS = {"Treatment": "reference", "Sum": "omit"}
RESPONSES = frozenset({"p", "prop", "proportion", "B", "binary"})
FUNCTIONS = frozenset({*NUMERIC, *TRANSFORMS, *CATEGORIES, *CONTRASTS, *RESPONSES, "I", "offset"})
ROW_BY_ROW = frozenset({*NUMERIC, *CONTRASTS, "I", "offset"})
WORDS = {"True": True, "False": False, "None": None, **{name: name for name in CONTRASTS}}
SIGNS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "==": (1, operator.eq), "!=": (1, operator.ne), "<": (1, operator.lt), "<=": (1, operator.le),
    ">": (1, operator.gt), ">=": (1, operator.ge), "+": (2, operator.add), "-": (2, operator.sub),
    "*": (3, operator.mul), "/": (3, operator.truediv), "//": (3, operator.floordiv),
    "%": (3, operator.mod), "**": (5, operator.pow),
}  # fmt: skip
_UNARY = 4  # binds less than a power: -x**2 is -(x**2)


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Constant:
    """A number, a text, or one of the words True, False and None."""

    value: float | int | str | bool | None
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Operation:
    """One sign before one value, or between two."""

    sign: str
    values: tuple[Node, ...]

    def __post_init__(self) -> None:
        if self.sign not in SIGNS or len(self.values) not in (1, 2):
            raise InputError(f"a formula has no operation {quoted(self.sign)}")

    @property
    def binds(self) -> int:
        """How tightly it holds its values together."""
        return _UNARY if len(self.values) == 1 else SIGNS[self.sign][0]

    def __str__(self) -> str:
        first, *second = (
            f"({value})" if isinstance(value, Operation) and value.binds < self.binds + k else value
            for k, value in enumerate(self.values)
        )
        return f"{first} {self.sign} {second[0]}" if second else f"{self.sign}{first}"


@dataclass(frozen=True)
class Call:
    """A function of values; ``memory`` is what it has learned from the rows of a fit."""

    function: str
    values: tuple[Node, ...]
    named: tuple[tuple[str, Node], ...] = ()
    memory: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise InputError(f"a formula has no function {quoted(self.function)}")

    def __str__(self) -> str:
        named = [f"{name}={value}" for name, value in self.named]
        return f"{self.function}({', '.join([*map(str, self.values), *named])})"

    def arguments(self, *names: str) -> dict[str, Any]:
        """Nodes by the names of the parameters; what does not fit is refused."""
        if len(self.values) > len(names):
            raise InputError(f"{self} has {len(self.values)} arguments; {len(names)} at most")
        found = dict(zip(names, self.values, strict=False))
        for name, value in self.named:
            if name not in names or name in found:
                raise InputError(f"{self} has an argument {name}; it takes {', '.join(names)}")
            found[name] = value
        if names[0] not in found:
            raise InputError(f"{self} has no {names[0]}")
        return found


Node = Column | Constant | Operation | Call


def nodes(root: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield root
    if isinstance(root, Operation | Call):
        for child in (*root.values, *(v for _, v in getattr(root, "named", ()))):
            yield from nodes(child)


def constant(node: Node, what: str) -> Any:
    """The value of a constant; -1 is one, too."""
    if isinstance(node, Operation) and len(node.values) == 1:
        value = constant(node.values[0], what)
        if isinstance(value, int | float):
            return -value if node.sign == "-" else value
    elif isinstance(node, Constant):
        return node.value
    raise InputError(f"{what} is {node}; write a number or a text")


def unknown_column(name: str, table: Any) -> InputError:
    """What to say of a name that the table does not have."""
    known = [str(column) for column in table.columns]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {quoted(near[0])}?" if near else f"it has: {', '.join(known[:10])}"
    return InputError(f"the table has no column {quoted(name)}; {hint}")


def column_of(table: Any, name: str) -> Any:
    """The values of a column: numbers as such, anything else as a pandas column of texts."""
    import pandas as pd

    if name not in table.columns:
        raise unknown_column(name, table)
    column = table[name]
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column
    if pd.api.types.is_numeric_dtype(column) and column.dtype.kind != "c":
        return column.to_numpy(np.float64)
    if pd.api.types.is_string_dtype(column):
        return column.astype(object)
    raise InputError(f"column {quoted(name)} holds {column.dtype}; give numbers or text")


def compute(node: Any, table: Any) -> tuple[Any, Any]:
    """The value of a node on a table, and the node with what it has learned.

    Numbers are arrays or scalars of doubles, everything else is a pandas column or a text.
    """
    if isinstance(node, Column):
        return column_of(table, node.name), node
    if isinstance(node, Constant):
        return node.value, node
    if isinstance(node, Operation):
        pairs = [compute(value, table) for value in node.values]
        found = replace(node, values=tuple(child for _, child in pairs))
        return _operated(node, [value for value, _ in pairs]), found
    if isinstance(node, Call) and node.function in TRANSFORMS:
        return _transformed(node, table)
    if isinstance(node, Call) and node.function in {*NUMERIC, "I", "offset"}:
        value, child = compute(node.arguments("x")["x"], table)
        if node.function != "I":
            value = _numbers(value, node)
        return NUMERIC.get(node.function, lambda x: x)(value), replace(
            node, values=(child,), named=()
        )
    why = "is the response" if getattr(node, "function", "") in RESPONSES else "is a term"
    raise InputError(f"{node} {why}, and no part of an expression")


def _operated(node: Operation, values: list[Any]) -> Any:
    binds, function = SIGNS[node.sign]
    if len(values) == 1:
        only = _numbers(values[0], node)
        return -only if node.sign == "-" else only
    if binds > 1 or all(_is_number(value) for value in values):
        return np.asarray(function(*(_numbers(value, node) for value in values)), np.float64)[()]
    return _compared(function, values, node)


def _transformed(node: Call, table: Any) -> tuple[np.ndarray, Call]:
    kind = TRANSFORMS[node.function]
    given = node.arguments("x", *kind.options)
    child = given.pop("x")
    value, child = compute(child, table)
    numbers = np.asarray(_numbers(value, node))
    if numbers.ndim != 1:
        raise InputError(f"{node} is no function of a column")
    memory = node.memory
    if memory is None:
        chosen = {name: constant(value, f"{name} of {node}") for name, value in given.items()}
        memory = kind.learn(numbers, **chosen)
    named = tuple(given.items())
    found = replace(node, values=(child,), named=named, memory=memory)
    return kind.apply(numbers, memory), found


def _is_number(value: Any) -> bool:
    return isinstance(value, np.ndarray | float | int | bool | np.generic)


def _numbers(value: Any, node: Node) -> Any:
    if not _is_number(value):
        raise InputError(f"{node} computes with text; a number is needed")
    if np.ndim(value) > 1:
        raise InputError(f"{node} computes with a function of several columns")
    return np.asarray(value, np.float64)[()]


def _compared(function: Callable[[Any, Any], Any], values: list[Any], node: Node) -> np.ndarray:
    """A comparison of texts, which may be equal or in alphabetical order."""
    if any(value is None or _is_number(value) for value in values):
        raise InputError(f"{node} compares text with a number; put the number into quotes")
    sides = [v.astype(object).to_numpy() if hasattr(v, "astype") else v for v in values]
    return np.asarray(function(*sides), np.float64)


def levels_of_values(value: Any, name: str) -> tuple[Any, ...]:
    """Different values: in the order of an ordered category, or sorted."""
    import pandas as pd

    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
        found = list(dtype.categories)
    else:
        found = list(pd.unique(pd.Series(np.asarray(value))))
        try:
            found = sorted(found)
        except TypeError as error:
            raise InputError(f"{name} mixes texts and numbers; write all values as text") from error
    plain = [level.item() if isinstance(level, np.generic) else level for level in found]
    return tuple(
        int(v) if isinstance(v, float) and v.is_integer() else v if _plain(v) else str(v)
        for v in plain
    )


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def codes_of_values(value: Any, levels: tuple[Any, ...], name: str) -> np.ndarray:
    """Places of values among the levels of a fit; others are refused."""
    import pandas as pd

    places, distinct = pd.factorize(np.asarray(value), use_na_sentinel=False)
    if any(isinstance(level, str) for level in levels):
        distinct = np.array([str(one) for one in distinct], object)
    codes = pd.Index(list(levels)).get_indexer(pd.Index(distinct))
    if np.any(codes < 0):
        strange = sorted(str(one) for one in distinct[codes < 0])[:5]
        raise InputError(
            f"the levels {', '.join(map(quoted, strange))} of {name} are not among those of the "
            "fitted table"
        )
    return codes[places]
