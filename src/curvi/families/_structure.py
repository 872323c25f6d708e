"""From names of leaves and groups to an order of the flat coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from curvi._core.errors import InputError

if TYPE_CHECKING:
    from curvi.families._conditional import Conditional


def leaf_coordinates(position: Any) -> dict[str, np.ndarray]:
    """The flat coordinates of every leaf, in the shape of the leaf, by its name."""
    coordinates, begin = {}, 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(position)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        count = int(np.size(leaf))
        coordinates[name] = np.arange(begin, begin + count).reshape(np.shape(leaf))
        begin += count
    return coordinates


def resolved(family: Conditional, position: Any) -> Conditional:
    """The family with the coordinates of a position: ``order``, and the sizes of its blocks.

    Raises
    ------
    InputError
        As :class:`Conditional` says.
    """
    leaves = leaf_coordinates(position)
    dimension = sum(index.size for index in leaves.values())
    first = coordinates_of(family.globals_, leaves, dimension)
    _refuse_repeats(first)
    if family.groups is None:
        rest = np.setdiff1d(np.arange(dimension), first)
        order = tuple(int(i) for i in (*first, *rest))
        return replace(family, globals_=order[: len(first)], order=order)
    blocks, parts = [], [first]
    for names in family.groups:
        index = _group(names, leaves)
        blocks.append(index.shape)
        parts.append(index.ravel())
    joined = np.concatenate(parts)
    _refuse_repeats(joined)
    if len(joined) < dimension:
        missing = [name for name, index in leaves.items() if not np.isin(index, joined).all()]
        raise InputError(
            f"{', '.join(missing)} belongs to neither globals_ nor groups; name every leaf once"
        )
    return replace(family, order=tuple(int(i) for i in joined), blocks=tuple(blocks))


def coordinates_of(
    names: tuple[str | int, ...], leaves: dict[str, np.ndarray], dimension: int
) -> np.ndarray:
    """The flat coordinates of leaves and indices; InputError for one that there is not."""
    return np.concatenate([np.empty(0, int), *_each_of(names, leaves, dimension)])


def _each_of(
    names: tuple[str | int, ...], leaves: dict[str, np.ndarray], dimension: int
) -> Iterator[np.ndarray]:
    for name in names:
        if isinstance(name, int):
            if not 0 <= name < dimension:
                raise InputError(f"globals_ has {name}, but there are {dimension} coordinates")
            yield np.asarray([name])
        else:
            yield _leaf(name, leaves).ravel()


def _leaf(name: str, leaves: dict[str, np.ndarray]) -> np.ndarray:
    if name not in leaves:
        raise InputError(f"the position has no leaf {name!r}; it has {', '.join(leaves)}")
    return leaves[name]


def _group(names: tuple[str, ...], leaves: dict[str, np.ndarray]) -> np.ndarray:
    """Coordinates of one kind of groups, a row for each group."""
    parts = []
    for name in (names,) if isinstance(names, str) else names:
        index = _leaf(name, leaves)
        if index.ndim == 0:
            raise InputError(f"leaf {name!r} is a scalar; a leaf of groups has them as first axis")
        parts.append(index.reshape(len(index), -1))
    if len({len(part) for part in parts}) > 1:
        counts = ", ".join(f"{n} has {len(p)}" for n, p in zip(names, parts, strict=True))
        raise InputError(f"leaves of one kind of groups differ in their number: {counts}")
    return np.concatenate(parts, axis=1)


def _refuse_repeats(order: np.ndarray) -> None:
    if len(np.unique(order)) < len(order):
        raise InputError("a coordinate is named twice in globals_ and groups; name every leaf once")
