"""Whether q has draws where the target has its variance, so that weights can correct them."""

from __future__ import annotations

import numpy as np

from curvi.families._host import HostMap
from curvi.families._sparse_host import SparseMap
from curvi.objective._batch import BatchedDensity

_AXES = 32  # that are looked along, at most
_REACH, _DRAWN = 12, 3.5  # sds of q: how far, and up to where a few thousand draws lie
_MOST_BEYOND = 0.03


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
        Chooses the axes where there are many.
    """
    dimension = len(place.mean)
    axes = rng.permutation(dimension)[:_AXES]
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
