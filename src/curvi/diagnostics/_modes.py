"""Where several starts ended: how many optima there are, and what mass their bounds give them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import PyTree

from curvi._core.trees import coordinate_names, flat_numbers
from curvi.families import Family, Params
from curvi.targets import AbstractTarget

_APART = 1.0  # sds between means that belong to different optima
_NOTICEABLE = 0.01  # weight below which an optimum is left out


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
    order = [i for i in np.argsort(-elbos) if np.isfinite(elbos[i])]
    means = {i: np.asarray(ends[i].mean, np.float64) for i in order}
    sds = {i: np.asarray(family.sd(ends[i]), np.float64) for i in order}
    groups: list[list[int]] = []
    for i in order:
        near = (g for g in groups if _distance(means, sds, i, g[0]).max() < _APART)
        group = next(near, None)
        if group is None:
            groups.append([i])
        else:
            group.append(i)
    best = np.asarray([elbos[group[0]] for group in groups])
    weights = np.exp(best - best.max(initial=-np.inf))
    kept = weights >= _NOTICEABLE * weights.sum()
    unravel = target.density.unravel
    return tuple(
        Mode(
            unravel(ends[group[0]].mean),
            unravel(family.sd(ends[group[0]])),
            float(elbos[group[0]]),
            float(weight / weights[kept].sum()),
            len(group),
        )
        for group, weight, keep in zip(groups, weights, kept, strict=True)
        if keep
    )


def _distance(
    means: dict[int, np.ndarray], sds: dict[int, np.ndarray], one: int, other: int
) -> np.ndarray:
    """Distance of the means in every coordinate, in sds of both together."""
    pooled = np.sqrt(0.5 * (sds[one] ** 2 + sds[other] ** 2))
    return np.abs(means[one] - means[other]) / np.maximum(pooled, np.finfo(np.float64).tiny)


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
