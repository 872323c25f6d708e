"""Validation of input: an error says what is wrong, where, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core.errors import InputError, warn_user
from curvi._core.text import listed, quoted
from curvi._core.trees import Unravel, leaf_names, ravel

OUTSIDE = (
    "curvi decides by values and cannot run inside jit, vmap, grad or scan: call it outside of "
    "them, once for each data set"
)

# What a function raises that is not written for JAX; any other exception is the user's own.
_OF_TRACING = (jax.errors.JAXIndexError, TypeError, ValueError, AttributeError)


class PrecisionWarning(UserWarning):
    """Input was given in float64 while JAX computes in float32."""


def flat_position(
    position: PyTree,
) -> tuple[Float[Array, " dimension"], Unravel]:
    """Check a starting position and return it as one vector with its way back.

    All leaves must be finite floating-point arrays; leaves of different precision are brought
    to the widest one, so that the whole computation has a single dtype.
    """
    require_sortable_keys(position, "position")
    refuse_tracers(position, "position")
    leaves, structure = jax.tree.flatten(position)
    names = leaf_names(position, "position")
    if not leaves:
        raise InputError("position is empty; give a pytree of arrays with at least one number")
    arrays = [_float_leaf(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
    warn_if_truncated(dict(zip(names, arrays, strict=True)))
    arrays = [_canonical(array) for array in arrays]
    if sum(array.size for array in arrays) == 0:
        raise InputError("position holds no numbers; every leaf has a zero-length axis")
    dtype = max((array.dtype for array in arrays), key=lambda kind: jnp.finfo(kind).bits)
    for array, name in zip(arrays, names, strict=True):
        refuse_non_finite(array, name, "a starting position must be finite")
    uniform = [np.asarray(array, dtype) for array in arrays]
    shapes = tuple(array.shape for array in uniform)
    return ravel(uniform), Unravel(structure, shapes)


def require_sortable_keys(tree: PyTree, name: str) -> None:
    """Raise InputError for a dict whose keys have no order, such as ``{"a": ..., 1: ...}``.

    JAX sorts the keys of a dict to give its leaves an order.
    """
    try:
        jax.tree.structure(tree)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} is not a pytree whose leaves have an order ({error}); give all keys of a dict "
            "the same type, for example str"
        ) from error


def _is_numeric(dtype: Any) -> bool:
    """Whether JAX has arrays of a dtype: no objects, text or dates."""
    return any(jnp.issubdtype(dtype, kind) for kind in (np.number, np.bool_, jax.dtypes.prng_key))


def _float_leaf(leaf: Any, name: str) -> Array | np.ndarray:
    refuse_masked(leaf, name)
    try:
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array ({error}); give numbers or arrays") from error
    if isinstance(leaf, float):
        return jnp.asarray(leaf)  # a Python float carries no precision: follow JAX's default
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputError(
            f"{name} has dtype {array.dtype}; a position must be floating point, "
            f"for example jnp.zeros({array.shape})"
        )
    return array


def warn_if_truncated(arrays: dict[str, Any]) -> None:
    """Say once for all arrays that float64 input will be computed in float32."""
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return
    names = [name for name, array in arrays.items() if array.dtype == np.float64]
    if names:
        verb = "is" if len(names) == 1 else "are"
        warn_user(
            f"{listed(names, 5)} {verb} float64 but JAX computes in float32 here; "
            'call jax.config.update("jax_enable_x64", True) first to keep the precision',
            PrecisionWarning,
        )


def refuse_masked(array: Any, name: str) -> None:
    """Raise InputError for a masked array: NumPy and JAX would read what is under the mask."""
    if isinstance(array, np.ma.MaskedArray) and (count := np.ma.count_masked(array)):
        entries = "1 masked entry" if count == 1 else f"{count} masked entries"
        raise InputError(f"{name} is a masked array with {entries}; drop those rows, or fill them")


def real_numbers(given: Any, name: str) -> np.ndarray:
    """``given`` in float64; InputError for what a cast would cut short, or take for a number."""
    refuse_unreal(given, name)
    try:
        found = np.asarray(given)
        refuse_unreal(found, name)  # of a DataFrame, whose columns may differ in kind
        columns = [kind.kind for kind in getattr(given, "dtypes", [])] if found.ndim == 2 else []
        if {found.dtype.kind, *columns} & {"m", "M"}:
            raise InputError(f"{name} holds dates or times; give real numbers")
        return np.asarray(found, np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} is not an array of numbers ({error})") from error


def refuse_unreal(given: Any, name: str) -> None:
    """Raise InputError for a mask, and for complex numbers in the words of scikit-learn."""
    refuse_masked(given, name)
    frame = hasattr(given, "columns") and hasattr(given, "items")
    for label, column in given.items() if frame else ():
        refuse_unreal(column, f"column {quoted(str(label))} of {name}")
    if not isinstance(given, list | tuple) and not hasattr(given, "dtype"):
        return
    with contextlib.suppress(TypeError, ValueError):  # of a ragged list, which is refused later
        given = np.asarray(given) if isinstance(given, list | tuple) else given
    letter = getattr(getattr(given, "dtype", None), "kind", "")
    held: Any = np.asarray(given).ravel() if letter == "O" else []
    if letter == "c" or any(isinstance(one, complex | np.complexfloating) for one in held):
        raise InputError(
            f"{name} holds complex numbers; give real ones (Complex data not supported)"
        )


def refuse_overflow(array: Array | np.ndarray, name: str) -> None:
    """Raise InputError for an integer that JAX would wrap to 32 bits, naming the first one."""
    narrow = jax.dtypes.canonicalize_dtype(array.dtype)
    if not np.issubdtype(array.dtype, np.integer) or narrow == array.dtype:
        return
    limits, values = np.iinfo(narrow), np.asarray(array)
    outside = (values < limits.min) | (values > limits.max)
    if outside.any():
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        raise InputError(
            f"{name}[{', '.join(map(str, index))}] is {values[index]}, which does not fit "
            f"{narrow}, the integers that JAX computes with here; call "
            'jax.config.update("jax_enable_x64", True) first, or use smaller numbers'
        )


def refuse_non_finite(array: Array | np.ndarray, name: str, need: str) -> None:
    """Raise InputError for a NaN or an infinity, naming the first one."""
    values = np.asarray(array)
    if not np.issubdtype(values.dtype, np.floating):
        return
    finite = np.isfinite(values)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        place = f"[{', '.join(map(str, index))}]" if index else ""
        raise InputError(f"{name}{place} is {values[index]}; {need}")


def checked_rows(data: PyTree) -> tuple[PyTree, int]:
    """Check row data (arrays that share their leading axis) and return them with the row count."""
    require_sortable_keys(data, "data")
    refuse_tracers(data, "data")
    leaves = jax.tree.leaves(data)
    names = leaf_names(data, "data")
    if not leaves:
        raise InputError("data is empty; give a pytree of arrays that share their leading axis")
    lengths = {}
    for leaf, name in zip(leaves, names, strict=True):
        refuse_masked(leaf, name)
    arrays = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for leaf in leaves]
    for array, name in zip(arrays, names, strict=True):
        if not _is_numeric(array.dtype):
            raise InputError(f"{name} has dtype {array.dtype}; give numeric arrays")
    warn_if_truncated(dict(zip(names, arrays, strict=True)))
    for array, name in zip(arrays, names, strict=True):
        if array.ndim == 0:
            raise InputError(f"{name} is a scalar; every array of data needs a leading row axis")
        lengths[name] = array.shape[0]
        refuse_overflow(array, name)
        refuse_non_finite(array, name, "data must be finite; drop or impute such rows")
    if len(set(lengths.values())) > 1:
        table = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise InputError(f"the arrays of data disagree on the number of rows ({table})")
    num_rows = next(iter(lengths.values()))
    if num_rows == 0:
        raise InputError("data has no rows; at least one is needed")
    return jax.tree.map(_canonical, data), num_rows


def _canonical(leaf: Any) -> Array:
    """A JAX array of its own: what is written into a NumPy array later does not reach it."""
    if isinstance(leaf, jax.Array):
        return leaf
    array = np.asarray(leaf)
    return jnp.array(array, jax.dtypes.canonicalize_dtype(array.dtype), copy=True)


def user_call(fn: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Call a user's function while JAX traces it.

    An exception that tracing may have caused becomes an InputError with itself as the cause. Any
    other one is the user's own and keeps its type, with the name of the function as a note.
    """
    try:
        return fn(*arguments)
    except _OF_TRACING as error:
        raise InputError(
            f"{name} could not be traced by JAX ({type(error).__name__}: {error}); "
            "write it with jax.numpy and without branching on values"
        ) from error
    except Exception as error:
        error.add_note(f"raised by {name} while JAX traced it")
        raise


