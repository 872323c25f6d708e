r"""How noisy one draw of the code makes the bound and its gradient.

Lemma 4 carried through a decoder bounds the slope of the reconstruction term
:math:`\log p(x_i \mid \mu_i + \sigma_i \epsilon)` in :math:`\epsilon`, and Theorem 2 its variance.
Gradients have no such bound here; their variance is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from curvi._core import validation
from curvi._core.compilation import compiled
from curvi._core.trees import precision_of
from curvi.paper.concentration import reconstruction_lipschitz
from curvi.vae._networks import MLPObjective, VAEParams
from curvi.vae._objective import VAEObjective


@dataclass(frozen=True)
class ReconstructionVariance:
    """Of the reconstruction term of one row from one draw, averaged over rows, in nats squared.

    Attributes
    ----------
    measured : float
        Mean over rows of the variance over draws.
    lipschitz : float
        Root of the mean squared Lipschitz bound; infinite for a Gaussian likelihood, whose
        squared error has no bounded slope.
    num_draws : int
        Draws behind ``measured``.
    """

    measured: float
    lipschitz: float
    num_draws: int

    @property
    def sharp(self) -> float:
        """``L^2``, averaged over rows."""
        return self.lipschitz**2


def reconstruction_variance(
    objective: MLPObjective, params: VAEParams, X: Any, *, num_draws: int = 200, seed: int = 0
) -> ReconstructionVariance:
    """Measure the variance over draws and set it beside its bound."""
    rows = np.asarray(X)
    with precision_of(rows.dtype):
        device = jnp.asarray(rows)
        mean, log_variance = objective.code(params, device)
        sd = jnp.exp(0.5 * log_variance)

        def term(key: jax.Array) -> jax.Array:
            codes = mean + sd * jax.random.normal(key, mean.shape, mean.dtype)
            return objective.likelihood.log_prob(objective.decoded(params, codes), device)

        terms = jax.lax.map(term, jax.random.split(validation.random_key(seed), num_draws))
        layers = [np.asarray(layer[:-1]).T for layer in params.decoder]
    constants = reconstruction_lipschitz(
        layers,
        rows,
        sds=np.asarray(sd),
        activation=objective.activation,
        likelihood=objective.likelihood.name,
    )
    measured = float(np.mean(np.var(np.asarray(terms, np.float64), axis=0, ddof=1)))
    return ReconstructionVariance(measured, float(np.sqrt(np.mean(constants**2))), num_draws)


def relative_gradient_error(
    objective: Any, params: Any, X: Any, *, num_draws: int = 200, seed: int = 0
) -> float:
    r"""``sqrt(tr Cov g) / |E g|`` of the gradient over all given rows from one draw per row."""
    rows = np.asarray(X)
    mean: Any = 0.0
    square: Any = 0.0
    with precision_of(rows.dtype):
        device = jnp.asarray(rows)
        for key in jax.random.split(validation.random_key(seed), num_draws):
            here = np.asarray(_gradient(objective, params, device, key), np.float64)
            mean, square = mean + here / num_draws, square + here**2 / num_draws
    spread = np.sum(np.maximum(square - mean**2, 0.0)) * num_draws / (num_draws - 1)
    # The squared length of an average holds its own variance: take it out.
    length = np.sum(mean**2) - spread / num_draws
    return float(np.sqrt(spread / max(length, np.finfo(np.float64).tiny)))


def best_num_draws(
    objective: VAEObjective,
    params: Any,
    X: Any,
    *,
    batch_size: int = 100,
    num_batches: int = 16,
    max_draws: int = 16,
    seed: int = 0,
) -> int:
    r"""Draws M per row for which the work times the variance of a gradient is least.

    With :math:`V_d` the variance due to one draw of the code and :math:`V_b` that due to the choice
    of the batch (traces of covariances), M draws give :math:`V_b + V_d / M` for work of about one
    encoder and M decoders. The product :math:`(1 + M)(V_b + V_d / M)` is least at

    .. math:: M = \sqrt{V_d / V_b}.

    Two independent sets of draws on each of ``num_batches`` batches measure both:
    :math:`V_d = E \tfrac12 |g_1 - g_2|^2`, and the means of the pairs vary by
    :math:`V_b + V_d / 2` over batches. :math:`V_b` is a difference of two estimates: 16 batches do
    not tell values much below :math:`V_d / 10` from zero, so that a large M is a rough one.

    Parameters
    ----------
    objective : VAEObjective
        Its own ``num_draws`` is not used.
    params : pytree
        Where to measure; best after some training.
    X : array, (rows, pixels)
        Training rows.
    batch_size, num_batches : int
        Size and number of the random batches.
    max_draws : int
        Largest M to return.
    seed : int
        Seed of the batches and of the draws.

    Returns
    -------
    int
        M; ``max_draws`` where batches do not differ at all, 1 where gradients are not finite.
    """
    rows, generator = (
        jax.tree.map(np.asarray, X),
        np.random.default_rng(validation.checked_seed(seed)),
    )
    first_leaf = jax.tree.leaves(rows)[0]
    size, single = min(batch_size, len(first_leaf)), replace(objective, num_draws=1)
    means, spreads = [], []
    with precision_of(first_leaf.dtype):
        for number in range(num_batches):
            chosen = generator.choice(len(first_leaf), size, replace=False)
            batch = jax.tree.map(lambda leaf, index=chosen: jnp.asarray(leaf[index]), rows)
            keys = jax.random.split(jax.random.fold_in(validation.random_key(seed), number))
            first, second = (np.asarray(_gradient(single, params, batch, key)) for key in keys)
            means.append(0.5 * (first + second))
            spreads.append(0.5 * float(np.sum((first - second) ** 2, dtype=np.float64)))
    due_to_draws = float(np.mean(spreads))
    centre = np.mean(means, axis=0, dtype=np.float64)
    total = sum(float(np.sum((mean - centre) ** 2)) for mean in means) / (num_batches - 1)
    due_to_batches = total - 0.5 * due_to_draws
    if not np.isfinite(total + due_to_draws):
        return 1
    if due_to_draws >= max_draws**2 * due_to_batches:
        return max_draws
    return max(1, round((due_to_draws / due_to_batches) ** 0.5))


@partial(compiled, static_argnums=0)
def _gradient(objective: Any, params: Any, batch: Any, key: jax.Array) -> jax.Array:
    return ravel_pytree(jax.grad(objective)(params, batch, key))[0]
