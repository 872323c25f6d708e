"""The built-in networks: multilayer perceptrons as pure functions of matrices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}


class VAEParams(NamedTuple):
    """Parameters of the built-in auto-encoder.

    Every layer is one matrix of shape (inputs + 1, outputs) whose last row is the bias.

    Attributes
    ----------
    encoder : tuple of matrices
        Hidden layers of the encoder.
    heads : matrix, (hidden + 1, 2 latent)
        Mean and log variance of the code, side by side.
    decoder : tuple of matrices
        Hidden layers of the decoder and its output layer.
    log_variance : matrix, (1, pixels), (1, 1) or (1, 0)
        Log variances of a Gaussian likelihood, per pixel or one, in units of the likelihood's
        scale; empty where nothing is learned.
    """

    encoder: tuple[Float[Array, "_ _"], ...]
    heads: Float[Array, "_ _"]
    decoder: tuple[Float[Array, "_ _"], ...]
    log_variance: Float[Array, "1 _"]


def with_ones(rows: Float[Array, "rows inputs"]) -> Float[Array, "rows inputs+1"]:
    """Rows with a last column of ones, which meets the bias."""
    return jnp.concatenate([rows, jnp.ones((rows.shape[0], 1), rows.dtype)], axis=1)


def affine(layer: Float[Array, "inputs+1 outputs"], rows: Float[Array, "rows inputs"]) -> Array:
    """``rows W + b``."""
    return rows @ layer[:-1] + layer[-1:]


def encode(
    params: VAEParams, rows: Float[Array, "rows inputs"], activation: str = "tanh"
) -> tuple[Float[Array, "rows latent"], Float[Array, "rows latent"]]:
    """Mean and log variance of q(z | x)."""
    squash = ACTIVATIONS[activation]
    hidden = rows
    for layer in params.encoder:
        hidden = squash(affine(layer, hidden))
    both = affine(params.heads, hidden)
    latent = both.shape[1] // 2
    return both[:, :latent], both[:, latent:]


def decode(
    params: VAEParams, codes: Float[Array, "rows latent"], activation: str = "tanh"
) -> Float[Array, "rows pixels"]:
    """Logits or means of p(x | z)."""
    squash = ACTIVATIONS[activation]
    hidden = codes
    for layer in params.decoder[:-1]:
        hidden = squash(affine(layer, hidden))
    return affine(params.decoder[-1], hidden)


def initial_params(
    generator: np.random.Generator,
    *,
    inputs: int,
    hidden: Sequence[int],
    latent: int,
    outputs: int | None = None,
    variances: int = 0,
    scale: float | None = None,
    dtype: np.dtype | type = np.float32,
) -> VAEParams:
    """Random weights and zero biases.

    ``scale`` is the sd of every weight, as in the paper (0.01 or 0.001); None takes
    1/sqrt(inputs of the layer), so that signals keep their size at any width. Made on the host:
    the same numbers whatever the device.
    """

    def layer(rows: int, columns: int) -> Array:
        sd = rows**-0.5 if scale is None else scale
        weights = sd * generator.standard_normal((rows, columns))
        return jnp.asarray(np.concatenate([weights, np.zeros((1, columns))]), dtype)

    sizes = [inputs, *hidden]
    encoder = tuple(layer(a, b) for a, b in itertools.pairwise(sizes))
    heads = layer(sizes[-1], 2 * latent)
    sizes = [latent, *reversed(hidden), inputs if outputs is None else outputs]
    decoder = tuple(layer(a, b) for a, b in itertools.pairwise(sizes))
    return VAEParams(encoder, heads, decoder, jnp.zeros((1, variances), dtype))
