r"""How noisy one draw of the code makes the bound and its gradient.

Lemma 4 carried through a decoder bounds the slope of the reconstruction term
:math:`\log p(x_i \mid \mu_i + \sigma_i \epsilon)` in :math:`\epsilon`, and Theorem 2 its variance.
Gradients have no such bound here; their variance is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from curvi.bounds import reconstruction_lipschitz
from curvi.core.trees import precision_of
from curvi.models.vae.likelihoods import Bernoulli
from curvi.models.vae.mlp import MLPObjective
from curvi.models.vae.networks import VAEParams


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
        terms = _terms(objective, params, device, mean, sd, jax.random.key(seed), num_draws)
        layers = [np.asarray(layer[:-1]).T for layer in params.decoder]
    constants = reconstruction_lipschitz(
        layers,
        rows,
        sds=np.asarray(sd),
        activation=objective.activation,
        likelihood="bernoulli" if isinstance(objective.likelihood, Bernoulli) else "gaussian",
    )
    measured = float(np.mean(np.var(np.asarray(terms, np.float64), axis=0, ddof=1)))
    return ReconstructionVariance(measured, float(np.sqrt(np.mean(constants**2))), num_draws)


def relative_gradient_error(
    objective: Any, params: Any, X: Any, *, num_draws: int = 200, seed: int = 0
) -> float:
    r"""``sqrt(tr Cov g) / |E g|`` of the gradient over all given rows from one draw per row."""
    rows = np.asarray(X)
    with precision_of(rows.dtype):
        keys = jax.random.split(jax.random.key(seed), num_draws)
        device = jnp.asarray(rows)

        def gradient(key: jax.Array) -> jax.Array:
            return ravel_pytree(jax.grad(objective)(params, device, key))[0]

        mean = jnp.zeros_like(ravel_pytree(params)[0])
        square = mean
        step = jax.jit(gradient)
        for key in keys:
            here = step(key)
            mean, square = mean + here / num_draws, square + here**2 / num_draws
        spread = jnp.sum(jnp.maximum(square - mean**2, 0.0)) * num_draws / (num_draws - 1)
        # The squared length of an average holds its own variance: take it out.
        length = jnp.sum(mean**2) - spread / num_draws
        return float(jnp.sqrt(spread / jnp.maximum(length, jnp.finfo(length.dtype).tiny)))


def _terms(
    objective: MLPObjective,
    params: VAEParams,
    rows: jax.Array,
    mean: jax.Array,
    sd: jax.Array,
    key: jax.Array,
    num_draws: int,
) -> jax.Array:
    def one(key: jax.Array) -> jax.Array:
        codes = mean + sd * jax.random.normal(key, mean.shape, mean.dtype)
        return objective.likelihood.log_prob(objective.decoded(params, codes), rows)

    return jax.lax.map(one, jax.random.split(key, num_draws))
