r"""Moments that the target does not have although q has them.

Along a line through a draw of q, with r the distance in sds of q, the integral of
:math:`|g|^m p` diverges where :math:`d \log(|g|^m p) / d \log r \ge -1` far out. If the m-th moment
of g is infinite given the other coordinates, for a set of them that has mass, it is infinite.
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
_MOST_PASSES = 3  # over as many draws as the bound was evaluated on
_MOST_NUMBERS = 2e7
_SLOPE = -1.05  # of log |g|^m p over log r: at or above -1 the integral diverges
_NEGLIGIBLE = -15.0  # log of a tail, relative to the middle, that is too thin to matter
_MOST_NAMES = 4


def tail_sentence(
    target: AbstractTarget, family: Family, params: Params, space: UserSpace, key: PRNGKeyArray
) -> str:
    """Name what has no mean or no sd under the target; empty where nothing was found.

    It is not looked for where that would take more than three evaluations of the bound.
    """
    width = family.num_noise(target.dimension)
    shape = (_LINES, width, 2, 1 + len(_RADII))
    if np.prod(shape) > _MOST_PASSES * evaluation_count(target, family):
        return ""
    noise = _lines(evaluation_noise(target, family, key)[:_LINES], shape)
    log_p = -energies_at(target, family, params, noise.reshape(-1, width)).reshape(shape)
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
        missing = [_diverges(log_p[..., None] + order * log_g, over) for order in (1, 2)]
    for found, what in zip(missing, ("mean", "sd"), strict=True):
        if found.any():
            listed = [name for name, bad in zip(names, found, strict=True) if bad]
            more = "" if len(listed) <= _MOST_NAMES else f" and {len(listed) - _MOST_NAMES} more"
            verb = "has" if len(listed) == 1 else "have"
            return (
                f"Under the target {', '.join(listed[:_MOST_NAMES])}{more} {verb} no {what}, for "
                f"the tail is too heavy; the {what} of q says nothing about it: use quantiles of "
                "sample(), or a prior with lighter tails."
            )
    return ""


def _lines(bases: np.ndarray, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Noise at each base, and along every axis through it in both directions."""
    width = bases.shape[1]
    noise = np.broadcast_to(bases[:, None, None, None, :], (*shape, width)).copy()
    for axis in range(width):
        noise[:, axis, :, 1:, axis] = np.stack([_RADII, -_RADII])[None]
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


def _diverges(log_integrand: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Which outputs have a divergent integral on some line through every base.

    The arrays have the axes of lines, directions, radii and outputs. The slope is taken at the last
    two radii at which all is finite. At the first radius where the output overflows the integrand
    is a lower bound; it counts where even that is no smaller than further in.
    """
    middle, tail, over = log_integrand[..., 0, :], log_integrand[..., 1:, :], over[..., 1:, :]
    finite = np.isfinite(tail)
    exact = np.cumprod(finite & ~over, axis=-2).sum(axis=-2)  # leading radii without overflow
    bound = np.minimum(exact + 1, len(_RADII))
    here = np.take_along_axis(finite, bound[..., None, :] - 1, axis=-2)[..., 0, :]

    def heavy(usable: np.ndarray) -> np.ndarray:
        last = np.maximum(usable - 1, 1)
        outer, inner = (
            np.take_along_axis(tail, k[..., None, :], axis=-2)[..., 0, :] for k in (last, last - 1)
        )
        slope = (outer - inner) / np.log(_RADII[last] / _RADII[last - 1])
        mass = outer + np.log(_RADII[last]) - middle
        found: np.ndarray = (usable >= 2) & (slope > _SLOPE) & (mass > _NEGLIGIBLE)
        return found

    found: np.ndarray = (heavy(exact) | (here & heavy(bound))).any(axis=(1, 2)).all(axis=0)
    return found
