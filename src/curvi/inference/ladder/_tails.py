"""Whether q has draws where the target has its variance, so that weights can correct them."""

from __future__ import annotations

import numpy as np

from curvi.families._host import HostMap
from curvi.families._sparse_host import SparseMap
from curvi.objective._batch import BatchedDensity

_AXES = 32  # that are looked along, at most
_REACH, _DRAWN = 12, 3.5  # sds of q: how far, and up to where a few thousand draws lie
_MOST_BEYOND = 0.03
_SCREENED, _MOST_SCREENED = 6.0, 2000  # sds at which many axes are compared, and how many


def has_light_tails(
    density: BatchedDensity, place: HostMap | SparseMap, rng: np.random.Generator
) -> bool:
    """Whether little of the target's variance lies where q has no draws.

    Along coordinates of the noise through its centre, the share of the second moment of the target
    that is beyond 3.5 sds of q; a normal target has a quarter of a percent there.

    Parameters
    ----------
    density, place : BatchedDensity, HostMap
        The target, and the map of q.
    rng : numpy Generator
        Breaks ties among many axes.
    """
    dimension = len(place.mean)
    axes = heaviest_axes(density, place, rng)
    ticks = np.linspace(-_REACH, _REACH, 4 * _REACH + 1)
    noise = np.zeros((len(axes), len(ticks), dimension))
    noise[np.arange(len(axes))[:, None], np.arange(len(ticks)), axes[:, None]] = ticks
    moved = place.forward(noise.reshape(-1, dimension))
    values, _ = density(moved.positions)
    logs = np.reshape(values + moved.log_det, (len(axes), len(ticks)))
    logs = np.where(np.isfinite(logs), logs, -np.inf)
    moments = np.exp(logs - logs.max(axis=1, keepdims=True)) * ticks**2
    beyond = moments[:, np.abs(ticks) > _DRAWN].sum(axis=1) / moments.sum(axis=1)
    return bool((beyond < _MOST_BEYOND).all())


def heaviest_axes(
    density: BatchedDensity, place: HostMap | SparseMap, rng: np.random.Generator
) -> np.ndarray:
    """The axes of the noise along which the target falls least on its way out: 32, or all."""
    dimension = len(place.mean)
    if dimension <= _AXES or dimension > _MOST_SCREENED:
        return rng.permutation(dimension)[:_AXES]
    noise = _SCREENED * np.concatenate([np.eye(dimension), -np.eye(dimension)])
    moved = place.forward(noise)
    values, _ = density(moved.positions)
    logs = np.where(np.isfinite(values), values + moved.log_det, -np.inf)
    height = np.maximum(logs[:dimension], logs[dimension:])
    return np.argsort(-height)[:_AXES]
