"""Where the rows of a training are: on the device, on every device of a mesh, or on disk."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from curvi._core.meshes import current_mesh, replicate
from curvi.io import HostRows, Stream
from curvi.vae._direct import MappedRows
from curvi.vae._epochs import stored_rows
from curvi.vae._mapped import LazyRows, is_lazy, picked
from curvi.vae._networks import Rotation
from curvi.vae._objective import Rows, split


def encoder_input(X: Any) -> np.ndarray:
    """What the encoder of the built-in networks reads: rows without gaps, then the condition."""
    rows = split(X)
    features = np.asarray(rows.features)
    if np.isnan(features).any():  # a copy of all rows takes as long as their principal coordinates
        features = np.where(np.isnan(features), features.dtype.type(0), features)
    if rows.condition is None:
        return features
    return np.concatenate([features, np.asarray(rows.condition)], axis=1)


def rotated_rows(rotation: Rotation, X: Any) -> Rows:
    """Principal coordinates for the encoder, beside the rows that are explained."""
    rows = split(X)
    if not is_lazy(rows):
        return Rows(rotation.features(encoder_input(X)), np.asarray(rows.x), rows.condition)
    everywhere, width = np.arange(len(rows.x)), rotation.map.shape[1] + 1

    def features(index: np.ndarray) -> np.ndarray:
        views = (rows.features, rows.condition)  # without gaps
        parts = [np.asarray(view[index]) for view in views if view is not None]
        return rotation.features(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))

    same = rows.features is rows.x and rows.condition is None
    made = LazyRows(features, everywhere, width, rows.x.dtype, rotation=rotation if same else None)
    return Rows(made, rows.x, rows.condition)


def read_rows(X: Any, index: Any) -> Any:
    """Some rows, in memory."""
    return jax.tree.map(np.asarray, picked(X, index))


def stored(X: Any, order: np.ndarray) -> Any:
    """Rows in an order, on the device and in one shape for many tables; or on disk, as a stream."""
    if is_lazy(X):
        rows = picked(X, order)
        return MappedRows.of(rows) or Stream.of(HostRows(rows, checked=True))
    X = jax.tree.map(np.asarray, X)
    order = np.resize(order, stored_rows(len(order), columns_of(X)))
    return jax.tree.map(lambda leaf: _placed(leaf[order]), X)


def _placed(rows: np.ndarray) -> Array:
    """On the device, or on every device of the mesh, which share the batches."""
    mesh = current_mesh()
    placed: Array = jax.device_put(rows) if mesh is None else replicate(rows, mesh)
    return placed


def device_count(rows: int) -> Array:
    """A number of rows that is data of a compiled function."""
    return jax.device_put(np.int32(rows))


def columns_of(rows: Any) -> int:
    """Numbers of a row, of all that belongs to it."""
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(rows))
