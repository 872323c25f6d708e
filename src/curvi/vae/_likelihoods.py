r"""What the decoder's outputs mean: p(x | z), its mean, and its curvature in the outputs.

The curvature is the Fisher information of a row in the outputs. It is diagonal for both
likelihoods; for the Bernoulli in its logits and for the Gaussian in its mean it is also the
Hessian of -log p, which is the remark of section 3 that ties Gauss-Newton to Fisher.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi._core import validation
from curvi._core.errors import InputError

_LIMIT = 12.0  # log variances beyond this are bent back: exp(13) and exp(-13) are safe to square


def bounded(log_variance: Array, limit: float = _LIMIT) -> Array:
    r"""The identity within ``[-limit, limit]``, bent to within one unit of it outside.

    :math:`\pm(\ell + \tanh(|s| - \ell))` beyond: twice continuously differentiable, and the
    gradient never vanishes at once, so that a runaway variance can come back.
    """
    over = jnp.maximum(jnp.abs(log_variance) - limit, 0.0)
    outside = jnp.sign(log_variance) * (limit + jnp.tanh(over))
    return jnp.where(over > 0, outside, log_variance)


@dataclass(frozen=True)
class Bernoulli:
    r"""Pixels in [0, 1] as probabilities: :math:`\log p = \sum_j x_j s_j - \log(1 + e^{s_j})`."""

    variances: int | None = 0

    def log_prob(self, outputs: Float[Array, "rows pixels"], x: Array) -> Float[Array, " rows"]:
        """Log likelihood of rows, on logits: no probability is ever formed."""
        return jnp.sum(x * outputs - jax.nn.softplus(outputs), axis=-1)

    def mean(self, outputs: Float[Array, "rows pixels"]) -> Float[Array, "rows pixels"]:
        """E[x | z]."""
        return jax.nn.sigmoid(outputs)

    def curvature(self, outputs: Float[Array, "rows pixels"]) -> Float[Array, "rows pixels"]:
        """Fisher information in the logits, p (1 - p)."""
        probability = jax.nn.sigmoid(outputs)
        return probability * (1 - probability)

    def draw(self, key: Array, outputs: Float[Array, "rows pixels"]) -> Array:
        """Binary images."""
        flips = jax.random.bernoulli(key, jax.nn.sigmoid(outputs))
        return flips.astype(outputs.dtype)


@dataclass(frozen=True)
class Gaussian:
    r"""Real pixels: :math:`\log p = -\frac12 \sum_j s_j + \log 2\pi + (x_j - m_j)^2 e^{-s_j}`.

    Outputs are means, or a pair (means, log variances) where variances are learned; the log
    variances broadcast over rows or pixels and are bounded. They count from ``scale^2``.

    Parameters
    ----------
    variance : {"pixel", "one"} or float
        Learned for every pixel, learned once, or fixed at the number.
    scale : float
        Size of the data, from which learned log variances count: a variance stays above
        ``scale^2 exp(-13)`` even where all images agree.
    """

    variance: str | float = "pixel"
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is neither a choice nor a positive number."""
        if isinstance(self.variance, str):
            validation.one_of(self.variance, ("pixel", "one"), "variance")
        else:
            validation.positive_number(self.variance, "variance")
        validation.positive_number(self.scale, "scale")

    @property
    def variances(self) -> int | None:
        """How many variances are learned; None means one per pixel."""
        return {"pixel": None, "one": 1}.get(str(self.variance), 0)

    def parts(self, outputs: Any) -> tuple[Array, Array]:
        """Means and log variances, of one shape."""
        if isinstance(outputs, tuple):
            mean, raw = outputs
            shift = 2 * math.log(self.scale)
            return mean, jnp.broadcast_to(bounded(raw) + shift, mean.shape)
        if isinstance(self.variance, str):
            raise InputError(
                f"variance is {self.variance!r} but decode() returned one array; return "
                "(mean, log_variance), or fix the variance at a number"
            )
        return outputs, jnp.full_like(outputs, math.log(self.variance))

    def log_prob(self, outputs: Any, x: Array) -> Float[Array, " rows"]:
        """Log likelihood of rows."""
        mean, log_variance = self.parts(outputs)
        squares = (x - mean) ** 2 * jnp.exp(-log_variance)
        return -0.5 * jnp.sum(log_variance + math.log(2 * math.pi) + squares, axis=-1)

    def mean(self, outputs: Any) -> Float[Array, "rows pixels"]:
        """E[x | z]."""
        return self.parts(outputs)[0]

    def curvature(self, outputs: Any) -> Any:
        """Fisher information: 1/variance in the mean, 1/2 in the log variance."""
        mean, log_variance = self.parts(outputs)
        precision = jnp.exp(-log_variance)
        if isinstance(outputs, tuple):
            return precision, jnp.full_like(mean, 0.5)
        return precision

    def draw(self, key: Array, outputs: Any) -> Array:
        """Images with pixel noise."""
        mean, log_variance = self.parts(outputs)
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return mean + jnp.exp(0.5 * log_variance) * noise


Likelihood = Bernoulli | Gaussian
