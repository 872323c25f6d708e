"""Means and sds of a function over draws, a block of draws at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core.compilation import SizedJit, compiled
from curvi._core.memory import require_memory
from curvi._core.programs import Program
from curvi._core.text import listed
from curvi._core.trees import coordinate_names, on_device, precision_of, size
from curvi.families import Family, Params
from curvi.objective import Draws, fixed_draws
from curvi.targets import AbstractTarget


@dataclass(frozen=True)
class MomentDraws:
    """How many draws moments come from, and when their tail is too heavy for them."""

    most_draws: int = 4096
    fewest_draws: int = 64
    most_numbers: float = 2e7  # in all draws together, and in the results of one block
    tail: int = 64  # draws that are the tail of 4,096
    least_tail: int = 16  # of which fewer do not tell its shape
    # of one draw in the sum of squares: without it the sd is a third smaller
    largest_share: float = 0.6
    negligible_spread: float = 1e-3  # of the value itself: such an sd is as good as zero
    rows_together: int = 256  # positions that are transformed together


DRAWS = MomentDraws()
_WORST_K = {"sd": 0.65, "mean": 0.85}  # 1/2 and 1, with room for a lognormal of log sd 1.2


@partial(compiled, static_argnames="family")
def sd_of(family: Family, params: Params) -> Float[Array, " dimension"]:
    """Sds of q in one compiled function: one by one its operations would compile for longer."""
    return family.sd(params)


def moment_draws(
    family: Family, params: Params, key: PRNGKeyArray, *, policy: MomentDraws = DRAWS
) -> Float[Array, "draws noise"]:
    """Draws whose first two moments are exact, so that linear functions have no noise.

    There are 4,096 of them, or fewer (64 at least) for very many coordinates.
    """
    width = family.num_noise(params.mean.shape[0])
    count = _power_of_two(policy.most_numbers / width, policy.fewest_draws, policy.most_draws)
    kind = "whitened" if width < count // 4 else "normalised"
    return fixed_draws(key, Draws(kind, count), width, family.base, params.mean.dtype)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class UserSpace:
    """The way from a draw of the base to the user's space."""

    family: Family
    to_user: Program

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """The program, and the family."""
        return (self.to_user,), self.family

    @classmethod
    def tree_unflatten(cls, family: Family, programs: Any) -> UserSpace:
        """The same with other arrays."""
        return cls(family, *programs)

    def __call__(self, params: Params, epsilon: Float[Array, " noise"]) -> PyTree:
        """The position of one draw."""
        return self.position(self.family.transform(params, epsilon))

    def position(self, z: Float[Array, " dimension"]) -> PyTree:
        """A flat position as the user sees it."""
        return self.to_user(z)


@compiled
def positions(space: UserSpace, flat: Float[Array, "draws dimension"]) -> PyTree:
    """Flat positions, one per row, as the user sees them."""
    return jax.vmap(space.position)(flat)


def positions_in_blocks(
    space: UserSpace, flat: np.ndarray, *, policy: MomentDraws = DRAWS
) -> PyTree:
    """Many positions as the user sees them, on the host; one function of one shape is compiled."""
    blocks = []
    for begin in range(0, len(flat), policy.rows_together):
        part = flat[begin : begin + policy.rows_together]
        padded = np.concatenate(
            [part, np.repeat(part[-1:], policy.rows_together - len(part), axis=0)]
        )
        blocks.append(jax.tree.map(np.asarray, positions(space, on_device(padded))))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(flat)], *blocks)


def user_columns(
    space: UserSpace, *, policy: MomentDraws = DRAWS
) -> Callable[[np.ndarray], np.ndarray]:
    """From positions, one per row, to all numbers of the user's position in columns."""

    def columns(flat: np.ndarray) -> np.ndarray:
        leaves = jax.tree.leaves(positions_in_blocks(space, flat, policy=policy))
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    return columns


def require_positions(space: UserSpace, target: AbstractTarget, num_draws: int) -> None:
    """Raise ``MemoryBudgetError`` where so many draws do not fit."""
    given = jax.eval_shape(space.position, target.start)
    numbers = space.family.num_noise(target.dimension) + 2 * target.dimension + size(given)
    require_memory(
        num_draws * numbers * target.dtype.itemsize,
        f"{num_draws} draws of {size(given)} numbers",
        "ask for fewer, or for several seeds one after another",
    )


def user_space(target: AbstractTarget, family: Family) -> UserSpace:
    """The way from draws of q to the space of a target's user."""
    return UserSpace(family, target.to_user)


class UserMoments(NamedTuple):
    """Mean and sd in the user's space, and why not to trust them (empty where nothing is amiss).

    Where sds continue a tail beyond the draws, the relative errors of these, NaN for all others.
    """

    mean: PyTree
    sd: PyTree
    doubt: str = ""
    errors: np.ndarray | None = None


