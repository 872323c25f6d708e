r"""The negative bound of a variational auto-encoder, per row (section 3 of the paper).

.. math::
    F(\theta) = \frac1B \sum_i \Big[ -\frac1M \sum_m \log p(x_i \mid z_{im})
        + \tfrac12 \sum_k \big(\mu_k^2 + e^{s_k} - s_k - 1\big) \Big] + \frac\lambda2 |W_d|^2,
    \qquad z = \mu + e^{s/2} \epsilon
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core import validation
from curvi.linalg import Definiteness, FunctionMap
from curvi.vae._likelihoods import Bernoulli, Likelihood, bounded


class Outputs(NamedTuple):
    """What the networks say about a batch: the code's q, and the decoder at its draws."""

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


@dataclass(frozen=True)
class VAEObjective:
    """``objective(params, batch, key)``: the negative bound per row, for ``curvi.minimise``.

    Any pair of pure functions makes one, so networks of flax, equinox or your own do.

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
        """Refuse what is no count or no weight."""
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
        squares = optax.tree.sum(jax.tree.map(lambda w: jnp.sum(w * w), self.penalised(params)))
        return 0.5 * self.decoder_l2 * squares

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
