r"""q against the target on fresh draws: the bound, importance ratios, and the variance of draws.

With ratios :math:`w_s = p(z_s) / q(z_s)` at draws of q, a tail of w that is as heavy as that of a
Pareto distribution with shape k > 0.7 means that parts of the target are hardly visited by q. The
relative effective sample size is :math:`(\sum w)^2 / (S \sum w^2)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core import validation
from curvi._core.compilation import SizedJit
from curvi._core.memory import require_memory
from curvi._core.trees import on_device, size
from curvi.families import Family, HostMap, Params, has_host_map, host_map
from curvi.objective import BatchedDensity, Stream, energies, host_generator, host_sample
from curvi.paper.concentration import VarianceReport
from curvi.targets import AbstractTarget, Density


@dataclass(frozen=True)
class Grades:
    """When importance weights say that q fits: Pareto k, relative effective sample sizes."""

    worst_k: float = 0.7  # from here on averages over the weights cannot be trusted
    # below this most draws are wasted on places the target avoids, whatever k says
    least_ess: float = 0.25
    enough_ess: float = 0.9
    close_ess: float = 0.99  # from here on q has the tails, too, as far as draws can tell


GRADES = Grades()


@dataclass(frozen=True)
class Effort:
    """How many fresh draws judge a bound, and how many of them are computed at once."""

    most_draws: int = 1024
    fewest_draws: int = 64
    most_work: float = 3e8  # rows times draws beyond which fewer draws are used
    most_numbers: float = 2e7  # in all draws together, likewise
    together: int = 32
    fewest_together: int = 8
    wide: float = 4e6  # numbers in the draws that are made at once, above which they are fewer
    most_at_once: float = 1e8  # numbers that one call computes at most: a fraction of a second


EFFORT = Effort()


class Evaluation(NamedTuple):
    """The ELBO, its standard error, and log p - log q at each of the draws behind them."""

    elbo: float
    elbo_se: float
    log_ratio: np.ndarray


def _energies(
    density: Density,
    family: Family,
    params: Params,
    rows: PyTree,
    noise: Float[Array, "blocks together noise"],
) -> tuple[Float[Array, "blocks together"], Float[Array, "blocks together"], Float[Array, ""]]:
    def log_q(epsilon: Float[Array, " noise"]) -> Float[Array, ""]:
        return family.noise_log_prob(params, epsilon)

    def block(epsilons: Float[Array, "together noise"]) -> tuple[Array, Array]:
        values = energies(density, family, params, epsilons, rows)
        return values, jax.vmap(log_q)(epsilons)

    values, logs = jax.lax.map(block, noise)
    return values, logs, family.entropy(params)


_compiled = SizedJit(_energies, static_argnames=("family",))


def evaluation_noise(
    target: AbstractTarget, family: Family, key: PRNGKeyArray, *, effort: Effort = EFFORT
) -> Float[np.ndarray, "draws noise"]:
    """The independent draws of the base that :func:`evaluate` uses."""
    rng = host_generator(key, Stream.EVALUATION)
    width = family.num_noise(target.dimension)
    count = evaluation_count(target, family, effort=effort)
    return host_sample(rng, count, width, family.base).astype(target.dtype)


def evaluation_count(target: AbstractTarget, family: Family, *, effort: Effort = EFFORT) -> int:
    """1,024 draws, or fewer (64 at least).

    Fewer for very many rows, where each is expensive, and for very many coordinates, where they
    would fill the memory.
    """
    width, num_rows = family.num_noise(target.dimension), max(target.num_rows, 1)
    count = min(effort.most_work / num_rows, effort.most_numbers / width)
    count = int(np.clip(count, effort.fewest_draws, effort.most_draws))
    return count - count % effort.together


def _unlimited() -> float:
    return float("inf")


def evaluate(
    target: AbstractTarget,
    family: Family,
    params: Any,
    key: PRNGKeyArray,
    time_left: Callable[[], float] = _unlimited,
) -> Evaluation:
    """Evaluate q against the target on independent draws, 64 to 1,024 of them.

    Parameters
    ----------
    target : Target or DataTarget
        What is inferred; all its rows are used.
    family : Family
        The family of q.
    params : Params
        Variational parameters of q.
    key : key
        Key of the fit; the draws are independent of those that the fit used.
    time_left : callable, optional
        Seconds that are left. An expensive evaluation ends with the draws that it has when none
        are, 8 at least.

    Returns
    -------
    elbo : float
        Evidence lower bound, with the analytic entropy of q. It is not finite where the log
        density is not finite at a draw.
    elbo_se : float
        Its standard error.
    log_ratio : float64 array, shape (draws,)
        log p - log q at each of the draws.
    """
    return evaluate_all(target, family, [params], key, time_left)[0]


def evaluate_all(
    target: AbstractTarget,
    family: Family,
    candidates: list[Any],
    key: PRNGKeyArray,
    time_left: Callable[[], float] = _unlimited,
    *,
    effort: Effort = EFFORT,
) -> list[Evaluation]:
    """:func:`evaluate` for several q on the same draws, which are made once."""
    width = family.num_noise(target.dimension)
    count, rng = (
        evaluation_count(target, family, effort=effort),
        host_generator(key, Stream.EVALUATION),
    )
    together = effort.together
    while together > effort.fewest_together and together * width > effort.wide:
        together //= 2
    work = count * (target.density.cost.numbers + 2 * width)
    step = count if work <= effort.most_at_once else together
    if has_host_map(family):
        step = max(step, BatchedDensity.of(target).batch)
    found: list[list[Any]] = [[] for _ in candidates]
    for _ in range(0, count, step):
        draws = host_sample(rng, step, width, family.base).astype(target.dtype)
        for params, blocks in zip(candidates, found, strict=True):
            parts = _evaluated(target, family, params, draws, together)
            blocks.append([np.asarray(part, np.float64) for part in parts])  # waits: see the clock
        if time_left() <= 0:
            break
    return [_evaluation(blocks) for blocks in found]


def _evaluation(blocks: list[Any]) -> Evaluation:
    values, logs = (np.concatenate([b[part].ravel() for b in blocks]) for part in (0, 1))
    with np.errstate(invalid="ignore", over="ignore"):  # a bound that is not finite is judged later
        error = float(values.std(ddof=1) / len(values) ** 0.5)
        return Evaluation(float(blocks[0][2] - values.mean()), error, -values - logs)


def _evaluated(
    target: AbstractTarget,
    family: Family,
    params: Any,
    draws: np.ndarray,
    together: int = EFFORT.together,
) -> tuple[Any, Any, Any]:
    if has_host_map(family):  # shares the compiled function of natural gradients and HMC
        return _on_host(target, family, params, draws)
    noise = jnp.asarray(draws.reshape(-1, together, draws.shape[1]))
    work = draws.shape[0] * target.density.cost.numbers
    return _compiled(
        work, target.density, family=family, params=params, rows=target.rows, noise=noise
    )


def _on_host(
    target: AbstractTarget, family: Family, params: Any, draws: np.ndarray
) -> tuple[Any, Any, Any]:
    """Energies, log q and the entropy of q, through values and gradients of the log density."""
    noise = np.asarray(draws, np.float64)
    place = host_map(family, params)
    moved = place.forward(noise)
    values, _ = BatchedDensity.of(target)(moved.positions)
    constant = 0.5 * noise.shape[1] * np.log(2 * np.pi)
    log_q = -0.5 * np.sum(noise**2, axis=1) - constant - moved.log_det
    if not isinstance(place, HostMap):
        return -values, log_q, np.asarray(family.entropy(params))
    entropy = constant + 0.5 * noise.shape[1] + place.log_det - float(np.sum(place.warp**2))
    return -values, log_q, np.asarray(entropy)


def energies_at(
    target: AbstractTarget, family: Family, params: Any, noise: np.ndarray
) -> np.ndarray:
    """-log p at given noise, through the code that was compiled to evaluate the bound."""
    count = evaluation_count(target, family)
    padding = -len(noise) % count
    padded = np.concatenate([noise, np.zeros((padding, noise.shape[1]))]).astype(target.dtype)
    parts = [
        np.asarray(_evaluated(target, family, params, padded[i : i + count])[0], np.float64)
        for i in range(0, len(padded), count)
    ]
    return np.concatenate([part.ravel() for part in parts])[: len(noise)]


def evaluate_elbo(
    target: AbstractTarget, family: Family, params: Any, key: PRNGKeyArray
) -> tuple[float, float]:
    """Evidence lower bound and its standard error from independent draws.

    Parameters
    ----------
    target, family, params, key
        As for :func:`evaluate`.

    Returns
    -------
    elbo, elbo_se : float
        The first two values of :func:`evaluate`.
    """
    return evaluate(target, family, params, key)[:2]


def variance_of_draws(
    target: AbstractTarget,
    family: Family,
    params: Params,
    num_draws: int,
    lipschitz: float,
    seed: int,
) -> VarianceReport:
    """Variance of ``log p(z)`` and of its reparameterised gradient over independent draws."""
    width = family.num_noise(target.dimension)
    require_memory(
        num_draws * size(params) * target.dtype.itemsize,
        f"the gradients of {num_draws} draws",
        "ask for fewer draws",
    )
    rng = np.random.default_rng(validation.checked_seed(seed))
    draws = host_sample(rng, num_draws, width, family.base)

    def energy(params: Params, noise: Float[Array, " noise"]) -> Array:
        return energies(target.density, family, params, noise[None, :], target.rows)[0]

    def one(noise: Float[Array, " noise"]) -> tuple[Array, Any]:
        value, gradient = jax.value_and_grad(energy)(params, noise)
        return value, ravel_pytree(gradient)[0]

    values, gradients = jax.lax.map(jax.jit(one), jnp.asarray(draws.astype(target.dtype)))
    spread = float(jnp.sum(jnp.var(gradients, axis=0, ddof=1)))
    return VarianceReport(float(np.asarray(values, np.float64).var(ddof=1)), spread, lipschitz)


@dataclass(frozen=True, eq=False)
class ImportanceWeights:
    """Pareto-smoothed importance weights of draws from q, and what they say about q.

    Attributes
    ----------
    weights : array, shape (draws,)
        Smoothed weights, which sum to one; zero outside the support of the target.
    khat : float
        Pareto k, the shape of the tail of the ratios; minus infinity where they are constant.
    relative_ess : float
        Effective sample size over the number of draws, between 0 and 1.
    """

    weights: np.ndarray
    khat: float
    relative_ess: float

    _claims = {"weights": "spread n", "khat": "extended", "relative_ess": "real"}  # noqa: RUF012

    @property
    def misfit(self) -> bool:
        """Whether to warn: k above 0.7 and a relative ESS below 0.9, or one below 0.25.

        k alone misfires on fits that are all but exact, whose ratios are constant to rounding.
        """
        fits = self.khat <= GRADES.worst_k or self.relative_ess >= GRADES.enough_ess
        return not fits or self.relative_ess < GRADES.least_ess


class Moments(NamedTuple):
    """Mean and sd under the target, by importance weights.

    Attributes
    ----------
    mean, sd : pytree
        Weighted moments of the draws, in the structure and space of the user's position.
    """

    mean: PyTree
    sd: PyTree


def raw_relative_ess(log_ratio: np.ndarray) -> float:
    """Relative ESS without smoothing: a first estimate that needs no library."""
    finite = log_ratio[np.isfinite(log_ratio)]
    if not finite.size:
        return 0.0
    weights = np.exp(finite - finite.max())
    return float(weights.sum() ** 2 / (log_ratio.size * np.sum(weights**2)))


def smoothed_weights(log_ratio: np.ndarray, *, constant: float = 1e-4) -> ImportanceWeights:
    """Pareto-smooth the ratios with arviz-stats.

    Ratios that are not finite (outside the support) have weight zero. If none is finite, k is
    infinite and the relative ESS is zero; where hardly any is above zero beside the largest, k is
    infinite and the weights are what they are.

    ``constant``: log ratios that differ by less have no tail to fit.
    """
    finite = np.isfinite(log_ratio)
    weights = np.zeros(len(log_ratio))
    if not finite.any():
        return ImportanceWeights(weights, float("inf"), 0.0)
    shifted = log_ratio[finite] - log_ratio[finite].max()
    if np.ptp(shifted) <= constant:
        weights[finite] = 1 / finite.sum()  # no tail to fit
        khat = float("-inf")
    else:
        from arviz_stats.base.array import array_stats

        with np.errstate(all="ignore"):  # what it cannot fit is seen in the result
            logs, shape = array_stats.psislw(-shifted)  # it takes log likelihoods, as for LOO
            smooth = np.exp(np.asarray(logs))
        khat = float(shape)
        if not (np.isfinite(smooth).all() and np.isfinite(khat)):
            # All ratios but a few are zero beside the largest: there is no tail to fit.
            smooth, khat = np.exp(shifted), float("inf")
        weights[finite] = smooth
    weights /= weights.sum()
    return ImportanceWeights(weights, khat, float(1 / (len(weights) * np.sum(weights**2))))


def weighted_moments(draws: PyTree, weights: np.ndarray) -> Moments:
    """Weighted mean and sd of every leaf over its leading axis.

    Both are summed in double precision around the first draw, so that neither loses its digits
    where the mean is much larger than the sd.
    """

    def total(leaf: np.ndarray) -> np.ndarray:
        return np.asarray(np.tensordot(weights.astype(np.float64), leaf, axes=1))

    def mean(leaf: np.ndarray) -> np.ndarray:
        wide = leaf.astype(np.float64)
        return np.asarray(wide[0] + total(wide - wide[0]) / weights.sum())

    def sd(leaf: np.ndarray, centre: np.ndarray) -> np.ndarray:
        return np.asarray(np.sqrt(total((leaf - centre[None]) ** 2) / weights.sum()))

    # On the host: JAX would compile each operation for each shape of a leaf.
    with np.errstate(all="ignore"):
        leaves = jax.tree.map(np.asarray, draws)
        means = jax.tree.map(mean, leaves)
        spreads = jax.tree.map(sd, leaves, means)
        means, spreads = (
            jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), part, leaves)
            for part in (means, spreads)
        )
    return Moments(*jax.tree.map(on_device, (means, spreads)))
