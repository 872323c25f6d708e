"""What stored values must be like, so that a file that loads can be used.

A digest says that a file is whole, not that its numbers can be meant: whoever writes a file can
write its digest. Fields are compared with their annotations, and what a class says in ``_claims``
about numbers and shapes with what is there.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray, PyTree

from curvi._core.errors import InputError, Outcome
from curvi._core.text import printable, quoted

_NOTHING = object()
_NUMBERS = (np.ndarray, jax.Array, np.generic, float, int)


@dataclasses.dataclass(frozen=True)
class NotStored:
    """In a loaded object, the place of what could not be stored.

    Parameters
    ----------
    description : str
        What it was.
    """

    description: str

    def __repr__(self) -> str:
        return f"<not stored: {printable(self.description)}>"


def require_described(found: type, state: Mapping[str, Any], place: str = "") -> None:
    """Refuse names that a class does not have, the lack of one, and values of another kind."""
    hints = described(found)
    for name in _needed(found):
        if name not in state:
            raise InputError(f"its {place}{name} is missing")
    for name, value in state.items():
        if name not in hints:
            raise InputError(f"it gives {quoted(place + name)}, which {found.__name__} has not")
        hint = hints[name]
        if typing.is_typeddict(hint) and isinstance(value, dict):
            require_described(hint, value, f"{place}{name}.")
        elif not _conforms(value, hint):
            raise InputError(f"its {place}{name} is {quoted(repr(value))}, no {_shown(hint)}")


@cache
def described(found: Any) -> dict[str, Any]:
    """The names under which files keep the parts of a class, and what each must be.

    They are its fields, and what ``_stored`` says of others; an estimator also has its parameters
    and the attributes with an annotation or a claim. A file never sets any other.
    """
    hints = typing.get_type_hints(found)
    if hasattr(found, "_get_param_names"):
        claimed = dict.fromkeys((name.partition(".")[0] for name in found._claims), Any)
        hints = claimed | typing.get_type_hints(found.__init__) | hints
    own = {n: hint for n, hint in hints.items() if typing.get_origin(hint) is not typing.ClassVar}
    return own | getattr(found, "_stored", {})


@cache
def _needed(found: Any) -> frozenset[str]:
    """The names that every file has: those without a default."""
    if typing.is_typeddict(found):
        return frozenset(found.__required_keys__)
    if hasattr(found, "_get_param_names"):
        return frozenset()
    given = inspect.signature(found).parameters.values()
    needed = {one.name for one in given if one.default is one.empty}
    return frozenset(needed | getattr(found, "_stored", {}).keys())


def _shown(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)) if not typing.get_args(hint) else str(hint)


def _conforms(value: Any, hint: Any) -> bool:  # noqa: PLR0911  one line for each kind
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_conforms(value, one) for one in arguments)
    if isinstance(value, NotStored) or origin is Callable:  # data is never left out, code always
        code = hint in (Any, PyTree) or origin is Callable or hint.__module__.startswith("curvi.")
        return isinstance(value, NotStored) and code
    if hint is PyTree:
        return all(isinstance(leaf, _NUMBERS) for leaf in jax.tree.leaves(value))
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        return len(value) == len(kinds) and all(map(_conforms, value, kinds))
    if origin in (list, Sequence):
        return isinstance(value, list | tuple) and all(_conforms(v, arguments[0]) for v in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(
            _conforms(k, arguments[0]) and _conforms(v, arguments[1]) for k, v in value.items()
        )
    return not isinstance(hint, type) or origin is not None or _plainly(value, hint)


def _plainly(value: Any, hint: type) -> bool:
    """Whether a value is of a class; numbers come as Python's, NumPy's or arrays of one."""
    if hint is float:
        return _is_number(value, "fiu")
    if hint is int:
        return _is_number(value, "iu")
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if issubclass(hint, AbstractArray | np.ndarray | jax.Array):
        return isinstance(value, np.ndarray | np.generic | jax.Array)
    if hint.__module__.startswith(("curvi.", "builtins")):
        return isinstance(value, hint)
    return True


def _is_number(value: Any, kinds: str) -> bool:
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        return False
    array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in kinds  # an int beyond 64 bits is an object


def require_claims(found: Any, claims: Mapping[str, str]) -> None:
    """Compare numbers of an object with what its class says about them.

    A claim is a kind and a shape, such as ``"positive rows columns"``: a letter or word stands for
    one length, the same one wherever it occurs in the claims; ``...`` is any shape. Kinds are
    ``real`` (finite), ``extended`` (or infinite), ``number`` (or none, as NaN), ``positive``,
    ``spread`` (not negative), ``weights`` (not negative, of sum one), ``count``, ``flag``,
    ``bits`` (of a random key), ``texts`` (different ones), ``whole`` (a single count, which is the
    length of that name), ``trace`` (a table: its length, and columns that it must have), ``text``,
    ``switch``, ``outcome`` and ``anything`` (there, if only as None). One that ends in ``?`` may be
    None or missing.
    """
    lengths: dict[str, int] = {}
    for name, claim in claims.items():
        kind, *shape = claim.split()
        value = found
        for part in name.split("."):
            if isinstance(value, Mapping):
                value = value.get(part, _NOTHING)
            elif value is not None:
                value = getattr(value, part, _NOTHING)
        if value is _NOTHING and kind.endswith("?"):
            continue
        if value is _NOTHING:
            raise InputError(f"its {name} is missing")
        if kind == "anything" or (value is None and kind.endswith("?")):
            continue
        wrong = _wrong(value, kind.rstrip("?"), shape, lengths)
        if wrong:
            raise InputError(f"its {name} {wrong}")


def _wrong(value: Any, kind: str, shape: list[str], lengths: dict[str, int]) -> str:
    if kind in _KINDS:
        fits = value is not None and isinstance(value, _KINDS[kind])
        return "" if fits else f"is {quoted(repr(value))}, of another kind"
    if kind in _NAMED:
        return _NAMED[kind](value, shape, lengths)
    if not isinstance(value, (*_NUMBERS, tuple)):
        return f"is {quoted(repr(value))}, no numbers"
    array = np.asarray(value, float if isinstance(value, tuple) else None)
    if misfit := _misfit(array.shape, shape, lengths):
        return misfit
    return _bad_numbers(array, kind)


def _wrong_count(value: Any, shape: list[str], lengths: dict[str, int]) -> str:
    if not _is_number(value, "iu") or value < 0:
        return f"is {quoted(repr(value))}, no count"
    return _misfit((int(value),), shape, lengths)


def _wrong_texts(value: Any, shape: list[str], lengths: dict[str, int]) -> str:
    texts = list(value) if isinstance(value, list | tuple | np.ndarray) else [None]
    if not all(isinstance(text, str | int | float | bool | np.generic) for text in texts):
        return "is no list of names"
    if len(set(texts)) != len(texts):
        return "has a name twice"
    return _misfit((len(texts),), shape, lengths)


def _wrong_trace(value: Any, shape: list[str], lengths: dict[str, int]) -> str:
    columns: list[Any] = list(value.values()) if isinstance(value, dict) else [None]
    if not all(isinstance(column, np.ndarray) and column.ndim == 1 for column in columns):
        return "is no table of columns"
    length, *needed = shape
    if lost := set(needed) - value.keys():
        return f"has no column {min(lost)}"
    return next((bad for one in columns if (bad := _misfit(one.shape, [length], lengths))), "")


_NAMED = {"whole": _wrong_count, "texts": _wrong_texts, "trace": _wrong_trace}
_KINDS: dict[str, tuple[type, ...]] = {
    "text": (str,), "switch": (bool, np.bool_), "outcome": (Outcome,),
}  # fmt: skip


def _bad_numbers(array: np.ndarray, kind: str) -> str:
    real = "fV" if array.ndim else "fiuV"  # V: short numbers
    allowed = {"count": "iu", "flag": "b", "bits": "u"}.get(kind, real)
    if array.dtype.kind not in allowed or (kind == "bits" and array.dtype != np.uint32):
        return f"has the dtype {array.dtype}"
    if kind in ("number", "flag", "bits", "extended"):
        return "is not a number" if kind == "extended" and np.isnan(array).any() else ""
    if kind != "count" and not np.isfinite(array).all():
        return "has a number that is not finite"
    if (kind != "real" and (array < 0).any()) or (kind == "positive" and (array == 0).any()):
        return f"has a number that is {'not positive' if kind == 'positive' else 'negative'}"
    return "does not sum to one" if kind == "weights" and abs(array.sum() - 1) > 1e-8 else ""  # noqa: PLR2004


def _misfit(found: tuple[int, ...], shape: list[str], lengths: dict[str, int]) -> str:
    if shape == ["..."]:
        return ""
    need = f"has the shape {found}, which does not fit ({', '.join(shape)})"
    if len(found) != len(shape):
        return need
    for length, name in zip(found, shape, strict=True):
        if lengths.setdefault(name, int(name) if name.isdigit() else length) != length:
            known = ", ".join(f"{name} = {length}" for name, length in lengths.items())
            return f"{need} with {known}"
    return ""


def require_like(found: Any, like: Any, name: str, *, exact: bool = False) -> None:
    """Refuse a tree of arrays of other places, shapes or kinds (``exact``: dtypes) than another."""
    places = jax.tree_util.tree_flatten_with_path
    mine, structure = places(found, is_leaf=lambda leaf: leaf is None)
    other, wanted = places(like, is_leaf=lambda leaf: leaf is None)
    if structure != wanted:
        raise InputError(f"its {name} does not have the parts of such a model")
    for (path, leaf), (_, need) in zip(mine, other, strict=True):
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        place = f"{name}{jax.tree_util.keystr(path)}"
        kind = need.dtype if exact else np.floating
        if shape != need.shape or dtype is None or not jnp.issubdtype(dtype, kind):
            raise InputError(f"its {place} has shape {shape} and dtype {dtype}, not {need.shape}")
