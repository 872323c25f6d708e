"""The objective of the built-in networks, with its layers in view for Kronecker curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from curvi.solvers._method import Layer, Pass
from curvi.vae._likelihoods import bounded
from curvi.vae._networks import ACTIVATIONS, VAEParams, with_ones
from curvi.vae._objective import Outputs, VAEObjective, reparameterise, split


@dataclass(frozen=True)
class MLPObjective(VAEObjective):
    """``objective(params, batch, key)`` for :class:`VAEParams`.

    Parameters
    ----------
    activation : str
        Name of the nonlinearity of hidden layers.
    white : bool
        The encoder's rows end with the constant that meets the bias, and their columns are
        uncorrelated and scaled (see :mod:`curvi.vae._rotation`).
    """

    encode: Any = None
    decode: Any = None
    activation: str = "tanh"
    white: bool = False

    def outputs(self, params: VAEParams, batch: Any, key: PRNGKeyArray) -> Outputs:
        """Everything the loss depends on."""
        return self.tapped(params, None, batch, key).outputs

    def code(self, params: VAEParams, features: Array) -> tuple[Array, Array]:
        """Mean and bounded log variance of q(z | x)."""
        both = self._encoded(params, features, None)[0]
        latent = both.shape[1] // 2
        return both[:, :latent], bounded(both[:, latent:])

    def decoded(self, params: VAEParams, codes: Array) -> Any:
        """Outputs of the decoder."""
        return self._decoded(params, codes, None)[0]

    def penalty(self, params: VAEParams) -> Float[Array, ""]:
        """L2 on the decoder's weights; biases are free."""
        if self.decoder_l2 == 0:
            return jnp.zeros((), params.heads.dtype)
        squares = sum(jnp.sum(layer[:-1] ** 2) for layer in params.decoder)
        return 0.5 * self.decoder_l2 * jnp.asarray(squares)

    def tapped(self, params: VAEParams, taps: Any, batch: Any, key: PRNGKeyArray) -> Pass:
        """Forward pass; ``taps`` may be None."""
        features, _ = split(batch)
        depth = len(params.encoder) + 1
        first, second = (None, None) if taps is None else (taps[:depth], taps[depth:])
        both, inputs = self._encoded(params, features, first)
        latent = both.shape[1] // 2
        mean, log_variance = both[:, :latent], bounded(both[:, latent:])
        codes = reparameterise(mean, log_variance, self.noise(key, mean))
        decoded, more = self._decoded(params, codes, second)
        return Pass(Outputs(mean, log_variance, decoded), (*inputs, *more))

    def _encoded(self, params: VAEParams, features: Array, taps: Any) -> tuple[Array, list[Array]]:
        """Both heads side by side, and the rows that entered each layer."""
        squash = ACTIVATIONS[self.activation]
        rows = features if self.white else with_ones(features)
        inputs = []
        for index, layer in enumerate(params.encoder):
            inputs.append(rows)
            rows = with_ones(squash(_tap(rows @ layer, taps, index)))
        inputs.append(rows)
        return _tap(rows @ params.heads, taps, len(params.encoder)), inputs

    def _decoded(self, params: VAEParams, codes: Array, taps: Any) -> tuple[Any, list[Array]]:
        squash = ACTIVATIONS[self.activation]
        rows, inputs = with_ones(codes), []
        for index, layer in enumerate(params.decoder[:-1]):
            inputs.append(rows)
            rows = with_ones(squash(_tap(rows @ layer, taps, index)))
        inputs.append(rows)
        last = len(params.decoder) - 1
        mean = _tap(rows @ params.decoder[-1], taps, last)
        if self.likelihood.variances == 0:
            return mean, inputs
        ones = jnp.ones((mean.shape[0], 1), mean.dtype)
        inputs.append(ones)
        spread = _tap(ones @ params.log_variance, taps, last + 1)
        return (mean, jnp.broadcast_to(spread, mean.shape)), inputs

    def layers(self, params: VAEParams) -> tuple[Layer, ...]:
        """The pixel factor is diagonal: pixels are independent given the code."""
        encoder = [Layer(white_input=self.white and i == 0) for i in range(len(params.encoder))]
        decoder = [Layer(decay=self.decoder_l2)] * (len(params.decoder) - 1)
        pixels = Layer(diagonal_output=True, decay=self.decoder_l2)
        learned = [Layer(white_input=True, diagonal_output=True)] * (self.likelihood.variances != 0)
        return (*encoder, Layer(), *decoder, pixels, *learned)

    def matrices(self, params: VAEParams) -> tuple[Array, ...]:
        """Encoder, heads, decoder, and log variances where they are learned."""
        learned = (params.log_variance,) * (self.likelihood.variances != 0)
        return (*params.encoder, params.heads, *params.decoder, *learned)

    def assemble(self, params: VAEParams, matrices: tuple[Array, ...]) -> VAEParams:
        """Parameters like ``params`` with these matrices."""
        depth, end = len(params.encoder), len(params.encoder) + 1 + len(params.decoder)
        learned = matrices[end] if self.likelihood.variances != 0 else params.log_variance
        return VAEParams(
            tuple(matrices[:depth]), matrices[depth], tuple(matrices[depth + 1 : end]), learned
        )

    def tap_shapes(self, params: VAEParams, batch: Any) -> tuple[tuple[int, int], ...]:
        """(rows, outputs) of every layer; the decoder has M rows for each of the encoder's."""
        rows, depth = split(batch)[0].shape[0], len(params.encoder) + 1
        return tuple(
            (rows if index < depth else rows * self.num_draws, matrix.shape[1])
            for index, matrix in enumerate(self.matrices(params))
        )


def _tap(rows: Array, taps: Any, index: int) -> Array:
    return rows if taps is None else rows + taps[index]
