"""Pytree helpers that optax does not have: flat views with one dtype, and accurate sums."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from curvi._core.errors import InputError

BLOCK = 64  # rows of the innermost sum, which no shard cuts through


@dataclass(frozen=True)
class Unravel:
    """The way from a vector back to a pytree of one dtype.

    Unlike the closure of ``jax.flatten_util.ravel_pytree`` it compares and hashes by value, so
    that a second fit of the same shape finds the code compiled for the first.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, vector: Float[Array, " dimension"]) -> PyTree:
        """Cut the vector into leaves."""
        leaves, start = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            leaves.append(jax.lax.slice(vector, (start,), (start + size,)).reshape(shape))
            start += size
        return jax.tree.unflatten(self.structure, leaves)

    def on_host(self, vector: np.ndarray) -> PyTree:
        """Cut a vector of NumPy into leaves of NumPy."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)


def precision_of(dtype: Any) -> contextlib.AbstractContextManager[Any]:
    """A local context in which JAX keeps arrays of this dtype as they are.

    Results of a float64 fit stay usable after the fit has left its own x64 context, and the
    global configuration is never touched.
    """
    return jax.enable_x64(True) if dtype == np.float64 else contextlib.nullcontext()


@contextlib.contextmanager
def usual_promotion() -> Iterator[None]:
    """Let other libraries mix dtypes and ranks, whatever the user's own settings forbid.

    NumPyro and PyMC are written for JAX's defaults; under strict promotion even
    ``Normal(0, 10)`` fails inside them.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def on_device(array: Any, dtype: Any = None) -> Array:
    """An array of NumPy for JAX, which may share its memory: nobody may write into it afterwards.

    ``jnp.asarray`` copies on the device, by a program that is compiled for every shape.
    """
    with np.errstate(over="ignore"):  # what is beyond all numbers is judged elsewhere
        moved: Array = jax.device_put(np.asarray(array, dtype))
    return moved


def ravel(tree: PyTree) -> Float[Array, " dimension"]:
    """All leaves, which share one dtype, as one vector."""
    if all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(tree)):
        return on_device(np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]))
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def flat_numbers(tree: PyTree) -> np.ndarray:
    """All leaves, of whatever dtypes, as one NumPy vector."""
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)])


def stable_sum(values: Float[Array, " n"]) -> Float[Array, ""]:
    """Sum a vector block by block, so that rounding grows like log n and not like n.

    In float32 a plain running sum over 10^7 rows loses most of its digits; blocks of 64
    added level by level keep the error near ``eps log64(n)`` at the price of one pass.
    """
    while values.shape[0] > BLOCK:
        padding = -values.shape[0] % BLOCK
        values = jnp.pad(values, (0, padding)).reshape(-1, BLOCK).sum(axis=1)
    return values.sum()


def leaf_names(tree: PyTree, root: str = "") -> list[str]:
    """Human names of the leaves, in flattening order, such as ``position['weights']``."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [root + jax.tree_util.keystr(path) for path, _ in paths]


def coordinate_names(tree: PyTree) -> list[str]:
    """One name per scalar coordinate, in flattening order, such as ``weights[2]``."""
    names = []
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    for path, leaf in paths:
        stem = jax.tree_util.keystr(path, simple=True, separator=".") or "x"
        shape = jnp.shape(leaf)
        if shape == ():
            names.append(stem)
        else:
            names += [f"{stem}[{','.join(map(str, index))}]" for index in _indices(shape)]
    return names


def _indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    indices: list[tuple[int, ...]] = [()]
    for size in shape:
        indices = [(*index, i) for index in indices for i in range(size)]
    return indices


def shapes(tree: PyTree) -> PyTree:
    """Shapes and dtypes of the leaves, without their values."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), tree
    )


def size(tree: PyTree) -> int:
    """Total number of entries D."""
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(tree))


def real_dtype(tree: PyTree, name: str) -> jnp.dtype:
    """The one floating dtype of all leaves.

    Inner products over leaves of different precision have no natural dtype, so a mixture is refused
    here instead of being promoted silently.

    Raises
    ------
    InputError
        If there is no leaf, or the leaves are not all of one real floating dtype.
    """
    dtypes = {jnp.result_type(leaf) for leaf in jax.tree.leaves(tree)}
    if len(dtypes) != 1:
        found = ", ".join(sorted(str(dtype) for dtype in dtypes)) or "no leaf"
        raise InputError(f"{name} has {found}; give a pytree whose leaves share one float dtype")
    (dtype,) = dtypes
    if not jnp.issubdtype(dtype, jnp.floating):
        raise InputError(f"{name} has dtype {dtype}; convert it to float32 or float64")
    return dtype


def require_same_shapes(tree: PyTree, reference: PyTree, name: str, reference_name: str) -> None:
    """Raise InputError if structure, shapes or dtypes differ from the reference."""
    structure, wanted = jax.tree.structure(tree), jax.tree.structure(reference)
    if structure != wanted:
        raise InputError(
            f"{name} has structure {structure} but {reference_name} has {wanted}; make them equal"
        )
    leaves = zip(jax.tree.leaves(shapes(tree)), jax.tree.leaves(shapes(reference)), strict=True)
    for number, (leaf, goal) in enumerate(leaves):
        if leaf.shape != goal.shape or leaf.dtype != goal.dtype:
            raise InputError(
                f"{name} leaf {number} is {leaf.dtype}{list(leaf.shape)} but {reference_name} has "
                f"{goal.dtype}{list(goal.shape)} there; make shapes and dtypes equal"
            )


class _Array:
    """A JAX array on its way through pickle, as a NumPy array."""

    def __init__(self, array: jax.Array) -> None:
        self.array = np.asarray(array)

    def restored(self) -> jax.Array:
        """The same array, in its own precision wherever it is loaded."""
        with precision_of(self.array.dtype):
            return jnp.asarray(self.array)


class ArrayState:
    """A dataclass whose JAX arrays survive copying and pickling in their own precision.

    Loaded where JAX computes in float32, a float64 array would be truncated. What was derived from
    the fields is left out, and computed again when it is read.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {
            entry.name: jax.tree.map(
                lambda leaf: _Array(leaf) if isinstance(leaf, jax.Array) else leaf,
                getattr(self, entry.name),
            )
            for entry in fields(self)  # type: ignore[arg-type]
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            restored = jax.tree.map(
                lambda leaf: leaf.restored() if isinstance(leaf, _Array) else leaf, value
            )
            object.__setattr__(self, name, restored)
