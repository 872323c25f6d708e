r"""The deep Markov model: networks, recognition model and objective.

.. math::

    p(x, z) = \prod_t p(z_t \mid z_{t-1})\, p(x_t \mid z_t), \qquad
    q(z \mid x) = \prod_t q(z_t \mid z_{t-1}, x_t, \dots, x_T)

The transition is gated: a linear map and a network share the mean of z_t. The recognition model
reads the sequence from its end with gated recurrent units, and q_t is the normalised product of the
transition with a Gaussian factor of what was read. The true posterior has that form, with a factor
that knows more, so the divergence is small from the first step on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi.linalg import FunctionMap
from curvi.vae._objective import gauss_newton_map, l2_penalty

Steps = Float[Array, "length rows width"]
_SOFTEST = 1e-4  # keeps standard deviations off zero


class Batch(NamedTuple):
    """Padded sequences.

    Attributes
    ----------
    x : array, shape (rows, length, width)
        Observations; what lies beyond the length of a sequence is not read.
    length : array of integers, shape (rows,)
        Number of steps of each sequence.
    weight : array, shape (rows,)
        Of the divergence in the objective: one, or less while it is annealed.
    """

    x: Any
    length: Any
    weight: Any


class Outputs(NamedTuple):
    """What the loss depends on, time first; the last two do not depend on the weights.

    Attributes
    ----------
    decoded : array, shape (length, rows, width)
        Outputs of the emission.
    difference, ratio : array, shape (length, rows, latent)
        Of q_t and the transition: means, in sds of the transition, and log sds.
    log_sd : array, shape (width,)
        Of Gaussian observations.
    inside, annealed : array, shape (length, rows)
        One where a step exists, and the weight of its divergence.
    """

    decoded: Array
    difference: Array
    ratio: Array
    log_sd: Array
    inside: Array
    annealed: Array


def initial_weights(
    rng: np.random.Generator, width: int, latent: int, hidden: int, emission_bias: np.ndarray
) -> dict[str, Any]:
    """Scaled normal weights; the linear part of the transition starts as the identity."""

    def dense(rows: int, columns: int, gain: float = 1.0) -> dict[str, np.ndarray]:
        scale = gain / math.sqrt(rows)
        return {"w": scale * rng.normal(size=(rows, columns)), "b": np.zeros(columns)}

    orthogonal = [np.linalg.qr(rng.normal(size=(hidden, hidden)))[0] for _ in range(3)]
    emission_out = dense(hidden, width)
    emission_out["b"] = emission_bias
    return {
        "start": {"mean": np.zeros(latent), "log_sd": np.zeros(latent)},
        "transition": {
            "hidden": dense(latent, 2 * hidden),
            "gate": dense(hidden, latent),
            "proposal": dense(hidden, latent),
            "linear": {"w": np.eye(latent), "b": np.zeros(latent)},
            "log_sd": dense(latent, latent, 0.1),
        },
        "emission": {
            "first": dense(latent, hidden),
            "second": dense(hidden, hidden),
            "out": emission_out,
            "log_sd": np.zeros(width),
        },
        "recognition": {
            "input": dense(width, 3 * hidden),
            "recurrent": np.concatenate(orthogonal, axis=1),
            "previous": dense(latent, hidden),
            "mean": dense(hidden, latent),
            "log_precision": dense(hidden, latent, 0.1),
        },
    }


def _affine(layer: dict[str, Array], x: Array) -> Array:
    return jnp.tensordot(x, layer["w"], 1) + _wide(layer["b"], x)


def _wide(bias: Array, like: Array) -> Array:
    """A vector with the leading axes of another array."""
    return bias.reshape((1,) * (like.ndim - 1) + bias.shape)


def _softplus(x: Array) -> Array:
    return jax.nn.softplus(x) + _SOFTEST


def transition(weights: dict[str, Any], z: Array) -> tuple[Array, Array]:
    """Mean and log sd of z_t given z_{t-1}: gated between a linear map and a network."""
    hidden = jax.nn.relu(_affine(weights["hidden"], z))
    half = hidden.shape[-1] // 2
    gate = jax.nn.sigmoid(_affine(weights["gate"], hidden[..., :half]))
    proposal = _affine(weights["proposal"], hidden[..., half:])
    mean = (1 - gate) * _affine(weights["linear"], z) + gate * proposal
    return mean, jnp.log(_softplus(_affine(weights["log_sd"], jax.nn.relu(proposal))))


def emission(weights: dict[str, Any], z: Array, kept: Array | None = None) -> Array:
    """Logits or means of x_t given z_t; ``kept`` multiplies the last hidden layer."""
    hidden = jax.nn.relu(_affine(weights["first"], z))
    hidden = jax.nn.relu(_affine(weights["second"], hidden))
    return _affine(weights["out"], hidden if kept is None else hidden * kept)


def read_backwards(weights: dict[str, Any], x: Steps, mask: Array) -> Steps:
    """States of gated recurrent units that run from the last step of each sequence to the first."""
    size = weights["recurrent"].shape[0]
    inputs = _affine(weights["input"], x)

    def step(state: Array, here: tuple[Array, Array]) -> tuple[Array, Array]:
        given, inside = here
        moved = state @ weights["recurrent"]
        update = jax.nn.sigmoid(given[:, :size] + moved[:, :size])
        reset = jax.nn.sigmoid(given[:, size : 2 * size] + moved[:, size : 2 * size])
        candidate = jnp.tanh(given[:, 2 * size :] + reset * moved[:, 2 * size :])
        new = jnp.where(inside[:, None], update * state + (1 - update) * candidate, state)
        return new, new

    zeros = jnp.zeros((x.shape[1], size), x.dtype)
    return jax.lax.scan(step, zeros, (inputs, mask), reverse=True)[1]


def sample_posterior(
    params: dict[str, Any], read: Steps, noise: Steps
) -> tuple[Array, Array, Array, Array, Array]:
    """Draws of z along q, with means and log sds of q and of the transition at every step."""
    weights, start = params["recognition"], params["start"]
    rows = read.shape[1]

    def step(carry: Any, here: tuple[Array, Array]) -> tuple[Any, tuple[Array, ...]]:
        before, prior_mean, prior_log_sd = carry
        seen, epsilon = here
        hidden = 0.5 * (jnp.tanh(_affine(weights["previous"], before)) + seen)
        # The factor of what was read has a precision relative to that of the transition.
        share = jax.nn.sigmoid(_affine(weights["log_precision"], hidden))
        mean = (1 - share) * prior_mean + share * _affine(weights["mean"], hidden)
        log_sd = prior_log_sd + 0.5 * jnp.log1p(-share + _SOFTEST)
        z = mean + jnp.exp(log_sd) * epsilon
        following = transition(params["transition"], z)
        return (z, *following), (z, mean, log_sd, prior_mean, prior_log_sd)

    first = [jnp.broadcast_to(start[k], (rows, start[k].shape[0])) for k in ("mean", "log_sd")]
    carry: Any = (jnp.zeros_like(first[0]), *first)
    z, mean, log_sd, prior_mean, prior_log_sd = jax.lax.scan(step, carry, (read, noise))[1]
    return z, mean, log_sd, prior_mean, prior_log_sd


@dataclass(frozen=True)
class MarkovObjective:
    """``objective(params, batch, key)``: the negative bound in nats per step of the batch.

    Parameters
    ----------
    likelihood : {"bernoulli", "gaussian"}
        Of an observation given its emission.
    num_draws : int
        M, draws of every sequence of latent states.
    dropout : float
        Share that a step leaves out of the observations that are read, of the units that have read
        them, and of the last hidden layer of the emission.
    l2 : float
        Weight of the penalty ``l2 / 2`` times the squares of all matrices.
    lengths : tuple of int
        Lengths at which a batch may be cut off: the shortest that holds all its sequences is
        taken. Empty for the whole width of the padding.
    """

    likelihood: str = "bernoulli"
    num_draws: int = 1
    dropout: float = 0.0
    l2: float = 0.0
    lengths: tuple[int, ...] = ()

    def _repeated(self, batch: Batch) -> tuple[Array, Array, Array]:
        """Time first, M copies of every sequence; and which steps exist."""
        x = jnp.repeat(jnp.swapaxes(batch.x, 0, 1), self.num_draws, axis=1)
        length = jnp.repeat(batch.length, self.num_draws)
        mask = jnp.arange(x.shape[0], dtype=length.dtype)[:, None] < length[None]
        return x, mask, jnp.repeat(batch.weight, self.num_draws)

    def outputs(self, params: PyTree, batch: Batch, key: PRNGKeyArray) -> Outputs:
        """Everything that the loss depends on, as functions of the parameters."""
        x, mask, weight = self._repeated(batch)
        latent = params["start"]["mean"].shape[0]
        noise = jax.random.normal(key, (*x.shape[:2], latent), x.dtype)
        first, second, third = jax.random.split(jax.random.fold_in(key, 1), 3)
        seen = x * self._kept(first, x.shape, x.dtype) if self.dropout > 0 else x
        read = read_backwards(params["recognition"], seen, mask)
        kept = None
        if self.dropout > 0:  # of hidden units the same at every step of a sequence
            shape = (1, *read.shape[1:])
            read = read * self._kept(second, shape, x.dtype)
            kept = self._kept(third, shape, x.dtype)
        z, mean, log_sd, prior_mean, prior_log_sd = sample_posterior(params, read, noise)
        inside = mask.astype(x.dtype)
        return Outputs(
            emission(params["emission"], z, kept),
            (mean - prior_mean) * jnp.exp(-prior_log_sd),
            log_sd - prior_log_sd,
            params["emission"]["log_sd"],
            inside,
            inside * weight[None],
        )

    def _kept(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        """Zero for what is left out; the rest makes up for it."""
        return jax.random.bernoulli(key, 1 - self.dropout, shape).astype(dtype) / (1 - self.dropout)

    def log_likelihood(self, outputs: Outputs, x: Array) -> Array:
        """``log p(x_t | z_t)`` of every step."""
        decoded = outputs.decoded
        if self.likelihood == "bernoulli":
            return jnp.sum(x * decoded - jax.nn.softplus(decoded), axis=-1)
        log_sd = _wide(outputs.log_sd, decoded)
        square = ((x - decoded) * jnp.exp(-log_sd)) ** 2
        return -jnp.sum(0.5 * square + log_sd + 0.5 * math.log(2 * math.pi), axis=-1)

    def _totals(self, outputs: Outputs, batch: Batch) -> Array:
        """The negative bound of every copy of every sequence."""
        x, mask, _ = self._repeated(batch)
        step = outputs.annealed * divergence(outputs) - self.log_likelihood(outputs, x)
        return jnp.sum(jnp.where(mask, step, 0), axis=0)

    def per_sequence(self, params: PyTree, batch: Batch, key: PRNGKeyArray) -> Array:
        """The negative bound of every sequence, in nats, averaged over draws."""
        totals = self._totals(self.outputs(params, batch, key), batch)
        return jnp.mean(totals.reshape(-1, self.num_draws), axis=1)

    def loss(self, outputs: Outputs, batch: Batch) -> Float[Array, ""]:
        """The negative bound per step."""
        return jnp.sum(self._totals(outputs, batch)) / jnp.sum(outputs.inside)

    def penalty(self, params: PyTree) -> Float[Array, ""]:
        """The L2 term."""
        matrices = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
        return l2_penalty(self.l2, matrices)

    def curvature(self, outputs: Outputs) -> Outputs:
        """Diagonal of the curvature of the loss of single steps in the outputs.

        Fisher information of the emission, and of the divergence what it has where q and p agree:
        1 in the difference of their means, 2 in that of their log sds.
        """
        inside, annealed = outputs.inside[..., None], outputs.annealed[..., None]
        count = jnp.sum(inside)
        if self.likelihood == "bernoulli":
            probability = jax.nn.sigmoid(outputs.decoded)
            fisher, of_log_sd = probability * (1 - probability), 0 * count
        else:
            fisher, of_log_sd = jnp.exp(-2 * _wide(outputs.log_sd, outputs.decoded)), 2 * count
        return Outputs(
            fisher * inside,
            jnp.broadcast_to(annealed, outputs.difference.shape),
            jnp.broadcast_to(2 * annealed, outputs.ratio.shape),
            jnp.full_like(outputs.log_sd, of_log_sd),
            jnp.zeros_like(outputs.inside),
            jnp.zeros_like(outputs.annealed),
        )

    def inside(self, batch: Batch) -> Float[Array, " rows"]:
        """One for every row of a layer that is a step, zero for padding; time first."""
        return self._repeated(batch)[1].astype(batch.x.dtype).reshape(-1)

    def cut(self, fn: Callable[[Batch], Any], batch: Batch) -> Any:
        """``fn`` of a batch cut off at the shortest length that holds all of it."""
        lengths = self._lengths(batch.x.shape[1])
        longest = jnp.max(batch.length)
        index = jnp.sum(longest > jnp.asarray(lengths[:-1], longest.dtype))
        branches = [(lambda b, n=n: fn(b._replace(x=b.x[:, :n]))) for n in lengths]
        return jax.lax.switch(index, branches, batch)

    def _lengths(self, width: int) -> list[int]:
        """Where a batch of that width may be cut off."""
        return sorted({*(min(n, width) for n in self.lengths), width})

    def _mean(self, params: PyTree, batch: Batch, key: PRNGKeyArray) -> Array:
        return self.loss(self.outputs(params, batch, key), batch)

    def __call__(self, params: PyTree, batch: Batch, key: PRNGKeyArray) -> Float[Array, ""]:
        """The objective on a batch, which is cut off behind its longest sequence."""
        value: Array = _cut_off(self, params, batch, key)
        return value if self.l2 == 0 else value + self.penalty(params)

    def gauss_newton(
        self, params: PyTree, batch: Batch, key: PRNGKeyArray
    ) -> tuple[Array, PyTree, FunctionMap]:
        """Value, gradient, and the Gauss-Newton map with :meth:`curvature` at the outputs.

        The map is that of the whole width. Where batches may be cut off, value and gradient are
        those of the shorter one, as a call has them: its draws are others.
        """
        outputs, push = jax.linearize(lambda p: self.outputs(p, batch, key), params)
        pull = jax.linear_transpose(push, params)
        if self.lengths:
            value, gradient = jax.value_and_grad(self)(params, batch, key)
        else:  # one pass for both: every other loop over time is compiled
            value, slope = jax.value_and_grad(self.loss)(outputs, batch)
            (gradient,) = pull(slope)
            if self.l2 != 0:
                added, pulled = jax.value_and_grad(self.penalty)(params)
                value, gradient = value + added, jax.tree.map(jnp.add, gradient, pulled)
        count = jnp.sum(outputs.inside)
        weights = jax.tree.map(lambda w: w / count, self.curvature(outputs))
        curved = None if self.l2 == 0 else self.penalty
        return value, gradient, gauss_newton_map(params, push, pull, weights, curved)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cut_off(
    objective: MarkovObjective, params: PyTree, batch: Batch, key: PRNGKeyArray
) -> Float[Array, ""]:
    return objective.cut(lambda b: objective._mean(params, b, key), batch)


def _cut_off_forward(
    objective: MarkovObjective, params: PyTree, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, PyTree]:
    """Value and gradient in one branch: what a branch keeps for a later one, all others pad."""
    return objective.cut(lambda b: jax.value_and_grad(objective._mean)(params, b, key), batch)


def _cut_off_backward(_: Any, gradient: PyTree, slope: Array) -> tuple[PyTree, None, None]:
    return jax.tree.map(lambda leaf: slope * leaf, gradient), None, None


_cut_off.defvjp(_cut_off_forward, _cut_off_backward)


def divergence(outputs: Outputs) -> Array:
    """KL(q_t || p_t) of every step, exactly."""
    square, ratio = outputs.difference**2, outputs.ratio
    return jnp.sum(0.5 * (jnp.exp(2 * ratio) + square - 1) - ratio, axis=-1)
