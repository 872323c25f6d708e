"""Where several starts ended: how many optima there are, and what mass their bounds give them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import PyTree

from curvi._core.trees import coordinate_names, flat_numbers
from curvi.families import Family, HostMap, Params, SparsePrecision, has_host_map
from curvi.targets import AbstractTarget


class Mode(NamedTuple):
    """An optimum that some of the starts of a fit have reached.

    Attributes
    ----------
    position : pytree
        Mean of q there, in the structure of the target's position, unconstrained; a fit starts
        from it with ``position=``.
    sd : pytree
        Standard deviations of q there, likewise.
    elbo : float
        The best bound that was reached there.
    weight : float
        Share of the mass, from the bounds alone: ``exp(elbo)`` over its sum over the modes.
    num_starts : int
        Starts that ended there.
    """

    position: PyTree
    sd: PyTree
    elbo: float
    weight: float
    num_starts: int


def modes_of(
    target: AbstractTarget, family: Family, ends: list[Params], elbos: np.ndarray
) -> tuple[Mode, ...]:
    """The optima among the ends of several starts, best first; NaN marks an end to leave out.

    Two ends belong together where no coordinate of their means is more than one sd apart.
    Parameters are not compared: different ones can be the same q.
    """
    unravel = target.density.unravel.on_host
    found = (
        Mode(
            unravel(np.asarray(end.mean)), unravel(_sds(family, end)), float(elbo), float("nan"), 1
        )
        for end, elbo in zip(ends, elbos, strict=True)
        if np.isfinite(elbo)
    )
    return joined_modes(found)


def _sds(family: Family, params: Params) -> np.ndarray:
    """Of every coordinate, without compiling anything where the family has a map on the host."""
    if isinstance(family, SparsePrecision) or not has_host_map(family):
        return np.asarray(family.sd(params))
    place, found = HostMap.of(family, params), np.empty(np.shape(params.mean))
    found[place.order] = place.sds
    return found


def joined_modes(
    modes: Iterable[Mode], *, apart: float = 1.0, noticeable: float = 0.01
) -> tuple[Mode, ...]:
    """The optima of several searches together, best first, weighted by all their bounds.

    ``apart``: sds between means that belong to different optima.
    ``noticeable``: weight below which an optimum is left out.
    """
    groups: list[list[Mode]] = []
    for mode in sorted(modes, key=lambda one: -one.elbo):
        near = (group for group in groups if _distance(mode, group[0]).max() < apart)
        group = next(near, None)
        if group is None:
            groups.append([mode])
        else:
            group.append(mode)
    best = np.asarray([group[0].elbo for group in groups])
    weights = np.exp(best - best.max(initial=-np.inf))
    kept = weights >= noticeable * weights.sum()
    return tuple(
        group[0]._replace(
            weight=float(weight / weights[kept].sum()),
            num_starts=sum(mode.num_starts for mode in group),
        )
        for group, weight, keep in zip(groups, weights, kept, strict=True)
        if keep
    )


def _distance(one: Mode, other: Mode) -> np.ndarray:
    """Distance of the means in every coordinate, in sds of both together."""
    means, sds = (
        [flat_numbers(getattr(mode, name)).astype(np.float64) for mode in (one, other)]
        for name in ("position", "sd")
    )
    pooled = np.sqrt(0.5 * (sds[0] ** 2 + sds[1] ** 2))
    return np.abs(means[0] - means[1]) / np.maximum(pooled, np.finfo(np.float64).tiny)


def modes_sentence(modes: tuple[Mode, ...]) -> str:
    """What it means that starts ended in different optima; empty where there is one."""
    if len(modes) < 2:
        return ""
    means, sds = (
        np.stack([flat_numbers(getattr(m, name)) for m in modes]) for name in ("position", "sd")
    )
    far = int(np.argmax(np.ptp(means, axis=0) / np.maximum(sds.max(axis=0), 1e-300)))
    name = coordinate_names(modes[0].position)[far]
    places = ", ".join(f"{name} = {mean[far]:.3g}" for mean in means)
    weights = ", ".join(f"{mode.weight:.2g}" for mode in modes)
    return (
        f"The starts ended in {len(modes)} different optima, at {places}, and their bounds give "
        f"them the weights {weights}: q is at one of them, and its mean and sd leave out the "
        "others; result.modes holds them all."
    )