def user_moments(
    target: AbstractTarget, family: Family, params: Params, *, policy: MomentDraws = DRAWS
) -> UserMoments:
    """Mean and sd of q in the user's space: exact where it is q's own, else from many draws."""
    with precision_of(target.dtype):
        if target.constrain is None:
            unravel = target.density.unravel
            return UserMoments(unravel(params.mean), unravel(sd_of(family, params)))
        noise = moment_draws(family, params, jax.random.key(0), policy=policy)
        found: list[PyTree] = []
        mean, sd = moments_over(
            user_space(target, family), noise, params, results=found, policy=policy
        )
        return UserMoments(mean, sd, doubt_of(found[0], policy=policy) if len(found) == 1 else "")


def doubt_of(draws: PyTree, *, policy: MomentDraws = DRAWS) -> str:
    r"""Name the output whose sample mean or sd its few largest draws decide.

    The tail of :math:`d = |g - \mathrm{median}|` has the shape k of Hill's estimator, the mean of
    :math:`\log(d / d_{(m)})` over the m largest; the variance is infinite from k = 1/2 on, the mean
    from k = 1 on. One draw that holds most of the sum of squares is as bad.
    """
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(draws)]
    columns = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    tail = policy.tail * len(columns) // policy.most_draws
    if tail < policy.least_tail or not columns.size:
        return ""
    with np.errstate(all="ignore"):  # what is not finite is reported as such elsewhere
        centre = np.median(columns, axis=0)
        far = np.abs(columns - centre)
        top = np.sort(np.partition(far, -tail - 1, axis=0)[-tail - 1 :], axis=0)
        shape = np.where(top[0] > 0, np.mean(np.log(top[1:] / top[0]), axis=0), 0.0)
        share = top[-1] ** 2 / np.sum(far**2, axis=0)
        judged = np.isfinite(far).all(axis=0)
        judged &= np.sqrt(np.mean(far**2, axis=0)) > policy.negligible_spread * np.abs(centre)
    bad = judged & ((shape > _WORST_K["sd"]) | (share > policy.largest_share))
    if not bad.any():
        return ""
    worst = int(np.argmax(np.where(bad, shape, -np.inf)))
    names = coordinate_names(jax.tree.map(lambda leaf: leaf[0], draws))
    which = listed([names[worst], *(names[i] for i in np.flatnonzero(bad) if i != worst)])
    what = "mean and sd" if shape[worst] > _WORST_K["mean"] else "sd"
    return (
        f"The {what} of {which} cannot be trusted: of the "
        f"{len(columns)} draws of q behind it, one holds {100 * share[worst]:.0f} % of the second "
        f"moment of {names[worst]} (Pareto k {shape[worst]:.2f}); use quantiles of sample(), or a "
        "transformed quantity such as its logarithm."
    )


def _block(fn: Callable[..., PyTree], given: Any, noise: Float[Array, "draws noise"]) -> Any:
    results = jax.vmap(lambda row: fn(*given, row))(noise)
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), results)
    scatter = jax.tree.map(lambda leaf: noise.shape[0] * jnp.var(leaf, axis=0), results)
    return mean, scatter, results


_compiled_block = SizedJit(_block)


def moments_over(
    fn: Callable[..., PyTree],
    noise: Float[Array, "draws noise"],
    *given: Any,
    results: list[PyTree] | None = None,
    policy: MomentDraws = DRAWS,
) -> tuple[PyTree, PyTree]:
    r"""Mean and sd of ``fn(*given, row)`` over the rows, without all of its results at once.

    Blocks are joined by :math:`S = S_a + S_b + (m_a - m_b)^2 n_a n_b / (n_a + n_b)` for sums of
    squares S about the means m of n results, which loses no digits. ``results`` takes those of
    the first block, and None for every other one.
    """
    outputs = jax.eval_shape(fn, *given, noise[0])
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(outputs))
    block = _power_of_two(policy.most_numbers / max(size, noise.shape[1]), 1, noise.shape[0])
    work = float(block * (size + noise.shape[1]))
    count, mean, square = 0, outputs, outputs
    for begin in range(0, noise.shape[0], block):
        part = noise if block == noise.shape[0] else noise[begin : begin + block]
        found = _compiled_block(work, fn=fn, given=given, noise=part)
        new, scatter = jax.tree.map(np.asarray, found[:2])
        if results is not None:
            results.append(found[2] if count == 0 else None)
        if count == 0:
            count, mean, square = block, new, scatter
            continue
        gap = jax.tree.map(np.subtract, new, mean)
        both, weight = count + block, count * block / (count + block)
        square = jax.tree.map(lambda a, b, g, w=weight: a + b + w * g**2, square, scatter, gap)
        share = block / both
        mean = jax.tree.map(lambda a, g, s=share: a + s * g, mean, gap)
        count = both
    sd = jax.tree.map(lambda leaf: jnp.asarray(np.sqrt(leaf / count)), square)
    return jax.tree.map(jnp.asarray, mean), sd


def _power_of_two(wanted: float, least: int, most: int) -> int:
    """The largest power of two up to ``wanted``, within limits that are powers of two."""
    return min(most, max(least, 2 ** int(math.log2(max(wanted, 1.0)))))
