r"""A generative model with a class: p(y) p(z) p(x | z, y), for labels that are mostly missing.

For a labelled row the bound is

.. math:: L(x, y) = E_{q(z \mid x, y)}[\log p(x \mid z, y)] - KL(q(z \mid x, y) \| p(z)) + \log p(y)

and for an unlabelled one :math:`U(x) = \sum_y q(y \mid x) L(x, y) + H(q(y \mid x))`, the class
being summed out exactly. The classifier also learns from labels directly (Kingma and others, 2014).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from curvi.vae._likelihoods import Likelihood, bounded
from curvi.vae._networks import ACTIVATIONS, affine
from curvi.vae._objective import kl_divergence, reparameterise

Network = tuple[Array, ...]


class ClassParams(NamedTuple):
    """Networks as tuples of matrices, last rows being biases."""

    classifier: Network
    encoder: Network
    decoder: Network
    log_variance: Array


class MixedRows(NamedTuple):
    """A row without its label, and a labelled partner."""

    x: Any
    labelled_x: Any
    label: Any


def initial_class_params(
    generator: np.random.Generator,
    *,
    inputs: int,
    hidden: tuple[int, ...],
    latent: int,
    classes: int,
    variances: int,
    output_bias: np.ndarray,
) -> ClassParams:
    """Fan-in weights, zero biases, and the given biases of the outputs."""
    dtype = output_bias.dtype

    def network(sizes: list[int]) -> Network:
        return tuple(
            jnp.asarray(
                np.concatenate([generator.standard_normal((a, b)) * a**-0.5, np.zeros((1, b))]),
                dtype,
            )
            for a, b in itertools.pairwise(sizes)
        )

    decoder = network([latent + classes, *reversed(hidden), inputs])
    last = decoder[-1].at[-1].set(jnp.asarray(output_bias))
    return ClassParams(
        network([inputs, *hidden, classes]),
        network([inputs + classes, *hidden, 2 * latent]),
        (*decoder[:-1], last),
        jnp.zeros((1, variances), dtype),
    )


@dataclass(frozen=True)
class ClassObjective:
    """``objective(params, MixedRows, key)``: the negative bound per row, labels included.

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
    """

    likelihood: Likelihood
    classes: int
    labelled_fraction: float
    label_weight: float
    decoder_l2: float = 0.0
    activation: str = "tanh"

    def log_probabilities(self, params: ClassParams, x: Array) -> Float[Array, "rows classes"]:
        """Log q(y | x)."""
        return jax.nn.log_softmax(self._run(params.classifier, x), axis=-1)

    def penalty(self, params: ClassParams) -> Array:
        """The L2 term, which is no part of the bound."""
        squares = sum(jnp.sum(layer[:-1] ** 2) for layer in params.decoder)
        return 0.5 * self.decoder_l2 * jnp.asarray(squares)

    def bounds(
        self, params: ClassParams, x: Array, one_hot: Array, key: PRNGKeyArray
    ) -> Float[Array, " rows"]:
        """L(x, y) of rows with their classes, with one draw of the code."""
        first = params.encoder[0]
        before = x @ first[: x.shape[1]] + affine(first[x.shape[1] :], one_hot)
        return self._bounds_from(params, before, x, one_hot, key)

    def all_bounds(
        self, params: ClassParams, x: Array, key: PRNGKeyArray
    ) -> Float[Array, "rows classes"]:
        """L(x, y) of rows for every class; what the encoder first makes of x is shared."""
        first, count = params.encoder[0], x.shape[0]
        eye = jnp.eye(self.classes, dtype=x.dtype)
        of_class = affine(first[x.shape[1] :], eye)
        before = (x @ first[: x.shape[1]])[:, None] + of_class[None]
        each = self._bounds_from(
            params,
            before.reshape(count * self.classes, -1),
            jnp.repeat(x, self.classes, axis=0),
            jnp.tile(eye, (count, 1)),
            key,
        )
        return each.reshape(count, self.classes)

    def _bounds_from(
        self, params: ClassParams, before: Array, x: Array, one_hot: Array, key: PRNGKeyArray
    ) -> Float[Array, " rows"]:
        """Bounds from what the encoder's first layer says before its nonlinearity."""
        both = self._run(params.encoder[1:], ACTIVATIONS[self.activation](before))
        latent = both.shape[1] // 2
        mean, log_variance = both[:, :latent], bounded(both[:, latent:])
        noise = jax.random.normal(key, (1, *mean.shape), mean.dtype)
        codes = reparameterise(mean, log_variance, noise)
        outputs = self.outputs(params, codes, one_hot)
        fit = self.likelihood.log_prob(outputs, x)
        return fit - kl_divergence(mean, log_variance) - math.log(self.classes)

    def outputs(self, params: ClassParams, codes: Array, one_hot: Array) -> Any:
        """The decoder."""
        mean = self._run(params.decoder, jnp.concatenate([codes, one_hot], axis=1))
        if self.likelihood.variances == 0:
            return mean
        return mean, jnp.broadcast_to(params.log_variance, mean.shape)

    def __call__(self, params: ClassParams, batch: MixedRows, key: PRNGKeyArray) -> Array:
        """Negative bound of both kinds of rows, plus the classifier's loss and the penalty."""
        first, second = jax.random.split(key)
        labelled = jnp.eye(self.classes, dtype=batch.x.dtype)[batch.label]
        known = jnp.mean(self.bounds(params, batch.labelled_x, labelled, first))
        log_q = self.log_probabilities(params, batch.labelled_x)
        classified = -jnp.mean(jnp.sum(labelled * log_q, axis=1))
        each = self.all_bounds(params, batch.x, second)
        log_q = self.log_probabilities(params, batch.x)
        q = jnp.exp(log_q)
        unknown = jnp.mean(jnp.sum(q * (each - log_q), axis=1))
        share = self.labelled_fraction
        bound = share * known + (1 - share) * unknown
        return self.label_weight * classified - bound + self.penalty(params)

    def _run(self, network: Network, rows: Array) -> Array:
        squash = ACTIVATIONS[self.activation]
        for layer in network[:-1]:
            rows = squash(affine(layer, rows))
        return affine(network[-1], rows)
