"""What every solver asks of a pytree: its size, its precision, and whether its shape fits."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from curvi._core.errors import InputError

PyTree = Any


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
    """Refuse a tree whose structure, shapes or dtypes differ from the reference."""
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
