"""Small models, and what dense algebra and quadrature say of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from curvi.latent import Assembly, Autoregression, Component, Precision, RandomWalk, SiteModel
from curvi.likelihoods import likelihood_of

FIRST_SD = 2.0
RESPONSES = {
    "gaussian": lambda rng, t: t + 0.5 * rng.normal(size=t.shape),
    "student-t": lambda rng, t: t + 0.5 * rng.standard_t(3, size=t.shape),
    "poisson": lambda rng, t: rng.poisson(np.exp(t)),
    "bernoulli": lambda rng, t: rng.random(t.shape) < 1 / (1 + np.exp(-t)),
    "binomial": lambda rng, t: rng.binomial(4, 1 / (1 + np.exp(-t))),
    "negative-binomial": lambda rng, t: rng.poisson(np.exp(t) * rng.gamma(2.0, size=t.shape) / 2),
    "gamma": lambda rng, t: np.exp(t) * rng.gamma(3.0, size=t.shape) / 3,
    "volatility": lambda rng, t: np.exp(0.5 * t) * rng.normal(size=t.shape),
}


def generator(key):
    return np.random.default_rng(int(jax.random.bits(key)))


def site_model(assembly, likelihood, y, offset=0.0, trials=1.0):
    rows = len(y)
    return SiteModel(
        assembly, likelihood, np.asarray(y, float),
        np.broadcast_to(np.asarray(offset, float), rows),
        np.broadcast_to(np.asarray(trials, float), rows),
    )  # fmt: skip


def walk_and_autoregression(name, rng, steps=7, rows=11):
    """Rows that see a walk and an autoregression at steps of their own; one is missing."""
    at, other = rng.integers(steps, size=(2, rows))
    components = [
        RandomWalk(at, "walk", first_sd=FIRST_SD, steps=steps),
        Autoregression(other, "ar", steps=steps),
    ]
    likelihood = likelihood_of(name)
    y = np.asarray(RESPONSES[name](rng, 0.7 * rng.normal(size=rows)), float)
    y[3] = np.nan
    extras = likelihood.extras
    assembly = Assembly(components, extras, [0.7] * len(extras))
    trials = 4.0 if name == "binomial" else 1.0
    return site_model(assembly, likelihood, y, 0.3, trials)


def dense_prior(theta, steps):
    """Q by hand, for jax: a walk whose first value is N(0, FIRST_SD^2), an autoregression."""
    move = jnp.eye(steps)[1:] - jnp.eye(steps)[:-1]
    walk = jnp.exp(-2 * theta[0]) * move.T @ move
    walk = walk.at[0, 0].add(FIRST_SD**-2.0)
    phi = jnp.tanh(theta[2])
    lag = jnp.abs(jnp.subtract.outer(jnp.arange(steps), jnp.arange(steps)))
    covariance = jnp.exp(2 * theta[1]) / (1 - phi**2) * phi**lag
    zero = jnp.zeros((steps, steps))
    return jnp.block([[walk, zero], [zero, jnp.linalg.inv(covariance)]])


class Levels(Component):
    """One independent effect per level, N(0, sd^2); ``log sd`` is half-normal, or a number."""

    def __init__(self, index, count, name, known_sd=None):
        self.name, self.names = name, () if known_sd else (name,)
        shape = (len(index), count)
        self.A = sparse.csr_array((np.ones(len(index)), (np.arange(len(index)), index)), shape)
        self.rows = self.columns = np.arange(count)
        self.known = known_sd

    def precision(self, theta):
        log_sd = theta[:, 0] if self.names else np.full(len(theta), np.log(self.known))
        values = np.exp(-2 * log_sd)[:, None] * np.ones(self.size)
        return Precision(values, -2 * self.size * log_sd)

    def log_prior(self, theta):
        return (theta - 0.5 * np.exp(2 * theta)).sum(axis=1)


def crossed_table(rng, rows, columns, share, sds=(1.5, 1.0)):
    """A Bernoulli response in some cells of a crossed table, one row in each."""
    cells = np.argwhere(rng.random((rows, columns)) < share)
    one, other = cells.T
    t = -1.0 + (sds[0] * rng.normal(size=rows))[one] + (sds[1] * rng.normal(size=columns))[other]
    y = np.asarray(rng.random(len(t)) < 1 / (1 + np.exp(-t)), float)
    every = Levels(np.zeros(len(y), int), 1, "intercept", known_sd=2.5)
    components = [every, Levels(one, rows, "row"), Levels(other, columns, "column")]
    return site_model(Assembly(components), likelihood_of("bernoulli"), y)
