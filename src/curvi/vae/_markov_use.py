"""What a trained deep Markov model computes, and what a file must say of one.

States given sequences, and sequences from states.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from curvi._core.errors import InputError
from curvi.io import SavedEstimator, require_claims, require_described, require_like
from curvi.vae._markov import (
    emission,
    initial_weights,
    read_backwards,
    sample_posterior,
    transition,
)
from curvi.vae._markov_training import padded


def posterior(
    params: Any, sequences: list[np.ndarray], seed: int
) -> tuple[Array, Array, np.ndarray]:
    """Draws and means of z for every sequence, time first, and the lengths."""
    batch = padded(sequences, np.float32)
    x = jnp.swapaxes(jnp.asarray(batch.x), 0, 1)
    mask = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None] < jnp.asarray(batch.length)[None]
    shape = (*x.shape[:2], params["start"]["mean"].shape[0])
    noise = jax.random.normal(jax.random.key(seed), shape, x.dtype)
    read = read_backwards(params["recognition"], x, mask)
    z, mean, *_ = sample_posterior(params, read, noise)
    return z, mean, batch.length


def emitted(params: Any, likelihood: str, z: Array, key: PRNGKeyArray, *, draw: bool) -> Array:
    """Observations given states: drawn, or their expectations."""
    out = emission(params["emission"], z)
    if likelihood == "bernoulli":
        mean = jax.nn.sigmoid(out)
        return jax.random.bernoulli(key, mean).astype(mean.dtype) if draw else mean
    if not draw:
        return out
    sd = jnp.exp(jnp.asarray(params["emission"]["log_sd"])).reshape((1,) * (out.ndim - 1) + (-1,))
    return out + sd * jax.random.normal(key, out.shape, out.dtype)


def rolled(params: Any, z: Array, key: PRNGKeyArray, steps: int) -> Array:
    """States after z, one for each of so many steps: (steps, rows, latent)."""

    def step(before: Array, here: PRNGKeyArray) -> tuple[Array, Array]:
        mean, log_sd = transition(params["transition"], before)
        noise = jax.random.normal(here, mean.shape, mean.dtype)
        after = mean + jnp.exp(log_sd) * noise
        return after, after

    return jax.lax.scan(step, z, jax.random.split(key, steps))[1]


class StoredWeights(SavedEstimator):
    """A model whose weights fit its sizes after loading, too."""

    _claims = {  # noqa: RUF012  of no instance
        "width_": "whole width_", "n_iter_": "whole iterations", "outcome_": "outcome",
        "elbo_": "number", "history_": "trace evaluations step epoch elbo validation_elbo",
        "result_.history": "trace evaluations step", "result_.trace": "trace steps step",
        "result_.objective.num_draws": "positive",
    }  # fmt: skip

    def _check_stored(self: Any) -> None:
        """Refuse weights of a file that do not fit its sizes."""
        if not hasattr(self, "result_"):
            return
        self.params_, self.objective_ = self.result_.params, self.result_.objective  # one meaning
        require_described(type(self), vars(self))
        self._check_options()
        claims = {**self._claims, "latent": "whole latent", "hidden": "whole hidden"}
        # What is made below for comparison is then no larger than the file.
        require_claims(self, {**claims, "params_.emission.first.w": "real latent hidden",
                              "params_.emission.out.w": "real hidden width_"})  # fmt: skip
        like = initial_weights(
            np.random.default_rng(0), self.width_, self.latent, self.hidden, np.zeros(self.width_)
        )
        require_like(self.params_, like, "params_")
        if not all((np.abs(leaf) < 1e9).all() for leaf in jax.tree.leaves(self.params_)):  # noqa: PLR2004
            raise InputError("its params_ have a number that is not finite, or none of use")
        if self.objective_.likelihood != self.likelihood:
            raise InputError("its result_.objective.likelihood is not that of the model")
