"""Whether q has draws where the target has its variance, so that weights can correct them."""

from __future__ import annotations

import numpy as np

from curvi.families._host import HostMap
from curvi.families._sparse_host import SparseMap
from curvi.objective._batch import BatchedDensity


def has_light_tails(
    density: BatchedDensity, place: HostMap | SparseMap, rng: np.random.Generator, *,
    reach: int = 12, drawn: float = 3.5, most_beyond: float = 0.03,
) -> bool:  # fmt: skip
    """Whether little of the target's variance lies where q has no draws.

    Along coordinates of the noise through its centre, the share of the second moment of the target
    that is beyond 3.5 sds of q; a normal target has a quarter of a percent there.

    Parameters
    ----------
    density, place : BatchedDensity, HostMap
        The target, and the map of q.
    rng : numpy Generator
        Breaks ties among many axes.
    reach, drawn : float
        Sds of q: how far is looked, and up to where a few thousand draws lie.
    most_beyond : float
        Share of the second moment that may lie beyond these.
    """
    dimension = len(place.mean)
    axes = heaviest_axes(density, place, rng)
    ticks = np.linspace(-reach, reach, 4 * reach + 1)
    noise = np.zeros((len(axes), len(ticks), dimension))
    noise[np.arange(len(axes))[:, None], np.arange(len(ticks)), axes[:, None]] = ticks
    moved = place.forward(noise.reshape(-1, dimension))
    values, _ = density(moved.positions)
    logs = np.reshape(values + moved.log_det, (len(axes), len(ticks)))
    logs = np.where(np.isfinite(logs), logs, -np.inf)
    moments = np.exp(logs - logs.max(axis=1, keepdims=True)) * ticks**2
    beyond = moments[:, np.abs(ticks) > drawn].sum(axis=1) / moments.sum(axis=1)
    return bool((beyond < most_beyond).all())


def heaviest_axes(
    density: BatchedDensity, place: HostMap | SparseMap, rng: np.random.Generator, *,
    most: int = 32, screened: float = 6.0, most_screened: int = 2000,
) -> np.ndarray:  # fmt: skip
    """The axes of the noise along which the target falls least on its way out: 32, or all.

    ``most``: axes that are looked along.
    ``screened``: sds at which many axes are compared, and
    ``most_screened``: how many axes may be compared.
    """
    dimension = len(place.mean)
    if dimension <= most or dimension > most_screened:
        return rng.permutation(dimension)[:most]
    noise = screened * np.concatenate([np.eye(dimension), -np.eye(dimension)])
    moved = place.forward(noise)
    values, _ = density(moved.positions)
    logs = np.where(np.isfinite(values), values + moved.log_det, -np.inf)
    height = np.maximum(logs[:dimension], logs[dimension:])
    return np.argsort(-height)[:most]
