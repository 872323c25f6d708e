"""Latent Gaussian series and fields, shrinkage, and small models without groups, in NumPyro.

As in ``hierarchical_models``, every function returns ``(model, args, kwargs)`` and names D.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import deterministic, factor, plate, sample
from numpyro.contrib.control_flow import scan

from benchmarks.hierarchical_models import Built, logistic_rows, with_data


def gp_poisson() -> Built:
    """Counts with a Gaussian process, length, scale and level free, not centred; D = 23."""
    rng = np.random.default_rng(201)
    x = np.linspace(-5.0, 5.0, 20)
    y = rng.poisson(np.exp(1.0 + 0.9 * np.sin(x) + 0.2 * x))

    def model(x, y):
        length = sample("length", dist.InverseGamma(5, 8))
        scale, level = sample("scale", dist.HalfNormal(2)), sample("level", dist.Normal(0, 2))
        z = sample("z", dist.Normal(0, 1).expand([20]).to_event(1))
        squares = ((x[:, None] - x) / length) ** 2
        covariance = jnp.exp(-0.5 * squares) + 1e-6 * jnp.eye(20)
        f = deterministic("f", level + scale * jnp.linalg.cholesky(covariance) @ z)
        sample("y", dist.Poisson(jnp.exp(f)).to_event(1), obs=y)

    return with_data(model, x=x, y=y)


def _returns(length: int = 300) -> np.ndarray:
    rng = np.random.default_rng(202)
    h, found = -1.0, []
    for _ in range(length):
        h = -1.0 + 0.95 * (h + 1.0) + 0.25 * rng.normal()
        found.append(np.exp(h / 2) * rng.normal())
    return np.array(found)


def _volatility_globals() -> tuple[jax.Array, jax.Array, jax.Array]:
    mu = sample("mu", dist.Normal(0, 3))
    phi = sample("phi", dist.Beta(20, 1.5))
    return mu, phi, sample("sigma", dist.HalfNormal(0.5))


def volatility_centred() -> Built:
    """Stochastic volatility of 300 days, a loop over centred states; D = 303."""

    def model(y):
        mu, phi, sigma = _volatility_globals()
        start = sample("h_first", dist.Normal(mu, sigma / jnp.sqrt(1 - phi**2)))

        def day(before, _):
            now = sample("h_later", dist.Normal(mu + phi * (before - mu), sigma))
            return now, now

        _, later = scan(day, start, jnp.arange(299))
        h = deterministic("h", jnp.concatenate([start[None], later]))
        sample("y", dist.Normal(0, jnp.exp(h / 2)).to_event(1), obs=y)

    return with_data(model, y=_returns())


def volatility_noncentred() -> Built:
    """The same by standardised innovations; D = 303."""

    def model(y):
        mu, phi, sigma = _volatility_globals()
        z = sample("z", dist.Normal(0, 1).expand([300]).to_event(1))
        first = z[0] * sigma / jnp.sqrt(1 - phi**2)

        def day(before, shock):
            now = phi * before + sigma * shock
            return now, now

        _, later = jax.lax.scan(day, first, z[1:])
        h = deterministic("h", mu + jnp.concatenate([first[None], later]))
        deterministic("h_first", h[0])
        deterministic("h_later", h[1:])
        sample("y", dist.Normal(0, jnp.exp(h / 2)).to_event(1), obs=y)

    return with_data(model, y=_returns())


def volatility_levelled() -> Built:
    """The same with the average state in the place of mu, for its reference; D = 303.

    The data know the average of h well and mu badly: in innovations mu and the sum of all z are
    nearly collinear. A shift by a function of the other coordinates has no Jacobian.
    """

    def model(y):
        level = sample("average", dist.Normal(0, 1).mask(False))
        phi = sample("phi", dist.Beta(20, 1.5))
        sigma = sample("sigma", dist.HalfNormal(0.5))
        z = sample("z", dist.Normal(0, 1).expand([300]).to_event(1))
        first = z[0] * sigma / jnp.sqrt(1 - phi**2)

        def day(before, shock):
            now = phi * before + sigma * shock
            return now, now

        _, later = jax.lax.scan(day, first, z[1:])
        apart = jnp.append(first, later)
        mu = deterministic("mu", level - jnp.mean(apart))
        factor("level", dist.Normal(0, 3).log_prob(mu))
        h = deterministic("h", mu + apart)
        deterministic("h_first", h[0])
        deterministic("h_later", h[1:])
        sample("y", dist.Normal(0, jnp.exp(h / 2)).to_event(1), obs=y)

    return with_data(model, y=_returns())


def local_level_season() -> Built:
    """A random walk with a yearly season, 150 months; D = 165."""
    rng = np.random.default_rng(203)
    month = np.arange(150) % 12
    level = 5.0 + np.cumsum(0.3 * rng.normal(size=150))
    y = level + 1.5 * np.sin(2 * np.pi * month / 12) + 0.6 * rng.normal(size=150)

    def model(month, y):
        drift = sample("drift", dist.HalfNormal(1))
        spread, sigma = sample("spread", dist.HalfNormal(2)), sample("sigma", dist.HalfNormal(2))
        season = sample("season", dist.Normal(0, spread).expand([12]).to_event(1))
        level = sample("level", dist.GaussianRandomWalk(drift, num_steps=150))
        sample("y", dist.Normal(5.0 + level + season[month], sigma).to_event(1), obs=y)

    return with_data(model, month=month, y=y)


def horseshoe() -> Built:
    """Regression on 100 columns, five of them relevant, regularised horseshoe; D = 204."""
    rng = np.random.default_rng(204)
    X, beta = rng.normal(size=(150, 100)), np.zeros(100)
    beta[:5] = [3.0, -2.0, 1.5, 1.0, -2.5]
    y = 1.0 + X @ beta + rng.normal(size=150)

    def model(X, y):
        intercept, sigma = (
            sample("intercept", dist.Normal(0, 5)),
            sample("sigma", dist.HalfNormal(2)),
        )
        tau = sample("tau", dist.HalfCauchy(0.05))
        slab = sample("slab", dist.InverseGamma(2, 8))
        with plate("columns", 100):
            z, wide = sample("z", dist.Normal(0, 1)), sample("wide", dist.HalfCauchy(1))
        shrunk = tau * wide * jnp.sqrt(slab / (slab + (tau * wide) ** 2))
        beta = deterministic("beta", z * shrunk)
        sample("y", dist.Normal(intercept + X @ beta, sigma).to_event(1), obs=y)

    return with_data(model, X=X, y=y)


def latent_ar_counts() -> Built:
    """Counts of 120 weeks with a latent autoregression, a loop over centred states; D = 124."""
    rng = np.random.default_rng(205)
    x, states, state = rng.normal(size=120), [], 0.0
    for _ in range(120):
        state = 0.8 * state + 0.35 * rng.normal()
        states.append(state)
    y = rng.poisson(np.exp(1.0 + 0.3 * x + np.array(states)))

    def model(x, y):
        mu, beta = sample("mu", dist.Normal(0, 3)), sample("beta", dist.Normal(0, 1))
        phi, sigma = sample("phi", dist.Uniform(-1, 1)), sample("sigma", dist.HalfNormal(1))

        def week(before, row):
            x_now, y_now = row
            now = sample("u", dist.Normal(phi * before, sigma))
            sample("y", dist.Poisson(jnp.exp(mu + beta * x_now + now)), obs=y_now)
            return now, None

        scan(week, jnp.zeros_like(mu), (x, y))

    return with_data(model, x=x, y=y)


def latent_ar_counts_noncentred() -> Built:
    """The same by standardised innovations; D = 124."""
    _, _, data = latent_ar_counts()

    def model(x, y):
        mu, beta = sample("mu", dist.Normal(0, 3)), sample("beta", dist.Normal(0, 1))
        phi, sigma = sample("phi", dist.Uniform(-1, 1)), sample("sigma", dist.HalfNormal(1))
        z = sample("z", dist.Normal(0, 1).expand([120]).to_event(1))

        def week(before, shock):
            now = phi * before + sigma * shock
            return now, now

        _, u = jax.lax.scan(week, jnp.zeros_like(mu), z)
        deterministic("u", u)
        sample("y", dist.Poisson(jnp.exp(mu + beta * x + u)).to_event(1), obs=y)

    return with_data(model, **data)


def _grid(side: int) -> np.ndarray:
    """Which cells of a square grid touch: 0 or 1."""
    row, column = np.divmod(np.arange(side * side), side)
    distance = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
    return (distance == 1).astype(float)


def spatial_counts() -> Built:
    """Counts on a 10 x 10 grid with a conditional autoregression; D = 104."""
    rng = np.random.default_rng(206)
    near = _grid(10)
    precision = 2.0 * (np.diag(near.sum(axis=1)) - 0.9 * near)
    field = np.linalg.solve(np.linalg.cholesky(precision).T, rng.normal(size=100))
    x, expected = rng.normal(size=100), rng.uniform(2.0, 12.0, size=100)
    y = rng.poisson(expected * np.exp(0.1 + 0.3 * x + field))

    def model(near, x, expected, y):
        mu, beta = sample("mu", dist.Normal(0, 2)), sample("beta", dist.Normal(0, 1))
        rho, precision = sample("rho", dist.Beta(4, 1)), sample("precision", dist.Gamma(2, 1))
        law = dist.CAR(jnp.zeros(100), rho, precision, near)
        field = sample("field", law)
        rate = expected * jnp.exp(mu + beta * x + field)
        sample("y", dist.Poisson(rate).to_event(1), obs=y)

    return with_data(model, near=near, x=x, expected=expected, y=y)


def zero_inflated() -> Built:
    """Zero-inflated Poisson regression of 200 rows; D = 5."""
    rng = np.random.default_rng(207)
    x = rng.normal(size=(200, 2))
    some = logistic_rows(rng, 0.6 + 0.8 * x[:, 0])
    y = some * rng.poisson(np.exp(1.0 + x @ np.array([0.3, -0.4])))

    def model(x, y):
        a = sample("a", dist.Normal(0, 2).expand([2]).to_event(1))
        b = sample("b", dist.Normal(0, 2).expand([3]).to_event(1))
        rate, gate = jnp.exp(b[0] + x @ b[1:]), jax.nn.sigmoid(-a[0] - a[1] * x[:, 0])
        with plate("rows", 200):
            sample("y", dist.ZeroInflatedPoisson(gate, rate=rate), obs=y)

    return with_data(model, x=x, y=y)


def ordinal() -> Built:
    """Ordered logistic regression of five levels; D = 7."""
    rng = np.random.default_rng(208)
    x = rng.normal(size=(250, 3))
    latent = x @ np.array([0.8, -0.5, 0.2]) + rng.logistic(size=250)
    y = np.digitize(latent, [-1.5, -0.3, 0.6, 1.8])

    def model(x, y):
        beta = sample("beta", dist.Normal(0, 2).expand([3]).to_event(1))
        ordered = dist.TransformedDistribution(
            dist.Normal(0, 2).expand([4]).to_event(1), dist.transforms.OrderedTransform()
        )
        cuts = sample("cuts", ordered)
        with plate("rows", 250):
            sample("y", dist.OrderedLogistic(x @ beta, cuts), obs=y)

    return with_data(model, x=x, y=y)


def epidemic() -> Built:
    """Infections of a closed population by an SIR model, 20 days; D = 4."""
    rng = np.random.default_rng(209)

    def infected(infection, recovery, first):
        width = 0.2

        def slope(state):
            flow = infection * state[0] * state[1]
            return jnp.stack([-flow, flow - recovery * state[1]])

        def small(state, _):
            middle = state + 0.5 * width * slope(state)
            return state + width * slope(middle), None

        def day(state, _):
            state, _ = jax.lax.scan(small, state, None, length=5)
            return state, state[1]

        return jax.lax.scan(day, jnp.stack([1 - first, first]), None, length=20)[1]

    y = rng.poisson(500 * np.asarray(infected(jnp.array(0.9), jnp.array(0.3), jnp.array(0.01))))

    def model(y):
        infection = sample("infection", dist.LogNormal(0, 0.5))
        recovery = sample("recovery", dist.LogNormal(-1, 0.5))
        first = sample("first", dist.Beta(1, 50))
        phi = sample("phi", dist.Exponential(0.1))
        mean = 500 * infected(infection, recovery, first)
        with plate("days", 20):
            sample("y", dist.NegativeBinomial2(mean + 1e-6, phi), obs=y)

    return with_data(model, y=y)


def autoregression() -> Built:
    """An autoregression of order two, 150 steps; D = 4."""
    rng = np.random.default_rng(210)
    y = [0.0, 0.0]
    for _ in range(150):
        y.append(0.3 + 0.6 * y[-1] - 0.3 * y[-2] + 0.8 * rng.normal())

    def model(y):
        level, sigma = sample("level", dist.Normal(0, 2)), sample("sigma", dist.HalfNormal(2))
        phi = sample("phi", dist.Normal(0, 1).expand([2]).to_event(1))
        mean = level + phi[0] * y[1:-1] + phi[1] * y[:-2]
        sample("y", dist.Normal(mean, sigma).to_event(1), obs=y[2:])

    return with_data(model, y=np.array(y))


def ordered_mixture() -> Built:
    """A mixture of two normals with ordered means, 200 rows; D = 5."""
    rng = np.random.default_rng(211)
    second = rng.uniform(size=200) < 0.35
    y = np.where(second, 2.0 + 0.7 * rng.normal(size=200), -1.0 + rng.normal(size=200))

    def model(y):
        weight = sample("weight", dist.Beta(2, 2))
        ordered = dist.TransformedDistribution(
            dist.Normal(0, 3).expand([2]).to_event(1), dist.transforms.OrderedTransform()
        )
        mean = sample("mean", ordered)
        scale = sample("scale", dist.LogNormal(0, 0.5).expand([2]).to_event(1))
        parts = dist.Categorical(probs=jnp.stack([weight, 1 - weight]))
        with plate("rows", 200):
            sample("y", dist.MixtureSameFamily(parts, dist.Normal(mean, scale)), obs=y)

    return with_data(model, y=y)
