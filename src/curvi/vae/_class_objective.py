r"""The negative ELBO of the model with classes, p(y) p(z) p(x | z, y) (Kingma and others, 2014).

For a labelled row the ELBO is

.. math:: L(x, y) = E_{q(z \mid x, y)}[\log p(x \mid z, y)] - KL(q(z \mid x, y) \| p(z)) + \log p(y)

and for an unlabelled one :math:`U(x) = \sum_y q(y \mid x) L(x, y) + H(q(y \mid x))`, the class
being summed out exactly. The classifier also learns from labels directly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from curvi.likelihoods import Pixels
from curvi.vae import _networks as networks
from curvi.vae._objective import kl_divergence, l2_penalty, reparameterise


class ClassParams(NamedTuple):
    """Networks as tuples of matrices, last rows being biases."""

    classifier: networks.Network
    encoder: networks.Network
    decoder: networks.Network
    log_variance: Array


class MixedRows(NamedTuple):
    """A row without its label, and a labelled partner."""

    x: Any
    labelled_x: Any
    label: Any


@dataclass(frozen=True)
class ClassObjective:
    """``objective(params, MixedRows, key)``: the negative ELBO per row, labels included.

    Parameters
    ----------
    likelihood : Bernoulli or Gaussian
        Of pixels.
    classes : int
        Number of classes.
    labelled_fraction : float
        Part of the rows that have labels.
    label_weight : float
        Weight of the classifier's own loss on labelled rows.
    decoder_l2 : float
        L2 penalty on the decoder.
    activation : str
        Nonlinearity of hidden layers.
    beta : float
        Weight of the KL term.
    """

    likelihood: Pixels
    classes: int
    labelled_fraction: float
    label_weight: float
    decoder_l2: float = 0.0
    activation: str = "tanh"
    beta: float = 1.0

    def first_params(
        self, generator: np.random.Generator, X: np.ndarray, hidden: tuple[int, ...], latent: int
    ) -> ClassParams:
        """Fan-in weights and zero biases; the output biases explain the mean of the rows."""
        network = partial(networks.initial_network, generator, dtype=X.dtype)
        inputs, learned = X.shape[1], self.likelihood.variances
        decoder = network([latent + self.classes, *reversed(hidden), inputs])
        return ClassParams(
            network([inputs, *hidden, self.classes]),
            network([inputs + self.classes, *hidden, 2 * latent]),
            networks.with_output_bias(decoder, self.likelihood.outputs_for(X.mean(axis=0))),
            jnp.zeros((1, inputs if learned is None else learned), X.dtype),
        )

    def log_probabilities(self, params: ClassParams, x: Array) -> Float[Array, "rows classes"]:
        """Log q(y | x)."""
        return jax.nn.log_softmax(
            networks.run_network(params.classifier, x, self.activation), axis=-1
        )

    @property
    def reads_nothing(self) -> bool:
        """Its fields say all."""
        return True

    def penalty(self, params: ClassParams) -> Array:
        """The L2 term, which is no part of the ELBO."""
        return l2_penalty(self.decoder_l2, networks.decoder_weights(params))

    def code(self, params: ClassParams, x: Array, one_hot: Array) -> tuple[Array, Array]:
        """Mean and bounded log variance of q(z | x, y)."""
        first = params.encoder[0]
        # Apart, so that the product with x is shared where classes vary and x does not.
        sums = x @ first[: x.shape[1]] + networks.affine(first[x.shape[1] :], one_hot)
        hidden = networks.ACTIVATIONS[self.activation](sums)
        heads = networks.run_network(params.encoder[1:], hidden, self.activation)
        return networks.code_from(heads)

    def elbos(
        self, params: ClassParams, x: Array, one_hot: Array, noise: Array
    ) -> Float[Array, " rows"]:
        """L(x, y) of rows with their classes, one row of noise each; one class may serve all."""
        one_hot = jnp.broadcast_to(one_hot, (len(x), self.classes))
        mean, log_variance = self.code(params, x, one_hot)
        codes = reparameterise(mean, log_variance, noise[None])
        fit = self.likelihood.log_prob(self.outputs(params, codes, one_hot), x)
        return fit - self.beta * kl_divergence(mean, log_variance) - math.log(self.classes)

    def all_elbos(
        self, params: ClassParams, x: Array, noise: Float[Array, "rows classes latent"]
    ) -> Float[Array, "rows classes"]:
        """L(x, y) of rows for every class."""
        each = jnp.eye(self.classes, dtype=x.dtype)[:, None]
        over_classes = jax.vmap(self.elbos, in_axes=(None, None, 0, 1), out_axes=1)
        return over_classes(params, x, each, noise)

    def outputs(self, params: ClassParams, codes: Array, one_hot: Array) -> Any:
        """Outputs of the decoder."""
        inputs = jnp.concatenate([codes, one_hot], axis=1)
        mean = networks.run_network(params.decoder, inputs, self.activation)
        if self.likelihood.variances == 0:
            return mean
        return mean, jnp.broadcast_to(params.log_variance, mean.shape)

    def __call__(self, params: ClassParams, batch: MixedRows, key: PRNGKeyArray) -> Array:
        """Negative ELBO of both kinds of rows, plus the classifier's loss and the penalty."""
        first, second = jax.random.split(key)
        labelled = jnp.eye(self.classes, dtype=batch.x.dtype)[batch.label]
        rows, latent = len(batch.x), params.encoder[-1].shape[1] // 2
        noise = jax.random.normal(first, (rows, latent), batch.x.dtype)
        known = jnp.mean(self.elbos(params, batch.labelled_x, labelled, noise))
        log_q = self.log_probabilities(params, batch.labelled_x)
        classified = -jnp.mean(jnp.sum(labelled * log_q, axis=1))
        noise = jax.random.normal(second, (rows, self.classes, latent), batch.x.dtype)
        each = self.all_elbos(params, batch.x, noise)
        log_q = self.log_probabilities(params, batch.x)
        unknown = jnp.mean(jnp.sum(jnp.exp(log_q) * (each - log_q), axis=1))
        share = self.labelled_fraction
        elbo = share * known + (1 - share) * unknown
        return self.label_weight * classified - elbo + self.penalty(params)
