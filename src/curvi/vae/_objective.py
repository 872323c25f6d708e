r"""The negative ELBO of a variational auto-encoder, per row (section 3 of the paper).

.. math::
    F(\theta) = \frac1B \sum_i \Big[ -\frac1M \sum_m \log p(x_i \mid z_{im})
        + \tfrac12 \sum_k \big(\mu_k^2 + e^{s_k} - s_k - 1\big) \Big] + \frac\lambda2 |W_d|^2,
    \qquad z = \mu + e^{s/2} \epsilon

A likelihood says what the decoder's outputs mean: p(x | z), its mean, and its curvature in the
outputs, which is the Fisher information of a row. It is diagonal for both likelihoods; for the
Bernoulli in its logits and for the Gaussian in its mean it is also the Hessian of -log p, which is
the remark of section 3 that ties Gauss-Newton to Fisher.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from scipy import special

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.linalg import Definiteness, FunctionMap

_MARGIN = 0.02  # first guesses of probabilities stay this far from 0 and 1
_LARGEST_SCALE = 1e6  # sd of the rows, up to which untouched rows can be learned
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
    r"""Pixels in [0, 1] as probabilities: :math:`\log p = \sum_j x_j s_j - \log(1 + e^{s_j})`.

    Parameters
    ----------
    variances : int
        Number of learned variances; a Bernoulli likelihood has none. Leave it at zero.
    """

    variances: int | None = 0

    def log_prob(self, outputs: Float[Array, "rows pixels"], x: Array) -> Float[Array, " rows"]:
        """Log likelihood of rows, on logits: no probability is ever formed."""
        return jnp.sum(x * outputs - jax.nn.softplus(outputs), axis=-1)

    def mean(self, outputs: Float[Array, "rows pixels"]) -> Float[Array, "rows pixels"]:
        """E[x | z]."""
        return jax.nn.sigmoid(outputs)

    def outputs_for(self, mean: np.ndarray) -> np.ndarray:
        """Logits of a mean image, kept away from infinity."""
        safe = np.clip(mean, _MARGIN, 1 - _MARGIN)
        return np.log(safe) - np.log1p(-safe)

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
        """Validate the choice of variance, and the scale."""
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

    def outputs_for(self, mean: np.ndarray) -> np.ndarray:
        """Outputs of a mean image: the image itself."""
        return mean

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


def likelihood_for(X: np.ndarray, name: str, variance: str | float) -> Likelihood:
    """The likelihood by name, in the units of the data."""
    if name == "bernoulli":
        return Bernoulli()
    with np.errstate(over="ignore"):
        scale = float(np.sqrt(X.var(axis=0, dtype=np.float64).mean()))
    if not 1 / _LARGEST_SCALE <= scale <= _LARGEST_SCALE:
        raise InputError(
            f"X has an sd of about {scale:.3g}; networks need numbers of moderate size, from "
            f"{1 / _LARGEST_SCALE:.0e} to {_LARGEST_SCALE:.0e}: divide X by its sd, for example "
            "with sklearn.preprocessing.StandardScaler"
        )
    # Three digits: nearby data sets share what is compiled.
    return Gaussian(variance, float(f"{scale:.3g}"))


def trivial_elbo(X: np.ndarray, likelihood: Likelihood) -> float:
    """The ELBO per row of the best model that ignores its code: independent pixels."""
    mean = X.mean(axis=0, dtype=np.float64)
    if isinstance(likelihood, Bernoulli):
        return -float(np.sum(special.entr(mean) + special.entr(1 - mean)))
    spread = X.var(axis=0, dtype=np.float64)
    variance: Any = spread if likelihood.variance == "pixel" else spread.mean()
    if not isinstance(likelihood.variance, str):
        variance = likelihood.variance
    variance = np.maximum(variance, likelihood.scale**2 * math.exp(-_LIMIT - 1))
    terms = np.log(2 * math.pi * variance) + spread / variance
    return -0.5 * float(np.sum(np.broadcast_to(terms, mean.shape)))


class Outputs(NamedTuple):
    """What the networks compute for a batch: q(z | x), and the decoder at its draws."""

    mean: Array
    log_variance: Array
    decoded: Any


def split(batch: Any) -> tuple[Array, Array]:
    """Rows for the encoder and rows to be explained; one array serves as both."""
    return batch if isinstance(batch, tuple) else (batch, batch)


def kl_divergence(
    mean: Float[Array, "rows latent"], log_variance: Float[Array, "rows latent"]
) -> Float[Array, " rows"]:
    """KL(q(z | x) || N(0, I)) of each row, exactly."""
    return 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - log_variance - 1, axis=-1)


def reparameterise(
    mean: Array, log_variance: Array, noise: Float[Array, "draws rows latent"]
) -> Float[Array, "all latent"]:
    """``mu + sigma eps`` for every draw, draws and rows in one axis, draws first."""
    codes = mean[None] + jnp.exp(0.5 * log_variance)[None] * noise
    return codes.reshape(-1, mean.shape[1])


def l2_penalty(weight: float, weights: PyTree) -> Float[Array, ""]:
    """Half the weight times the sum of squares of all entries."""
    return 0.5 * weight * optax.tree.sum(jax.tree.map(lambda w: jnp.sum(w * w), weights))


@dataclass(frozen=True)
class VAEObjective:
    """``objective(params, batch, key)``: the negative ELBO per row, for ``curvi.minimise``.

    Any pair of pure functions will do: networks of flax, of equinox, or your own.

    Parameters
    ----------
    encode : callable
        ``encode(params, x) -> (mean, log_variance)``, each (rows, latent).
    decode : callable
        ``decode(params, z) -> outputs`` for the likelihood: logits, means, or (means, log
        variances), with a leading axis of rows.
    likelihood : Bernoulli or Gaussian
        What the outputs mean.
    num_draws : int
        M, draws of the code per row.
    decoder_l2 : float
        Lambda; ``penalised(params)`` chooses what it acts on.
    penalised : callable, optional
        Pytree of arrays under the L2 penalty, such as ``lambda params: params["decoder"]``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> objective = VAEObjective(
    ...     lambda p, x: (x @ p["e"], jnp.zeros((len(x), 2))), lambda p, z: z @ p["d"])
    >>> params = {"e": jnp.zeros((4, 2)), "d": jnp.zeros((2, 4))}
    >>> float(objective(params, jnp.ones((3, 4)), jax.random.key(0)))  # 4 log 2
    2.7725887298583984
    """

    encode: Callable[[PyTree, Array], tuple[Array, Array]]
    decode: Callable[[PyTree, Array], Any]
    likelihood: Likelihood = field(default_factory=Bernoulli)
    num_draws: int = 1
    decoder_l2: float = 0.0
    penalised: Callable[[PyTree], PyTree] | None = None

    def __post_init__(self) -> None:
        """Validate the count of draws and the weight of the penalty."""
        validation.positive_integer(self.num_draws, "num_draws")
        if self.decoder_l2 != 0:
            validation.positive_number(self.decoder_l2, "decoder_l2")

    def code(self, params: PyTree, features: Array) -> tuple[Array, Array]:
        """Mean and bounded log variance of q(z | x)."""
        mean, log_variance = self.encode(params, features)
        return mean, bounded(log_variance)

    def decoded(self, params: PyTree, codes: Array) -> Any:
        """Outputs of the decoder; shared log variances are repeated for every row."""
        outputs = self.decode(params, codes)
        if isinstance(outputs, tuple):
            mean, log_variance = outputs
            return mean, jnp.broadcast_to(log_variance, mean.shape)
        return outputs

    def image(self, params: PyTree, codes: Array) -> Float[Array, "rows pixels"]:
        """E[x | z] of codes."""
        return self.likelihood.mean(self.decoded(params, codes))

    def noise(self, key: PRNGKeyArray, mean: Array) -> Float[Array, "draws rows latent"]:
        """Standard normal draws for a batch."""
        return jax.random.normal(key, (self.num_draws, *mean.shape), mean.dtype)

    def outputs(self, params: PyTree, batch: Any, key: PRNGKeyArray) -> Outputs:
        """Everything the loss depends on, as functions of the parameters."""
        features, _ = split(batch)
        mean, log_variance = self.code(params, features)
        codes = reparameterise(mean, log_variance, self.noise(key, mean))
        return Outputs(mean, log_variance, self.decoded(params, codes))

    def loss(self, outputs: Outputs, batch: Any) -> Float[Array, ""]:
        """The negative bound per row, without the penalty."""
        _, x = split(batch)
        repeated = jnp.tile(x, (self.num_draws, 1)) if self.num_draws > 1 else x
        fit = jnp.mean(self.likelihood.log_prob(outputs.decoded, repeated))
        return jnp.mean(kl_divergence(outputs.mean, outputs.log_variance)) - fit

    def penalty(self, params: PyTree) -> Float[Array, ""]:
        """The L2 term."""
        if self.penalised is None or self.decoder_l2 == 0:
            return jnp.zeros((), optax.tree.dtype(params))
        return l2_penalty(self.decoder_l2, self.penalised(params))

    def __call__(self, params: PyTree, batch: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """The objective on a batch."""
        return self.loss(self.outputs(params, batch, key), batch) + self.penalty(params)

    def curvature(self, outputs: Outputs) -> Outputs:
        """Diagonal curvature of the loss of one row in the outputs, divided by M for draws.

        The Fisher information for the likelihood; for the KL term its exact Hessian,
        1 in the mean and exp(s)/2 in the log variance.
        """
        decoded = jax.tree.map(
            lambda w: w / self.num_draws, self.likelihood.curvature(outputs.decoded)
        )
        return Outputs(jnp.ones_like(outputs.mean), 0.5 * jnp.exp(outputs.log_variance), decoded)

    def gauss_newton(
        self, params: PyTree, batch: Any, key: PRNGKeyArray
    ) -> tuple[Array, PyTree, FunctionMap]:
        r"""Value, gradient and :math:`J^\top \Lambda J / B + \lambda I_d`, linearised once."""
        outputs, push = jax.linearize(lambda p: self.outputs(p, batch, key), params)
        pull = jax.linear_transpose(push, params)
        value, slope = jax.value_and_grad(self.loss)(outputs, batch)
        penalty, shrink = jax.value_and_grad(self.penalty)(params)
        gradient = optax.tree.add(pull(slope)[0], shrink)
        rows = outputs.mean.shape[0]
        weights = jax.tree.map(lambda w: w / rows, self.curvature(outputs))

        def product(vector: PyTree) -> PyTree:
            (result,) = pull(jax.tree.map(jnp.multiply, weights, push(vector)))
            if self.decoder_l2 == 0:
                return result
            _, lift = jax.jvp(jax.grad(self.penalty), (params,), (vector,))
            return optax.tree.add(result, lift)

        operator = FunctionMap(product, params, Definiteness.POSITIVE_SEMI)
        return value + penalty, gradient, operator
