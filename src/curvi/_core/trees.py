"""Pytree helpers that optax does not have: flat views with one dtype, and accurate sums."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

_BLOCK = 64


class Metric(NamedTuple):
    """A symmetric positive-definite map M on tangents: ``apply`` is M v, ``solve`` is M^-1 v."""

    apply: Callable[[Any], Any]
    solve: Callable[[Any], Any]


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


def ravel(tree: PyTree) -> Float[Array, " dimension"]:
    """All leaves, which share one dtype, as one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def stable_sum(values: Float[Array, " n"]) -> Float[Array, ""]:
    """Sum a vector block by block, so that rounding grows like log n and not like n.

    In float32 a plain running sum over 10^7 rows loses most of its digits; blocks of 64
    added level by level keep the error near ``eps log64(n)`` at the price of one pass.
    """
    while values.shape[0] > _BLOCK:
        padding = -values.shape[0] % _BLOCK
        values = jnp.pad(values, (0, padding)).reshape(-1, _BLOCK).sum(axis=1)
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
