r"""The negative ELBO of a variational auto-encoder, per row (section 3 of the paper).

.. math::
    F(\theta) = \frac1B \sum_i \Big[ -\frac1M \sum_m \log p(x_i \mid z_{im})
        + \frac\beta2 \sum_k \big(\mu_k^2 + e^{s_k} - s_k - 1\big) \Big] + \frac\lambda2 |W_d|^2,
    \qquad z = \mu + e^{s/2} \epsilon

with :math:`\beta = 1`, or the importance-weighted bound of Burda and others (2016),
:math:`\log \frac1M \sum_m p(x, z_m) / q(z_m \mid x)`, in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.likelihoods import BernoulliPixels, Pixels, bounded, over_pixels
from curvi.linalg import Definiteness, FunctionMap

__all__ = ["VAEObjective"]


class Rows(NamedTuple):
    """Rows of a conditional auto-encoder, or of one that reads other numbers than it explains.

    Attributes
    ----------
    features : array
        What the encoder reads.
    x : array
        What the decoder explains.
    condition : array, optional
        What both networks read besides, for an objective with ``conditional=True``.
    """

    features: Any
    x: Any
    condition: Any = None


class Outputs(NamedTuple):
    """What the networks compute for a batch: q(z | x), and the decoder at its draws.

    ``noise`` are the draws, where the loss needs them: for importance weights and path derivatives.
    """

    mean: Array
    log_variance: Array
    decoded: Any
    noise: Any = None


def split(batch: Any) -> Rows:
    """Rows for the encoder and rows to be explained; one array serves as both."""
    return Rows(*batch) if isinstance(batch, tuple) else Rows(batch, batch)


def kl_divergence(
    mean: Float[Array, "rows *latent"], log_variance: Float[Array, "rows *latent"]
) -> Float[Array, " rows"]:
    """KL(q(z | x) || N(0, I)) of each row, exactly."""
    return 0.5 * over_pixels(mean**2 + jnp.exp(log_variance) - log_variance - 1)


def without_score(outputs: Outputs) -> Float[Array, " rows"]:
    r"""Zeros whose gradient turns that of the KL term into its path derivative.

    Along the path of a draw, with log q held fixed, log q(z | x) - log p(z) changes with the mean
    by :math:`d = z - \epsilon / \sigma` and with the log variance by
    :math:`\tfrac12 d \sigma \epsilon`; the exact KL by :math:`\mu` and
    :math:`\tfrac12 (\sigma^2 - 1)`. The differences have mean zero.
    """
    mean, log_variance, noise = outputs.mean, outputs.log_variance, outputs.noise
    sd = jnp.exp(0.5 * log_variance)
    along = sd[None] * noise
    path = mean[None] + along - noise / sd[None]
    for_mean = jnp.mean(path, axis=0) - mean
    for_log_variance = 0.5 * (jnp.mean(path * along, axis=0) - sd**2 + 1)
    hold = jax.lax.stop_gradient
    zeros = hold(for_mean) * (mean - hold(mean))
    zeros += hold(for_log_variance) * (log_variance - hold(log_variance))
    return over_pixels(zeros)


def reparameterise(
    mean: Array, log_variance: Array, noise: Float[Array, "draws rows *latent"]
) -> Float[Array, "all *latent"]:
    """``mu + sigma eps`` for every draw, draws and rows in one axis, draws first."""
    codes = mean[None] + jnp.exp(0.5 * log_variance)[None] * noise
    return codes.reshape(-1, *mean.shape[1:])


def repeated(rows: Array, draws: int) -> Array:
    """The rows once for every draw, in the order of :func:`reparameterise`."""
    return jnp.tile(rows, (draws, *[1] * (rows.ndim - 1))) if draws > 1 else rows


def gauss_newton_map(
    params: PyTree,
    push: Callable[[PyTree], Any],
    pull: Callable[[Any], tuple[PyTree]],
    weights: Any,
    penalty: Callable[[PyTree], Array] | None,
) -> FunctionMap:
    r"""The map :math:`v \mapsto J^\top \Lambda J v + \nabla^2 R\, v`.

    ``push`` is J at ``params`` and ``pull`` its transpose, ``weights`` the diagonal Lambda in the
    outputs, and ``penalty`` the R that was added to the loss, None for none.
    """

    def product(vector: PyTree) -> PyTree:
        (result,) = pull(jax.tree.map(jnp.multiply, weights, push(vector)))
        if penalty is None:
            return result
        _, lift = jax.jvp(jax.grad(penalty), (params,), (vector,))
        return optax.tree.add(result, lift)

    return FunctionMap(product, params, Definiteness.POSITIVE_SEMI)


def l2_penalty(weight: float, weights: PyTree) -> Float[Array, ""]:
    """Half the weight times the sum of squares of all entries."""
    return 0.5 * weight * optax.tree.sum(jax.tree.map(lambda w: jnp.sum(w * w), weights))


@dataclass(frozen=True)
class VAEObjective:
    """``objective(params, batch, key)``: the negative ELBO per row, for ``curvi.minimise``.

    Any pair of pure functions will do: networks of flax, of equinox, or your own. Images may have
    any shape: log likelihoods are summed over every axis after the first, and outputs that have as
    many numbers per row as the image are brought to its shape.

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
    beta : float
        Weight of the KL term; 1 is the ELBO, more asks for codes nearer to the prior.
    importance_weighted : bool
        Maximise the importance-weighted bound over the M draws, which is the ELBO for M = 1 and
        rises to log p(x) with M. Curvature stays that of the ELBO.
    path_derivative : bool
        Leave the score of q out of the gradient (Roeder, Wu and Duvenaud 2017): its mean is zero,
        and where q is the posterior what is left is zero for every draw. Values stay the same, so
        that a gradient is not that of its value: for methods that compare no values. Importance
        weights are not changed by it.
    conditional : bool
        Both functions take a third argument, the condition; batches are
        :class:`~curvi.vae.Rows`.
    missing : bool
        NaN in x is missing: its likelihood is left out, and the encoder reads zeros there (or
        what ``features`` of a batch holds).

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> objective = VAEObjective(
    ...     lambda p, x: (x @ p["e"], jnp.zeros((len(x), 2))), lambda p, z: z @ p["d"])
    >>> params = {"e": jnp.zeros((4, 2)), "d": jnp.zeros((2, 4))}
    >>> float(objective(params, jnp.ones((3, 4)), jax.random.key(0)))  # 4 log 2
    2.7725887298583984
    """

    encode: Callable[..., tuple[Array, Array]]
    decode: Callable[..., Any]
    likelihood: Pixels = field(default_factory=BernoulliPixels)
    num_draws: int = 1
    decoder_l2: float = 0.0
    penalised: Callable[[PyTree], PyTree] | None = None
    beta: float = 1.0
    importance_weighted: bool = False
    path_derivative: bool = False
    conditional: bool = False
    missing: bool = False

    def __post_init__(self) -> None:
        """Validate the count of draws and the weights of KL term and penalty."""
        validation.positive_integer(self.num_draws, "num_draws")
        validation.positive_number(self.beta, "beta")
        if self.decoder_l2 != 0:
            validation.positive_number(self.decoder_l2, "decoder_l2")

    def code(
        self, params: PyTree, features: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        """Mean and bounded log variance of q(z | x)."""
        mean, log_variance = self.encode(params, self.filled(features), *self._extra(condition))
        return mean, bounded(log_variance)

    def decoded(self, params: PyTree, codes: Array, condition: Array | None = None) -> Any:
        """Outputs of the decoder; shared log variances are repeated for every row."""
        outputs = self.decode(params, codes, *self._extra(condition))
        if isinstance(outputs, tuple):
            mean, log_variance = outputs
            return mean, jnp.broadcast_to(log_variance, mean.shape)
        return outputs

    def image(
        self, params: PyTree, codes: Array, condition: Array | None = None
    ) -> Float[Array, "rows *pixels"]:
        """E[x | z] of codes."""
        return self.likelihood.mean(self.decoded(params, codes, condition))

    def filled(self, features: Array) -> Array:
        """What the encoder reads: zeros where nothing was observed."""
        return jnp.where(jnp.isnan(features), 0.0, features) if self.missing else features

    def noise(self, key: PRNGKeyArray, mean: Array) -> Float[Array, "draws rows *latent"]:
        """Standard normal draws for a batch."""
        return jax.random.normal(key, (self.num_draws, *mean.shape), mean.dtype)

    def outputs(self, params: PyTree, batch: Any, key: PRNGKeyArray) -> Outputs:
        """Everything the loss depends on, as functions of the parameters."""
        rows = split(batch)
        mean, log_variance = self.code(params, rows.features, rows.condition)
        noise = self.noise(key, mean)
        codes = reparameterise(mean, log_variance, noise)
        condition = self.repeated_condition(rows)
        return self.seen(mean, log_variance, noise, self.decoded(params, codes, condition), rows.x)

    def repeated_condition(self, rows: Rows) -> Array | None:
        """The condition of every draw."""
        return repeated(rows.condition, self.num_draws) if self.conditional else None

    def seen(
        self, mean: Array, log_variance: Array, noise: Array, decoded: Any, x: Array
    ) -> Outputs:
        """What the loss may depend on: outputs in the shape of x, at what was observed.

        An output for a missing entry is replaced by a constant, so that no derivative, and with it
        no curvature, comes from there.
        """
        decoded = shaped_like(decoded, x, self.num_draws)
        if self.missing:
            gaps = repeated(jnp.isnan(x), self.num_draws)
            decoded = jax.tree.map(lambda part: jnp.where(gaps, 0.0, part), decoded)
        needed = self.importance_weighted or self.path_derivative
        kept = jax.lax.stop_gradient(noise) if needed else None
        return Outputs(mean, log_variance, decoded, kept)

    def row_losses(self, outputs: Outputs, batch: Any) -> Float[Array, " rows"]:
        """The negative bound of every row, without the penalty."""
        fit = self.log_prob(outputs.decoded, split(batch).x, self.num_draws)
        fit = fit.reshape(self.num_draws, -1)
        if not self.importance_weighted:
            return self.beta * kl_divergence(outputs.mean, outputs.log_variance) - fit.mean(axis=0)
        codes = outputs.mean[None] + jnp.exp(0.5 * outputs.log_variance)[None] * outputs.noise
        excess = 0.5 * (outputs.noise**2 + outputs.log_variance[None] - codes**2)
        ratio = jnp.sum(excess, axis=tuple(range(2, excess.ndim)))  # log p(z) - log q(z | x)
        weights = fit + self.beta * ratio
        return math.log(self.num_draws) - jax.scipy.special.logsumexp(weights, axis=0)

    def log_prob(self, decoded: Any, x: Array, draws: int = 1) -> Float[Array, " all"]:
        """Log likelihood of what was observed, of every draw and row."""
        x = repeated(x, draws)
        decoded = shaped_like(decoded, x)
        if not self.missing:
            return self.likelihood.log_prob(decoded, x)
        return self.likelihood.log_prob(decoded, jnp.where(jnp.isnan(x), 0.0, x), ~jnp.isnan(x))

    def loss(self, outputs: Outputs, batch: Any) -> Float[Array, ""]:
        """The negative bound per row, without the penalty."""
        value = jnp.mean(self.row_losses(outputs, batch))
        if not self.path_derivative or self.importance_weighted:
            return value
        return value + self.beta * jnp.mean(without_score(outputs))

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
        beta in the mean and beta exp(s)/2 in the log variance.
        """
        decoded = jax.tree.map(
            lambda w: w / self.num_draws, self.likelihood.curvature(outputs.decoded)
        )
        return Outputs(
            jnp.full_like(outputs.mean, self.beta),
            0.5 * self.beta * jnp.exp(outputs.log_variance),
            decoded,
            jax.tree.map(jnp.zeros_like, outputs.noise),
        )

    def gauss_newton(
        self, params: PyTree, batch: Any, key: PRNGKeyArray
    ) -> tuple[Array, PyTree, FunctionMap]:
        r"""Value, gradient and :math:`J^\top \Lambda J / B + \lambda I_d`, linearised once."""
        outputs, push = jax.linearize(lambda p: self.outputs(p, batch, key), params)
        pull = jax.linear_transpose(push, params)
        value, slope = jax.value_and_grad(self.loss)(outputs, batch)
        penalty, shrink = jax.value_and_grad(self.penalty)(params)
        gradient = optax.tree.add(pull(slope)[0], shrink)
        weights = self.output_weights(outputs, slope)
        curved = None if self.decoder_l2 == 0 else self.penalty
        return value + penalty, gradient, gauss_newton_map(params, push, pull, weights, curved)

    def output_weights(self, outputs: Outputs, slope: Outputs) -> Outputs:
        """Lambda / B, lifted to what rows show; ``slope`` is that of the loss in the outputs."""
        rows = outputs.mean.shape[0]
        weights = self.curvature(outputs)
        each = jax.tree.map(lambda s: rows * s, slope.decoded)
        weights = weights._replace(decoded=self.likelihood.lifted(weights.decoded, each))
        return jax.tree.map(lambda w: w / rows, weights)

    def _extra(self, condition: Array | None) -> tuple[Array, ...]:
        """The third argument of the networks, where they take one."""
        if not self.conditional:
            return ()
        if condition is None:
            raise InputError(
                "the objective is conditional, but the batch has no condition; give data as "
                "curvi.vae.Rows(x, x, condition)"
            )
        return (condition,)


def shaped_like(decoded: Any, x: Array, draws: int = 1) -> Any:
    """Outputs of a decoder in the shape of the rows that they explain, once for every draw.

    Raises
    ------
    InputError
        If they have other numbers of rows, or of entries per row.
    """
    shape = (draws * x.shape[0], *x.shape[1:])

    def part(output: Array) -> Array:
        if output.shape == shape:
            return output
        if output.shape[:1] != shape[:1] or math.prod(output.shape) != math.prod(shape):
            raise InputError(
                f"decode() returned shape {output.shape} for rows of shape {shape}; return one "
                "output for every entry of a row"
            )
        return output.reshape(shape)

    return jax.tree.map(part, decoded)