def require_float_of_shape(value: Any, shape: tuple[int, ...], name: str, meaning: str) -> None:
    """Raise InputError unless a traced value is one floating-point array of the given shape."""
    if isinstance(value, float) and shape == ():
        return
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        kind = type(value).__name__
        raise InputError(f"{name} returned a {kind}; it must return {meaning}")
    if value.shape != shape:
        raise InputError(
            f"{name} returned shape {value.shape}; it must return {meaning}, shape {shape}"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise InputError(f"{name} returned dtype {value.dtype}; it must return {meaning} of floats")


def as_numeric(tree: PyTree, name: str) -> PyTree:
    """Leaves that a user's function returned, as arrays; InputError for text and the like."""

    def leaf(value: Any) -> Array:
        if not hasattr(value, "dtype") and not isinstance(value, bool | int | float | complex):
            raise InputError(f"{name} returned a {type(value).__name__}; it must return arrays")
        return jnp.asarray(value)

    return jax.tree.map(leaf, tree)


def require_callable(function: Any, name: str, signature: str) -> None:
    """Raise InputError for what cannot be called, with the signature that is needed."""
    if not callable(function):
        raise InputError(
            f"{name} is a {type(function).__name__}, which is not callable; give a function "
            f"{signature}"
        )


def positive_integer(value: Any, name: str) -> int:
    """Check a count."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} is {value!r}; it must be a positive integer")
    return int(value)


def checked_seed(seed: Any, name: str = "seed") -> int:
    """Check a seed: an integer from 0 to 2**64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise InputError(f"{name} is {seed!r}; it must be an integer from 0 to 2**64 - 1")
    return int(seed)


def random_key(seed: Any) -> PRNGKeyArray:
    """The key of a seed, after a check; without x64, JAX itself drops all but the low 32 bits."""
    high, low = divmod(checked_seed(seed), 2**32)
    key = jax.random.key(low)
    return jax.random.fold_in(key, high) if high else key


def refuse_tracers(tree: PyTree, name: str) -> None:
    """Raise InputError inside jit, vmap or grad, where arrays have no values."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        raise InputError(f"{name} is traced by JAX; {OUTSIDE}")


def positive_number(value: Any, name: str) -> float:
    """Check a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise InputError(f"{name} is {value!r}; it must be a positive number")
    if not np.isfinite(value) or value <= 0:
        raise InputError(f"{name} is {value!r}; it must be positive and finite")
    return float(value)


def probability_of_interval(value: Any) -> float:
    """Check ``interval``, the probability that an interval is to hold."""
    if (number := positive_number(value, "interval")) >= 1:
        raise InputError(f"interval is {value}; it is a probability, below 1")
    return number


def one_of(value: Any, choices: tuple[str, ...], name: str) -> str:
    """Check a choice by name."""
    if not isinstance(value, str) or value not in choices:
        options = ", ".join(repr(choice) for choice in choices)
        raise InputError(f"{name} is {value!r}; choose one of {options}")
    return str(value)


def boolean(value: Any, name: str) -> bool:
    """Check a switch: any other value would be taken for True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is {value!r}; it must be True or False")
    return bool(value)


def verbosity(value: Any) -> bool:
    """Check ``verbose``, for which scikit-learn takes switches and levels."""
    if not isinstance(value, bool | np.bool_ | int | np.integer) or value < 0:
        raise InputError(f"verbose is {value!r}; it must be True, False or a level from 0 on")
    return bool(value)


def random_source(value: Any) -> np.random.RandomState:
    """The generator of a ``random_state`` of scikit-learn, which nothing has been drawn from."""
    from sklearn.utils import check_random_state

    if not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            return check_random_state(value)
    raise InputError(
        f"random_state is {value!r}; it must be an integer from 0 to 2**32 - 1, a "
        "numpy.random.RandomState, or None"
    )
