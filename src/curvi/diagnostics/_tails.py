r"""Moments that the target does not have although q has them.

Along a line through a draw of q, with r the distance in sds of q, the integral of
:math:`|g|^m p` diverges where :math:`d \log(|g|^m p) / d \log r \ge -1` far out. If the m-th moment
of g is infinite given the other coordinates, for a set of them that has mass, it is infinite.
Where all coordinates are far out together, as under a multivariate Student t, lines through the
centre show it, with :math:`r^{d - 1}` for the volume at r.

From an infinite third moment on the sd exists, but any number of draws makes it too small: with
:math:`p \sim r^{-\nu - 1}`, n of them miss about :math:`n^{-(1 - 2/\nu)}` of the variance, a
fifth of it for 2.5 degrees of freedom and n = 4,000. The log density gives :math:`\nu` itself, the
lowest order of an infinite moment, and draws of the target the scale of a generalised Pareto tail
of shape :math:`1/\nu`, which then has the share that no draw has.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from curvi._core.text import listed
from curvi.diagnostics._evaluation import energies_at, evaluation_count, evaluation_noise
from curvi.diagnostics._moments import UserSpace, positions_in_blocks
from curvi.families import Family, Params, has_host_map, host_map
from curvi.targets import AbstractTarget

_RADII = np.array([3.0, 4.0, 6.0, *8.0 * 2.0 ** np.arange(6)])  # sds of q


@dataclass(frozen=True)
class TailSearch:
    """Where the tails of the target are looked at, and which of them matter."""

    lines: int = 2  # draws that lines go through: both must agree, one may lie on a null set
    short: float = 1e-2  # sds by which a coordinate moves to show its direction
    rays: int = 2  # lines through the centre, beside them
    # sds at which many coordinates are compared, and how many
    screened_at: float = 8.0
    most_screened: int = 2000
    most_passes: int = 3  # over as many draws as the bound was evaluated on
    most_numbers: float = 2e7
    critical_slope: float = -1.05  # of log |g|^m p over log r: at or above -1 the integral diverges
    # Orders of moments that are missed, and the log of a tail, relative to the bulk of the
    # integral, that is too thin to matter: of what is infinite, or slows draws down.
    orders: tuple[tuple[int, float], ...] = ((1, -15.0), (2, -15.0), (3, -3.0))
    # of draws that are the tail, and steps to its scale
    tail_share: float = 0.1
    most_fixed_points: int = 100
    unsure: float = 0.1  # relative error of an sd that is worth a warning


TAILS = TailSearch()


def tail_orders(
    target: AbstractTarget,
    family: Family,
    params: Params,
    space: UserSpace,
    key: PRNGKeyArray,
    *,
    search: TailSearch = TAILS,
) -> np.ndarray:
    """The lowest order, up to three, of an infinite moment of every output; infinity where none is.

    It is empty where nothing was looked at. All lines together take no more than three evaluations
    of the bound: of many coordinates those are looked along whose conditional density falls least
    on its way out.
    """
    width = family.num_noise(target.dimension)
    each = search.lines * 2 * (1 + len(_RADII))
    most = search.most_passes * evaluation_count(target, family) // each - search.rays
    if most < 1 or (width > most and not (has_host_map(family) and width <= search.most_screened)):
        return np.empty(0)
    axes = _axes(family, params, width, search=search)
    if width > most:
        far = np.concatenate([search.screened_at * axes, -search.screened_at * axes])
        heights = -energies_at(target, family, params, far).reshape(2, width).max(axis=0)
        axes = axes[np.argsort(-np.where(np.isfinite(heights), heights, -np.inf))[:most]]
    shape = (search.lines, len(axes) + search.rays, 2, 1 + len(_RADII))
    bases = evaluation_noise(target, family, key)[: search.lines * (1 + search.rays)]
    noise = _lines(bases, axes, shape, search=search)
    log_p = -energies_at(target, family, params, noise.reshape(-1, width)).reshape(shape)
    log_p[:, len(axes) :, :, 1:] += (target.dimension - 1) * np.log(_RADII)
    flat = _transformed(family, params, noise.reshape(-1, width))
    with np.errstate(over="ignore"):  # far out is as far as numbers go
        given = positions_in_blocks(space, np.asarray(flat, target.dtype))
    outputs = _columns(given)
    if outputs.size > search.most_numbers:
        return np.empty(0)
    orders = np.full(outputs.shape[1], np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_g = np.log(np.abs(outputs.astype(np.float64))).reshape(*shape, -1)
        most = np.log(float(jnp.finfo(outputs.dtype).max))  # what overflows is larger than this
        log_g, over = np.minimum(log_g, most), log_g > most
        for order, thinnest in search.orders:
            found = _infinite_from(log_p[..., None], log_g, over, order, thinnest, search=search)
            orders = np.minimum(
                orders, np.where(np.isfinite(found), np.maximum(found, order - 1), np.inf)
            )
    return orders


def tail_sentence(
    orders: np.ndarray, names: list[str], errors: np.ndarray | None, *, search: TailSearch = TAILS
) -> str:
    """Name what has no mean, no sd, or one that draws do not find; empty where nothing was found.

    Parameters
    ----------
    orders : array
        The lowest order of an infinite moment of every output.
    names : list of str
        Of the outputs.
    errors : array or None
        Relative errors of sds that continue a tail beyond the draws, NaN where there is no such
        tail; None where none is continued.
    """
    errors = np.full(orders.shape, np.inf) if errors is None else errors
    cases = {
        "mean": orders <= 1,
        "sd": orders <= 2,
        "": np.isfinite(orders) & (errors > search.unsure),
    }
    what, bad = next(((what, bad) for what, bad in cases.items() if bad.any()), ("", None))
    if bad is None:
        return ""
    some = [name for name, one in zip(names, bad, strict=True) if one]
    which = listed(some)
    verb = "has" if len(some) == 1 else "have"
    instead = "use quantiles of sample(), or a prior with lighter tails."
    if what:
        return (
            f"Under the target {which} {verb} no {what}, for the tail is too heavy; the {what} of "
            f"q says nothing about it: {instead}"
        )
    if np.isfinite(errors[bad]).all():
        return (
            f"The sd of {which} is uncertain by {errors[bad].max():.0%}: the tail is so heavy that"
            f" much of it lies beyond the draws; {instead}"
        )
    return (
        f"The sd of {which} is probably too small: the tail is so heavy that no number of draws "
        f"has its share of it; {instead}"
    )


def continued_sd(
    draws: np.ndarray, order: float, ess: float, *, search: TailSearch = TAILS
) -> tuple[float, float]:
    r"""The sd of draws whose tail goes on as its order says, and the relative error of that.

    What :math:`|g - \mathrm{median}|` exceeds its upper tenth by follows a generalised Pareto
    distribution of shape :math:`k = 1/\nu`, whose scale is that of maximum likelihood.
    """
    draws = draws.astype(np.float64)
    centre, k = np.median(draws), 1 / order
    far = np.sort(np.abs(draws - centre))
    tail = max(int(search.tail_share * len(far)), 1)
    edge, share = far[-tail - 1], tail / len(far)
    beyond = far[-tail:] - edge
    scale = float(np.mean(beyond)) * (1 - k)
    for _ in range(search.most_fixed_points):  # the root of the likelihood equation, a contraction
        scale *= float(np.mean((1 + k) * beyond / (scale + k * beyond)))
    first, second = scale / (1 - k), 2 * scale**2 / ((1 - k) * (1 - 2 * k))
    outer = share * (edge**2 + 2 * edge * first + second)
    variance = np.sum(far[:-tail] ** 2) / len(far) + outer - (draws.mean() - centre) ** 2
    # Of the share of the tail, which is counted, and of its scale, by the Fisher information.
    slope = share * (2 * edge * first + 2 * second)
    error = np.hypot(outer, slope * (1 + 2 * k) ** 0.5) / (search.tail_share * ess) ** 0.5
    return float(variance**0.5), float(0.5 * error / variance)


def _axes(family: Family, params: Params, width: int, *, search: TailSearch = TAILS) -> np.ndarray:
    """Directions of the noise, one per row, along which one coordinate moves and no other does."""
    if not has_host_map(family):
        return np.eye(width)
    place = host_map(family, params)
    moved = np.zeros(width)
    moved[place.order] = place.mean
    axes = place.noise_of(moved + np.diag(search.short * place.sds[np.argsort(place.order)]))
    found: np.ndarray = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    return found


def _lines(
    bases: np.ndarray,
    axes: np.ndarray,
    shape: tuple[int, int, int, int],
    *,
    search: TailSearch = TAILS,
) -> np.ndarray:
    """Noise at each base, along every axis through it in both directions, and on rays."""
    width, count = bases.shape[1], len(axes)
    both = np.stack([_RADII, -_RADII])[..., None]
    noise = np.zeros((*shape, width), bases.dtype)
    noise[:, :count] = bases[: search.lines, None, None, None, :]
    # What the base has along an axis goes: r is the distance from the middle.
    across = bases[: search.lines, None] - (bases[: search.lines] @ axes.T)[..., None] * axes
    noise[:, :count, :, 1:] = across[:, :, None, None, :] + both * axes[:, None, None, :]
    rays = bases[search.lines :].reshape(search.lines, search.rays, 1, 1, width)
    rays = rays / np.maximum(np.linalg.norm(rays, axis=-1, keepdims=True), 1e-30)
    noise[:, count:, :, 1:] = both * rays
    return noise


def _transformed(family: Family, params: Params, noise: np.ndarray) -> np.ndarray:
    """The positions on the host: nothing is compiled for them."""
    if has_host_map(family):
        return host_map(family, params).forward(noise.astype(np.float64)).positions
    mean, scale_params = jax.tree.map(np.asarray, params)
    diagonal, factor = family.scale.diagonal_and_factor(scale_params, np)
    moved = np.zeros((len(noise), len(mean))) + mean[None]
    if diagonal is not None:
        moved += diagonal[None] * noise[:, : len(mean)]
    if factor is not None:
        moved += noise[:, noise.shape[1] - factor.shape[1] :] @ factor.T
    return moved


def _columns(draws: PyTree) -> np.ndarray:
    """One row per draw and one column per number of the user's position."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(draws)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _infinite_from(
    log_p: np.ndarray,
    log_g: np.ndarray,
    over: np.ndarray,
    order: int,
    thinnest: float,
    *,
    search: TailSearch = TAILS,
) -> np.ndarray:
    """From which order on moments are infinite, on some line through every base.

    Infinity where that of the given order is finite. The arrays have the axes of lines, directions,
    radii and outputs. The slope is taken at the last two radii at which all is finite. At the first
    radius where the output overflows the integrand is a lower bound; it counts where even that is
    no smaller than further in. A tail that is thinner than ``thinnest``, the logarithm of its
    share, does not count.
    """
    integrand = log_p + order * log_g
    middle, tail, over = integrand[..., 0, :], integrand[..., 1:, :], over[..., 1:, :]
    finite = np.isfinite(tail)
    exact = np.cumprod(finite & ~over, axis=-2).sum(axis=-2)  # leading radii without overflow
    bound = np.minimum(exact + 1, len(_RADII))
    volume = np.log(_RADII)[:, None]
    bulk = np.maximum(middle, np.where(finite, tail + volume, -np.inf).max(axis=-2))
    here = np.take_along_axis(finite, bound[..., None, :] - 1, axis=-2)[..., 0, :]

    def critical(usable: np.ndarray) -> np.ndarray:
        last = np.maximum(usable - 1, 1)

        def slope_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            outer, inner = (
                np.take_along_axis(values, k[..., None, :], axis=-2)[..., 0, :]
                for k in (last, last - 1)
            )
            return outer, (outer - inner) / np.log(_RADII[last] / _RADII[last - 1])

        outer, slope = slope_of(tail)
        mass = outer + np.log(_RADII[last]) - bulk
        heavy = (usable >= 2) & (slope > search.critical_slope) & (mass > thinnest)
        return np.where(heavy, order - (1 + slope) / slope_of(log_g[..., 1:, :])[1], np.inf)

    found = np.minimum(critical(exact), np.where(here, critical(bound), np.inf))
    lowest: np.ndarray = found.min(axis=(1, 2)).max(axis=0)
    return lowest
