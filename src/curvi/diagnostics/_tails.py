r"""Moments that the target does not have although q has them.

Along a line through a draw of q, with r the distance in sds of q, the integral of
:math:`|g|^m p` diverges where :math:`d \log(|g|^m p) / d \log r \ge -1` far out. If the m-th moment
of g is infinite given the other coordinates, for a set of them that has mass, it is infinite.
Where all coordinates are far out together, as under a multivariate Student t, lines through the
centre show it, with :math:`r^{d - 1}` for the volume at r.

From an infinite third moment on the sd exists, but any number of draws makes it too small: with
:math:`p \sim r^{-\nu - 1}`, n of them miss about :math:`n^{-(1 - 2/\nu)}` of the variance, a
fifth of it for 2.5 degrees of freedom and n = 4,000.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from curvi._core.trees import coordinate_names
from curvi.diagnostics._evaluation import energies_at, evaluation_count, evaluation_noise
from curvi.diagnostics._moments import UserSpace, positions_in_blocks
from curvi.families import Family, Params
from curvi.families._host import has_host_map, host_map
from curvi.targets import AbstractTarget

_RADII = np.array([3.0, 4.0, 6.0, *8.0 * 2.0 ** np.arange(6)])  # sds of q
_LINES = 2  # draws that lines go through: both must agree, one may lie on a null set
_SHORT = 1e-2  # sds by which a coordinate moves to show its direction
_RAYS = 2  # lines through the centre, beside them
_SCREENED, _MOST_SCREENED = 8.0, 2000  # sds at which many coordinates are compared, and how many
_MOST_PASSES = 3  # over as many draws as the bound was evaluated on
_MOST_NUMBERS = 2e7
_SLOPE = -1.05  # of log |g|^m p over log r: at or above -1 the integral diverges
# Orders of moments that are missed, what is wrong then, and the log of a tail, relative to the bulk
# of the integral, that is too thin to matter: of what is infinite, or slows draws down.
_ORDERS = ((1, "mean", -15.0), (2, "sd", -15.0), (3, "", -3.0))
_MOST_NAMES = 4


def tail_sentence(
    target: AbstractTarget, family: Family, params: Params, space: UserSpace, key: PRNGKeyArray
) -> str:
    """Name what has no mean or no sd under the target; empty where nothing was found.

    All lines together take no more than three evaluations of the bound: of many coordinates those
    are looked along whose conditional density falls least on its way out.
    """
    width = family.num_noise(target.dimension)
    each = _LINES * 2 * (1 + len(_RADII))
    most = _MOST_PASSES * evaluation_count(target, family) // each - _RAYS
    if most < 1 or (width > most and not (has_host_map(family) and width <= _MOST_SCREENED)):
        return ""
    axes = _axes(family, params, width)
    if width > most:
        far = np.concatenate([_SCREENED * axes, -_SCREENED * axes])
        heights = -energies_at(target, family, params, far).reshape(2, width).max(axis=0)
        axes = axes[np.argsort(-np.where(np.isfinite(heights), heights, -np.inf))[:most]]
    shape = (_LINES, len(axes) + _RAYS, 2, 1 + len(_RADII))
    bases = evaluation_noise(target, family, key)[: _LINES * (1 + _RAYS)]
    noise = _lines(bases, axes, shape)
    log_p = -energies_at(target, family, params, noise.reshape(-1, width)).reshape(shape)
    log_p[:, len(axes) :, :, 1:] += (target.dimension - 1) * np.log(_RADII)
    flat = _transformed(family, params, noise.reshape(-1, width))
    with np.errstate(over="ignore"):  # far out is as far as numbers go
        given = positions_in_blocks(space, np.asarray(flat, target.dtype))
    outputs = _columns(given)
    names = coordinate_names(jax.tree.map(lambda leaf: leaf[0], given))
    if outputs.size > _MOST_NUMBERS:
        return ""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_g = np.log(np.abs(outputs.astype(np.float64))).reshape(*shape, -1)
        most = np.log(float(jnp.finfo(outputs.dtype).max))  # what overflows is larger than this
        log_g, over = np.minimum(log_g, most), log_g > most
        for order, what, thinnest in _ORDERS:
            found = _diverges(log_p[..., None] + order * log_g, over, thinnest)
            if found.any():
                listed = [name for name, bad in zip(names, found, strict=True) if bad]
                return _sentence(listed, what)
    return ""


def _sentence(names: list[str], what: str) -> str:
    """What is wrong with the moments of some outputs."""
    listed = ", ".join(names[:_MOST_NAMES])
    listed += "" if len(names) <= _MOST_NAMES else f" and {len(names) - _MOST_NAMES} more"
    verb = "has" if len(names) == 1 else "have"
    instead = "use quantiles of sample(), or a prior with lighter tails."
    if what:
        return (
            f"Under the target {listed} {verb} no {what}, for the tail is too heavy; the {what} of "
            f"q says nothing about it: {instead}"
        )
    return (
        f"The sd of {listed} is probably too small: the tail is so heavy that no number of draws "
        f"has its share of it; {instead}"
    )


def _axes(family: Family, params: Params, width: int) -> np.ndarray:
    """Directions of the noise, one per row, along which one coordinate moves and no other does."""
    if not has_host_map(family):
        return np.eye(width)
    place = host_map(family, params)
    moved = np.zeros(width)
    moved[place.order] = place.mean
    axes = place.noise_of(moved + np.diag(_SHORT * place.sds[np.argsort(place.order)]))
    found: np.ndarray = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    return found


def _lines(bases: np.ndarray, axes: np.ndarray, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Noise at each base, along every axis through it in both directions, and on rays."""
    width, count = bases.shape[1], len(axes)
    both = np.stack([_RADII, -_RADII])[..., None]
    noise = np.zeros((*shape, width), bases.dtype)
    noise[:, :count] = bases[:_LINES, None, None, None, :]
    # What the base has along an axis goes: r is the distance from the middle.
    across = bases[:_LINES, None] - (bases[:_LINES] @ axes.T)[..., None] * axes
    noise[:, :count, :, 1:] = across[:, :, None, None, :] + both * axes[:, None, None, :]
    rays = bases[_LINES:].reshape(_LINES, _RAYS, 1, 1, width)
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


