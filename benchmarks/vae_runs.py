"""Training runs with a clock that can be continued: what the auto-encoder benchmark and the choice
of settings share.

The clock counts processor seconds while steps run: compilation and evaluation do not count, the
principal coordinates of KFAC do. On one idle core they are those of the wall clock.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from curvi._core.errors import Outcome
from curvi.engine import Resources
from curvi.engine._drivers import CompiledDriver
from curvi.vae import MLPObjective, initial_params
from curvi.vae._networks import principal_rotation
from curvi.vae._training import EpochProblem, ShuffledRows, shuffling_multipliers

TARGETS = (-115.0, -110.0, -105.0, -103.0, -102.0)
L2 = 1e-4
TOLERANCE = 1e-30  # never reached
VALIDATION = 5000
SECONDS_BETWEEN_LOOKS, EARLY_LOOKS = 0.5, 15
AVERAGED_IMAGES = 180_000  # window of the averages, in images: three epochs of MNIST


class Look(NamedTuple):
    """Steps and seconds so far, the held-out bounds of the last parameters (where asked for) and
    of the method's answer, which is their average if it keeps one.
    """

    step: int
    seconds: float
    last: float | None
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
    """A run on images as probabilities, 784-500-20-500-784 for MNIST, that can be continued.

    ``rate`` sets the rate of a :func:`rated` method; ``like`` is a run of the same kind and seed
    whose images are shared; ``prepared`` is the method whose coordinates and gradients are used,
    where it is not the method itself.
    """

    def __init__(
        self, method, X, held, *, batch=100, scale=None, seed=0, rate=None, like=None,
        prepared=None,
    ):  # fmt: skip
        generator = np.random.default_rng(seed)
        params = initial_params(generator, inputs=X.shape[1], hidden=(500,), latent=20, scale=scale)
        self.restore, self.seconds = lambda p: p, 0.0
        prepared = prepared or method
        principal = prepared.principal
        objective = MLPObjective(
            decoder_l2=L2, white=principal is not None, path_derivative=prepared.path_derivative
        )
        self.resources = None if like is None else like.resources
        if self.resources is None:
            X = X[generator.permutation(len(X))]
            rows = jnp.asarray(X)
            if objective.white:
                began = time.process_time()
                rotation = principal_rotation(X, directions=principal[0], damping=principal[1])
                rows = (jnp.asarray(rotation.features(X)), rows)
                params, self.restore = rotation.rotated(params), rotation.restored
                self.seconds = time.process_time() - began
            multipliers = jnp.asarray(shuffling_multipliers(len(X), generator))
            self.resources = Resources(jax.random.key(seed), ShuffledRows(rows, multipliers), None)
        self.held = held
        self.driver = CompiledDriver(
            EpochProblem(objective, batch), method, [params], self.resources
        )
        if rate is not None:
            carry = self.driver.carry
            state = optax.tree_utils.tree_set(carry.state, rate=jnp.asarray(rate, X.dtype))
            self.driver.carry = carry._replace(state=state)
        self.chunk = 1
        self.path: list[Look] = []
        self.driver.prepare(TOLERANCE)

    @property
    def step(self):
        """Steps so far."""
        return int(self.driver.carry.step)

    def until(self, budget=np.inf, *, steps=np.inf, goal=np.inf, watched=True, last=False):
        """Train for so many seconds and steps in total, at most; returns the run.

        A run that is not watched is looked at in the end only. Looks come by the clock, more
        frequently early on, when the bound moves fast. ``last`` asks for the bound of the last
        parameters too. A bound above ``goal`` ends the run.
        """
        while self.seconds < budget and self.step < steps and not self._broken():
            pause = SECONDS_BETWEEN_LOOKS * (1 if len(self.path) < EARLY_LOOKS else 3)
            due = min(self.seconds + pause, budget)
            while self.seconds < due and self.step < steps and not self._broken():
                self._advance(steps, due - self.seconds)
            if watched:
                self.path.append(self._look(last=last))
                if self.path[-1].averaged >= goal:
                    break
        if not watched:
            self.path.append(self._look(last=True))
        return self

    def _advance(self, steps, left):
        """A chunk of steps that is not longer than the time to the next look, by what is known."""
        count = int(min(self.chunk, steps - self.step, self.driver.most_steps))
        began = time.process_time()
        self.driver.advance(max(1, count), TOLERANCE, np.inf)
        spent = time.process_time() - began
        self.seconds += spent
        each = spent / max(1, count)
        self.chunk = max(1, min(2 * self.chunk, int((left - spent) / each) if spent < left else
                                int(SECONDS_BETWEEN_LOOKS / each)))  # fmt: skip

    def _broken(self):
        stopped = int(self.driver.carry.outcome) != Outcome.RUNNING.value
        return stopped or (bool(self.path) and not np.isfinite(self.path[-1].averaged))

    def _look(self, *, last):
        def at(params):
            return float(bound(self.restore(params), self.held, jax.random.key(99)))

        final = at(self.driver.carry.state.params) if last else None
        return Look(self.step, self.seconds, final, at(self.driver.params(0)))


def reached(path, target, *, clock="seconds", kind="averaged"):
    """Seconds or steps at which a bound crosses a target; None if it never does.

    Straight lines between looks.
    """
    before = None
    for look in path:
        now, value = getattr(look, clock), getattr(look, kind)
        if value is None:
            continue
        if value >= target:
            if before is None:
                return now
            share = (target - before[1]) / (value - before[1])
            return before[0] + share * (now - before[0])
        before = (now, value)
    return None


def splits(data):
    """Training images without the last 5,000, and those, for choosing settings."""
    X = data.train[0]
    return X[:-VALIDATION], jnp.asarray(X[-VALIDATION:])
