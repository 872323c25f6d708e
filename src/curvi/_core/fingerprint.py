"""What a function reads besides its arguments, so that compiled code never meets other data.

JAX compiles a function together with the values that it closes over. curvi keeps compiled fits
for the next call with the same function; the fingerprint tells whether it really is the same:
closed-over and global values are compared too, arrays by content. Whatever cannot be compared
makes the fingerprint unique, and the function is compiled anew.
"""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any

import jax
import numpy as np

_TRUSTED = {
    "blackjax", "builtins", "equinox", "flax", "functools", "jax", "jaxlib", "math", "numpy",
    "numpyro", "operator", "optax", "pymc", "pytensor", "scipy",
}  # fmt: skip
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.number, np.bool_)


class _Same:
    """Equal only to the same object, which it keeps alive so that its id is not reused."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def fingerprint(function: Any) -> tuple[Any, ...]:
    """A hashable value that changes whenever what the function reads may have changed."""
    return _of(function, frozenset())


def _of(thing: Any, seen: frozenset[int]) -> tuple[Any, ...]:
    if id(thing) in seen:
        return ("seen",)
    seen = seen | {id(thing)}
    if isinstance(thing, _PLAIN):
        mark: tuple[Any, ...] = (type(thing).__name__, thing)
    elif isinstance(thing, types.ModuleType | type | jax.Array):
        mark = ("same", _Same(thing))  # a JAX array cannot change
    elif isinstance(thing, np.ndarray) and thing.dtype != object:
        digest = hashlib.blake2b(np.ascontiguousarray(thing).tobytes()).hexdigest()
        mark = ("numpy", thing.shape, thing.dtype.str, digest)
    elif isinstance(thing, tuple | list):
        mark = (type(thing).__name__, *(_of(item, seen) for item in thing))
    elif isinstance(thing, dict):
        mark = ("dict", *((_of(k, seen), _of(v, seen)) for k, v in thing.items()))
    else:
        mark = _of_callable(thing, seen)
    return mark


def _of_callable(thing: Any, seen: frozenset[int]) -> tuple[Any, ...]:
    if isinstance(thing, types.FunctionType):
        if _root(thing) in _TRUSTED or _is_own(thing):
            return ("function", _Same(thing))
        read = [cell.cell_contents for cell in thing.__closure__ or () if _filled(cell)]
        read += [thing.__defaults__, thing.__kwdefaults__]
        names = [name for name in _names(thing.__code__) if name in thing.__globals__]
        read += [thing.__globals__[name] for name in names]
        return ("function", thing.__code__, *(_of(value, seen) for value in read))
    if isinstance(thing, functools.partial):
        return ("partial", _of(thing.func, seen), _of(thing.args, seen), _of(thing.keywords, seen))
    if hasattr(thing, "__wrapped__") and _root(thing) not in _TRUSTED:
        return ("wrapped", _Same(thing), _of(thing.__wrapped__, seen))
    if _root(thing) in _TRUSTED or isinstance(thing, types.BuiltinFunctionType):
        return ("library", _Same(thing))
    return ("unknown", _Same(object()))


def _is_own(function: types.FunctionType) -> bool:
    """Whether it is a top-level function of a module of curvi, which reads constants only."""
    return _root(function) == "curvi" and "<locals>" not in function.__qualname__


def _filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # not assigned yet
        return False
    return True


def _names(code: types.CodeType) -> list[str]:
    """Names that the code, or a function defined inside it, may look up globally."""
    inner = [item for item in code.co_consts if isinstance(item, types.CodeType)]
    return [*code.co_names, *(name for item in inner for name in _names(item))]


def _root(thing: Any) -> str:
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return str(module).split(".", maxsplit=1)[0]