def _diverges(log_integrand: np.ndarray, over: np.ndarray, thinnest: float) -> np.ndarray:
    """Which outputs have a divergent integral on some line through every base.

    The arrays have the axes of lines, directions, radii and outputs. The slope is taken at the last
    two radii at which all is finite. At the first radius where the output overflows the integrand
    is a lower bound; it counts where even that is no smaller than further in. A tail that is
    thinner than ``thinnest``, the logarithm of its share, does not count.
    """
    middle, tail, over = log_integrand[..., 0, :], log_integrand[..., 1:, :], over[..., 1:, :]
    finite = np.isfinite(tail)
    exact = np.cumprod(finite & ~over, axis=-2).sum(axis=-2)  # leading radii without overflow
    bound = np.minimum(exact + 1, len(_RADII))
    volume = np.log(_RADII)[:, None]
    bulk = np.maximum(middle, np.where(finite, tail + volume, -np.inf).max(axis=-2))
    here = np.take_along_axis(finite, bound[..., None, :] - 1, axis=-2)[..., 0, :]

    def heavy(usable: np.ndarray) -> np.ndarray:
        last = np.maximum(usable - 1, 1)
        outer, inner = (
            np.take_along_axis(tail, k[..., None, :], axis=-2)[..., 0, :] for k in (last, last - 1)
        )
        slope = (outer - inner) / np.log(_RADII[last] / _RADII[last - 1])
        mass = outer + np.log(_RADII[last]) - bulk
        found: np.ndarray = (usable >= 2) & (slope > _SLOPE) & (mass > thinnest)
        return found

    found: np.ndarray = (heavy(exact) | (here & heavy(bound))).any(axis=(1, 2)).all(axis=0)
    return found
