"""Values as plain JSON and named arrays, and back: data only, of kinds that are listed.

A NamedTuple is stored by its fields and a dataclass by the arguments of its constructor, which
validates them again when they come from a file. Any other class has the two methods of
:class:`HasState`. Nothing else is stored: a function, or an object that holds one, becomes
:class:`NotStored`, which says what it was.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from curvi._core.errors import InputError
from curvi._core.text import printable
from curvi._core.trees import precision_of
from curvi.io._claims import NotStored, require_claims, require_described
from curvi.io._kinds import class_of, kind_of

_MARK = "#"  # of a JSON object that stands for something else
_VIEWS = {1: np.uint8, 2: np.uint16}


@runtime_checkable
class HasState(Protocol):
    """An object that says itself what of it is stored."""

    def _state(self) -> dict[str, Any]:
        """What to store: values that can be stored, by name."""

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Any:
        """The object again."""


class CannotStoreError(Exception):
    """A value that is no data."""


class Encoder:
    """Turns values into JSON; arrays go into a table, each once however often it occurs."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._marks: dict[int, dict[str, Any]] = {}
        self._alive: list[Any] = []  # an id is that of a living object only

    def state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The entries of an object; one that cannot be stored leaves its description."""
        return {name: self._or_description(value) for name, value in state.items()}

    def value(self, value: Any) -> Any:
        """One value; raises CannotStoreError for what is no data."""
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return value
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(value)
        if type(value) in self._ways:
            return self._ways[type(value)](value)
        return self._object(value)

    @property
    def _ways(self) -> dict[type, Callable[[Any], Any]]:
        return {
            float: lambda value: value if math.isfinite(value) else _marked("float", repr(value)),
            dict: self._mapping,
            list: lambda value: [self.value(item) for item in value],
            tuple: lambda value: _marked("tuple", [self.value(item) for item in value]),
            np.random.RandomState: lambda value: _marked(
                "random state", [self.value(part) for part in value.get_state()]
            ),
        }

    def _or_description(self, value: Any, *, longest: int = 300) -> Any:
        try:
            return self.value(value)
        except CannotStoreError:
            return _marked("not stored", printable(repr(value))[:longest])

    def _mapping(self, value: dict[Any, Any]) -> Any:
        if all(isinstance(key, str) for key in value) and _MARK not in value:
            return {key: self.value(item) for key, item in value.items()}
        return _marked("dict", [[self.value(key), self.value(value[key])] for key in value])

    def _object(self, value: Any) -> Any:
        kind = kind_of(type(value))
        if kind is None and hasattr(value, "_fields"):  # a NamedTuple of the user
            fields = [[name, self.value(getattr(value, name))] for name in value._fields]
            return _marked("namedtuple", fields, name=type(value).__name__)
        if kind is None:
            raise CannotStoreError(type(value).__name__)
        if isinstance(value, enum.Enum):
            return _marked("object", value.name, kind=kind)
        if isinstance(value, HasState):
            return _marked("object", self.state(value._state()), kind=kind)
        state = {name: self.value(part) for name, part in _parts(value).items()}
        return _marked("object", state, kind=kind)

    def _array(self, value: Any) -> Any:
        if id(value) not in self._marks:
            self._alive.append(value)
            self._marks[id(value)] = self._stored(value)
        return self._marks[id(value)]

    def _stored(self, value: Any) -> dict[str, Any]:
        more: dict[str, Any] = {"on": "device"} if isinstance(value, jax.Array) else {}
        if isinstance(value, np.generic):
            more = {"on": "number"}
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            more, value = {"on": "key"}, jax.random.key_data(value)
        array = np.asarray(value)
        if array.dtype.kind in "OU":
            texts = [self.value(item) for item in array.ravel().tolist()]
            return _marked("texts", texts, shape=list(array.shape), dtype=array.dtype.str)
        if array.dtype.kind in "mM":
            array, more["dtype"] = array.view(np.int64), array.dtype.str
        elif array.dtype.kind not in "biuf":  # numbers that NumPy has from another library
            if array.dtype.kind != "V" or array.dtype.itemsize not in _VIEWS or array.dtype.names:
                raise CannotStoreError(f"an array of {array.dtype}")
            more["dtype"] = array.dtype.name
            array = array.view(_VIEWS[array.dtype.itemsize])
        if array.dtype.itemsize > 8:
            raise CannotStoreError(f"an array of {array.dtype}")
        name = f"a{len(self.arrays)}"
        self.arrays[name] = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return _marked("array", name, **more)


class Decoder:
    """Turns JSON of an :class:`Encoder` back into values; ``path`` is for messages."""

    def __init__(self, arrays: dict[str, np.ndarray], path: Any) -> None:
        self.arrays, self.path = arrays, path
        self._on_device: dict[tuple[Any, ...], Any] = {}
        self._place: list[str] = []  # names on the way to the value that is read

    def value(self, found: Any) -> Any:
        """One value.

        Raises
        ------
        InputError
            If the document asks for a kind that is unknown, or for something that its class
            refuses.
        """
        try:
            return self._value(found)
        except Exception as error:
            # Constructors get what no code of ours would give them: whatever they raise is a word
            # about the file.
            place, said = ".".join(self._place), str(error)
            if not isinstance(error, InputError):
                place = place or str(found.get("kind", "") if isinstance(found, dict) else "")
                said = f"{type(error).__name__} ({error})"
            place = f"{printable(place)}: " if place else ""
            raise InputError(f"{self.path} cannot be loaded: {place}{said}") from error

    def _value(self, found: Any, name: str | None = None) -> Any:
        """One value; the name stays on the way to it where it cannot be read."""
        if name is None:
            return self._read(found)
        self._place.append(name)
        value = self._read(found)
        self._place.pop()
        return value

    def _read(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._value(item) for item in found]
        if not isinstance(found, dict):
            return found
        if _MARK not in found:
            return {key: self._value(item, key) for key, item in found.items()}
        if found[_MARK] not in self._ways:
            raise InputError(f"it holds a value of the unknown kind {found[_MARK]!r}")
        return self._ways[found[_MARK]](found["v"], found)

    @property
    def _ways(self) -> dict[str, Callable[[Any, dict[str, Any]], Any]]:
        return {
            "float": lambda v, _: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[v],
            "tuple": lambda v, _: tuple(self._value(item) for item in v),
            "dict": lambda v, _: {self._value(key): self._value(item) for key, item in v},
            "not stored": lambda v, _: NotStored(str(v)),
            "namedtuple": self._named,
            "array": self._array,
            "texts": self._texts,
            "random state": self._random_state,
            "object": self._object,
        }

    def _named(self, content: Any, found: dict[str, Any]) -> Any:
        kind: Any = namedtuple(str(found["name"]), [str(name) for name, _ in content])  # type: ignore[misc]
        return kind(*(self._value(item, str(name)) for name, item in content))

    def _texts(self, content: Any, found: dict[str, Any], *, most_text: int = 2**26) -> np.ndarray:
        texts, dtype = [self._value(item) for item in content], _text_type(found["dtype"])
        size = len(texts) * max((len(str(text)) for text in texts), default=0)
        if dtype.kind == "U" and size > most_text:  # each takes the room of the longest
            raise InputError(f"an array of texts claims {size} characters")
        return np.asarray(texts, dtype).reshape(found["shape"])

    def _random_state(self, content: Any, found: dict[str, Any]) -> np.random.RandomState:
        source = np.random.RandomState()
        source.set_state(tuple(self._value(item) for item in content))
        return source

    def _object(self, content: Any, entry: dict[str, Any]) -> Any:
        found = class_of(entry["kind"])
        if issubclass(found, enum.Enum):
            return found[content]
        state = {str(name): self._value(item, str(name)) for name, item in content.items()}
        require_described(found, state)
        if hasattr(found, "_from_state"):
            made = found._from_state(state)
        else:
            made = found(**state)
            require_claims(made, getattr(found, "_claims", {}))
        if hasattr(found, "_check_stored"):
            made._check_stored()
        return made

    def _array(self, content: Any, found: dict[str, Any]) -> Any:
        array = self.arrays[content]
        if "dtype" in found:
            kind = str(found["dtype"])
            dtype = np.dtype(kind) if kind[1:2] in ("m", "M") else jnp.dtype(kind)
            if dtype.kind not in "mMV" or dtype.itemsize != array.dtype.itemsize:
                raise InputError(f"an array claims the dtype {kind!r}")
            array = array.view(dtype)
        if "on" not in found:
            return array
        if found["on"] == "number":
            return array[()]
        name = content, str(array.dtype), found["on"] == "key"
        if name not in self._on_device:  # one that occurs twice is copied once
            with precision_of(np.float64 if array.dtype.itemsize == 8 else array.dtype):
                device = jnp.asarray(array)
                self._on_device[name] = jax.random.wrap_key_data(device) if name[2] else device
        return self._on_device[name]


def _marked(mark: str, content: Any, **more: Any) -> dict[str, Any]:
    return {_MARK: mark, "v": content, **more}


def _parts(value: Any) -> dict[str, Any]:
    """Fields of a NamedTuple, arguments of the constructor of a dataclass.

    A function that is the default of its field needs no place in a file.
    """
    if hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    given = {entry: getattr(value, entry.name) for entry in dataclasses.fields(value) if entry.init}
    return {
        entry.name: part
        for entry, part in given.items()
        if not (callable(part) and part is entry.default)
    }


def _text_type(code: Any) -> np.dtype:
    if code != "|O" and not (isinstance(code, str) and code[:2] in ("<U", ">U", "=U")):
        raise InputError(f"an array of texts claims the dtype {code!r}")
    return np.dtype(object if code == "|O" else str)
