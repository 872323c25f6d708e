"""Where fits start, and how many rows a compiled program is given."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi.glm._bound import Rows
from curvi.glm._design import DenseDesign

_SMALLEST = 16
_FINE = 6  # above 1024 rows, padding stays below 1 / 2^5 of them


def starting_moments(
    columns: int, seed: int, start: int, centre: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sds of a start: zero and about ``1 / sqrt(columns)``; later ones are jittered.

    Wider starts drown the likelihood in noise: the variance of a predictor is the sum over
    columns. ``centre`` is where the mean starts instead of zero.
    """
    width = 1 / math.sqrt(max(columns, 1))
    mean = np.zeros(columns) if centre is None else np.array(centre, np.float64)
    if start > 0:
        random = np.random.default_rng([seed, start])
        width *= math.exp(random.uniform(-1.0, 1.0))
        mean = mean + 0.3 * width * random.standard_normal(columns)
    return mean, np.full(columns, width)


def padded_length(count: int) -> int:
    """A length at least as large, of which there are few: each new one is compiled anew."""
    exponent = max(count - 1, 1).bit_length()
    if count <= 2**10:
        return max(_SMALLEST, 2**exponent)
    step = 2 ** max(exponent - _FINE, 1)
    return -(-count // step) * step


def padded(rows: Rows) -> Rows:
    """Add rows of weight zero (and zeros to a sparse design) up to a length of which few exist."""
    count = rows.y.shape[0]
    extra = padded_length(count) - count
    design: Any = rows.design
    if isinstance(design, DenseDesign):
        design = DenseDesign(np.pad(design.matrix, ((0, extra), (0, 0))))
    else:
        design = design.padded(count + extra, padded_length(design.values.shape[0]))
    return rows._replace(
        design=design, y=np.pad(rows.y, (0, extra)), weight=np.pad(rows.weight, (0, extra))
    )


def on_device(tree: Any) -> Any:
    """The same arrays as JAX arrays, of the same dtypes."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), tree)
