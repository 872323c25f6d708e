"""Training runs with a clock that can be continued: what the auto-encoder benchmark and the choice
of settings share.

The clock runs while steps run: compilation and evaluation do not count, the principal coordinates
of KFAC do.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import curvi
from curvi.fitting import loop
from curvi.models.vae import MLPObjective, initial_params
from curvi.models.vae.problem import EpochProblem, EpochResources, shuffling_multipliers
from curvi.models.vae.rotation import principal_rotation

TARGETS = (-115.0, -110.0, -105.0, -103.0, -102.0)
L2 = 1e-4
VALIDATION = 5000
ROWS_PER_LOOK = 10_000
AVERAGED_IMAGES = 180_000  # window of the averages, in images: three epochs of MNIST


class Look(NamedTuple):
    """Seconds so far, and the held-out bounds of the last and of the averaged parameters."""

    seconds: float
    last: float
    averaged: float


class RateState(NamedTuple):
    """Steps so far, and a learning rate that is data: one compiled program serves all rates."""

    count: jax.Array
    rate: jax.Array


def rated(transformation, schedule=None):
    """``transformation`` times a rate kept in its state, times ``schedule(step)``."""

    def init(params):
        return RateState(jnp.zeros((), jnp.int32), jnp.ones((), optax.tree.dtype(params)))

    def update(updates, state, params=None):
        del params
        share = 1.0 if schedule is None else schedule(state.count)
        scale = -(state.rate * share).astype(state.rate.dtype)
        moved = jax.tree.map(lambda leaf: scale * leaf, updates)
        return moved, RateState(state.count + 1, state.rate)

    return optax.chain(transformation, optax.GradientTransformation(init, update))


@jax.jit
def bound(params, images, key):
    """Bound per image, without the penalty."""
    return -MLPObjective()(params, images, key)


class Run:
    """A run on images as probabilities, 784-500-20-500-784 for MNIST, that can be continued."""

    def __init__(self, method, X, held, *, batch=100, scale=None, seed=0, rate=None):
        began = time.perf_counter()
        generator = np.random.default_rng(seed)
        params = initial_params(generator, inputs=X.shape[1], hidden=(500,), latent=20, scale=scale)
        X = X[generator.permutation(len(X))]
        objective, rows, self.restore = MLPObjective(decoder_l2=L2), jnp.asarray(X), lambda p: p
        if isinstance(method, curvi.KFAC):
            rotation = principal_rotation(X, directions=method.directions, damping=method.damping)
            objective = MLPObjective(decoder_l2=L2, white=True)
            rows = (jnp.asarray(rotation.features(X)), rows)
            params, self.restore = rotation.rotated(params), rotation.restored
        multipliers = jnp.asarray(shuffling_multipliers(len(X), generator))
        self.seconds = time.perf_counter() - began if isinstance(method, curvi.KFAC) else 0.0
        self.resources = EpochResources(jax.random.key(seed), rows, multipliers)
        self.problem, self.method, self.held = EpochProblem(objective, batch), method, held
        self.carry = loop.start(self.problem, method, params, self.resources)
        if rate is not None:
            state = optax.tree_utils.tree_set(self.carry.state, rate=jnp.asarray(rate, X.dtype))
            self.carry = self.carry._replace(state=state)
        self.every = max(1, ROWS_PER_LOOK // batch)
        self.path: list[Look] = []
        jax.block_until_ready(self._advanced(0))  # compiles

    def _advanced(self, steps):
        stop = self.carry.step + jnp.asarray(steps, jnp.int32)
        limit = jnp.asarray(1e-30, jnp.float32)
        return loop.run_chunk(self.problem, self.method, self.carry, self.resources, stop, limit)

    def until(self, budget, *, bound_at=np.inf):
        """Train until the clock or the averaged bound has reached a number; returns the run."""
        while self.seconds < budget and not self._stopped(bound_at):
            began = time.perf_counter()
            self.carry = jax.block_until_ready(self._advanced(self.every))
            self.seconds += time.perf_counter() - began
            self.path.append(self._look())
        return self

    def _stopped(self, bound_at):
        if not self.path:
            return False
        return self.path[-1].averaged >= bound_at or not np.isfinite(self.path[-1].last)

    def _look(self):
        key = jax.random.key(99)  # the same draws at every look
        state = self.carry.state
        last, averaged = (
            float(bound(self.restore(params), self.held, key))
            for params in (state.params, self.method.answer(state))
        )
        return Look(self.seconds, last, averaged)


def reached(path, target, *, averaged=True):
    """Seconds at which a path crosses a bound, straight lines between looks; None if never."""
    before = None
    for look in path:
        value = look.averaged if averaged else look.last
        if value >= target:
            if before is None:
                return look.seconds
            share = (target - before[1]) / (value - before[1])
            return before[0] + share * (look.seconds - before[0])
        before = (look.seconds, value)
    return None


def splits(data):
    """Training images without the last 5,000, and those, for choosing settings."""
    X = data.train[0]
    return X[:-VALIDATION], jnp.asarray(X[-VALIDATION:])
