"""Posteriors with groups, written in NumPyro as their users write them; data from fixed seeds.

Every function returns ``(model, args, kwargs)`` for ``curvi.from_numpyro`` or ``numpyro.infer``.
The number in its docstring is D, the dimension of the unconstrained posterior. Group effects have
the same name in the centred and the not centred version of a model, so that both can be compared.
``latent_models`` holds series, fields and the small models; ``hierarchical`` lists all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import deterministic, plate, sample

Built = tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]


def with_data(model: Callable[..., None], **data: np.ndarray | float) -> Built:
    """The model with its data as keyword arguments, arrays as JAX arrays."""
    return model, (), {name: jnp.asarray(value) for name, value in data.items()}


def logistic_rows(rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    """Zeros and ones with log odds ``eta``."""
    return (eta + rng.logistic(size=eta.shape) > 0).astype(np.int32)


def _counties() -> dict[str, np.ndarray]:
    """919 measurements in 85 counties of very different size, one predictor of each kind."""
    rng = np.random.default_rng(101)
    share = rng.dirichlet(np.full(85, 0.7))
    county = np.concatenate([np.arange(85), rng.choice(85, size=919 - 85, p=share)])
    floor = (rng.uniform(size=919) < 0.2).astype(float)
    uranium = rng.normal(scale=0.4, size=85)
    effects = rng.multivariate_normal([0.0, 0.0], [[0.09, -0.03], [-0.03, 0.09]], size=85)
    intercept, slope = 1.4 + 0.7 * uranium + effects[:, 0], -0.65 + effects[:, 1]
    y = intercept[county] + slope[county] * floor + 0.75 * rng.normal(size=919)
    return {"county": county, "floor": floor, "uranium": uranium, "y": y}


def varying_slopes_centred() -> Built:
    """Varying intercepts and slopes of 85 groups, centred; D = 176."""

    def model(county, floor, uranium, y):
        level, slope = sample("level", dist.Normal(0, 5)), sample("slope", dist.Normal(0, 5))
        gamma = sample("gamma", dist.Normal(0, 2))
        tau_a, tau_b = sample("tau_a", dist.HalfNormal(1)), sample("tau_b", dist.HalfNormal(1))
        sigma = sample("sigma", dist.HalfNormal(2))
        with plate("counties", 85):
            a = sample("a", dist.Normal(level + gamma * uranium, tau_a))
            b = sample("b", dist.Normal(slope, tau_b))
        with plate("rows", len(y)):
            sample("y", dist.Normal(a[county] + b[county] * floor, sigma), obs=y)

    return with_data(model, **_counties())


def varying_slopes_lkj() -> Built:
    """The same data, correlated effects with an LKJ prior, not centred; D = 177."""

    def model(county, floor, uranium, y):
        level, slope = sample("level", dist.Normal(0, 5)), sample("slope", dist.Normal(0, 5))
        gamma = sample("gamma", dist.Normal(0, 2))
        tau = sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
        factor = sample("factor", dist.LKJCholesky(2, 2.0))
        sigma = sample("sigma", dist.HalfNormal(2))
        with plate("counties", 85):
            z = sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
        effects = z @ (tau[:, None] * factor).T
        a = deterministic("a", level + gamma * uranium + effects[:, 0])
        b = deterministic("b", slope + effects[:, 1])
        with plate("rows", len(y)):
            sample("y", dist.Normal(a[county] + b[county] * floor, sigma), obs=y)

    return with_data(model, **_counties())


def item_response() -> Built:
    """Two-parameter item response, 200 persons x 30 items; D = 262."""
    rng = np.random.default_rng(102)
    ability = rng.normal(size=200)
    easiness, discrimination = rng.normal(0.3, 1.0, size=30), rng.lognormal(0.0, 0.4, size=30)
    y = logistic_rows(rng, discrimination * (ability[:, None] + easiness))

    def model(y):
        mean, spread = sample("mean", dist.Normal(0, 2)), sample("spread", dist.HalfNormal(2))
        with plate("items", 30):
            easiness = sample("easiness", dist.Normal(mean, spread))
            discrimination = sample("discrimination", dist.LogNormal(0.0, 0.5))
        with plate("persons", 200):
            ability = sample("ability", dist.Normal(0, 1))
        logits = discrimination * (ability[:, None] + easiness)
        sample("y", dist.Bernoulli(logits=logits).to_event(2), obs=y)

    return with_data(model, y=y)


_SCHOOLS = {
    "y": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    "error": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
}


def eight_schools_centred() -> Built:
    """Rubin's eight schools, centred; D = 10."""

    def model(y, error):
        mu, tau = sample("mu", dist.Normal(0, 5)), sample("tau", dist.HalfCauchy(5))
        with plate("schools", 8):
            theta = sample("theta", dist.Normal(mu, tau))
            sample("y", dist.Normal(theta, error), obs=y)

    return with_data(model, **_SCHOOLS)


def eight_schools_noncentred() -> Built:
    """Rubin's eight schools, not centred; D = 10."""

    def model(y, error):
        mu, tau = sample("mu", dist.Normal(0, 5)), sample("tau", dist.HalfCauchy(5))
        with plate("schools", 8):
            eta = sample("eta", dist.Normal(0, 1))
            theta = deterministic("theta", mu + tau * eta)
            sample("y", dist.Normal(theta, error), obs=y)

    return with_data(model, **_SCHOOLS)


def overdispersed_counts() -> Built:
    """Counts of 400 rows in 40 groups with an effect of each row; D = 445."""
    rng = np.random.default_rng(103)
    group, x = np.repeat(np.arange(40), 10), rng.normal(size=400)
    eta = 1.0 + 0.4 * x + 0.5 * rng.normal(size=40)[group] + 0.4 * rng.normal(size=400)
    y = rng.poisson(np.exp(eta))

    def model(group, x, y):
        mu, beta = sample("mu", dist.Normal(0, 3)), sample("beta", dist.Normal(0, 1))
        tau = sample("tau", dist.HalfNormal(1))
        sigma, drift = sample("sigma", dist.HalfNormal(1)), sample("drift", dist.Normal(0, 1))
        with plate("groups", 40):
            a = sample("a", dist.Normal(0, tau))
        with plate("rows", 400):
            own = sample("own", dist.Normal(0, sigma))
            rate = jnp.exp(mu + beta * x + drift * x**2 + a[group] + own)
            sample("y", dist.Poisson(rate), obs=y)

    return with_data(model, group=group, x=x, y=y)


def nested_groups() -> Built:
    """Pupils in 60 schools in 12 districts, centred; D = 77."""
    rng = np.random.default_rng(104)
    school = np.repeat(np.arange(60), rng.integers(4, 16, size=60))
    district, x = np.repeat(np.arange(12), 5), rng.normal(size=len(school))
    levels = 0.6 * rng.normal(size=12)[district] + 0.4 * rng.normal(size=60)
    y = 2.0 + levels[school] + 0.5 * x + rng.normal(size=len(school))

    def model(school, district, x, y):
        mu, beta = sample("mu", dist.Normal(0, 5)), sample("beta", dist.Normal(0, 2))
        tau_district = sample("tau_district", dist.HalfNormal(1))
        tau_school, sigma = (
            sample("tau_school", dist.HalfNormal(1)),
            sample("sigma", dist.HalfNormal(2)),
        )
        with plate("districts", 12):
            d = sample("d", dist.Normal(mu, tau_district))
        with plate("schools", 60):
            s = sample("s", dist.Normal(d[district], tau_school))
        with plate("rows", len(y)):
            sample("y", dist.Normal(s[school] + beta * x, sigma), obs=y)

    return with_data(model, school=school, district=district, x=x, y=y)


def crossed_effects() -> Built:
    """Crossed random effects of 80 persons and 20 items, binary answers; D = 104."""
    rng = np.random.default_rng(105)
    person, item = np.repeat(np.arange(80), 20), np.tile(np.arange(20), 80)
    x = rng.normal(size=1600)
    eta = -0.4 + 0.6 * x + 0.9 * rng.normal(size=80)[person] + 0.7 * rng.normal(size=20)[item]
    y = logistic_rows(rng, eta)

    def model(person, item, x, y):
        mu, beta = sample("mu", dist.Normal(0, 3)), sample("beta", dist.Normal(0, 2))
        tau_person = sample("tau_person", dist.HalfNormal(1))
        tau_item = sample("tau_item", dist.HalfNormal(1))
        with plate("persons", 80):
            p = sample("p", dist.Normal(0, tau_person))
        with plate("items", 20):
            i = sample("i", dist.Normal(0, tau_item))
        with plate("rows", 1600):
            logits = mu + beta * x + p[person] + i[item]
            sample("y", dist.Bernoulli(logits=logits), obs=y)

    return with_data(model, person=person, item=item, x=x, y=y)


def few_rows_logistic() -> Built:
    """Binary rows, four in each of 150 groups, centred; D = 153."""
    rng = np.random.default_rng(106)
    group, x = np.repeat(np.arange(150), 4), rng.normal(size=600)
    y = logistic_rows(rng, -0.5 + 0.8 * x + 1.2 * rng.normal(size=150)[group])

    def model(group, x, y):
        mu, beta = sample("mu", dist.Normal(0, 3)), sample("beta", dist.Normal(0, 2))
        tau = sample("tau", dist.HalfNormal(1.5))
        with plate("groups", 150):
            a = sample("a", dist.Normal(mu, tau))
        with plate("rows", 600):
            sample("y", dist.Bernoulli(logits=a[group] + beta * x), obs=y)

    return with_data(model, group=group, x=x, y=y)


def beta_binomial() -> Built:
    """Success rates of 70 groups with a Beta distribution; D = 72."""
    rng = np.random.default_rng(107)
    trials = rng.integers(8, 50, size=70)
    y = rng.binomial(trials, rng.beta(2.0, 8.0, size=70))

    def model(trials, y):
        mean = sample("mean", dist.Beta(2, 2))
        size = sample("size", dist.LogNormal(2.5, 1.0))
        with plate("groups", 70):
            rate = sample("rate", dist.Beta(mean * size, (1 - mean) * size))
            sample("y", dist.Binomial(trials, probs=rate), obs=y)

    return with_data(model, trials=trials, y=y)


def negative_binomial() -> Built:
    """Overdispersed counts of 40 groups, not centred; D = 44."""
    rng = np.random.default_rng(108)
    group, x = np.repeat(np.arange(40), 8), rng.normal(size=320)
    mean = np.exp(1.2 + 0.5 * x + 0.5 * rng.normal(size=40)[group])
    y = rng.poisson(mean * rng.gamma(2.5, 1 / 2.5, size=320))

    def model(group, x, y):
        mu, beta = sample("mu", dist.Normal(0, 3)), sample("beta", dist.Normal(0, 2))
        tau, phi = sample("tau", dist.HalfNormal(1)), sample("phi", dist.LogNormal(1, 1))
        with plate("groups", 40):
            z = sample("z", dist.Normal(0, 1))
        a = deterministic("a", mu + tau * z)
        with plate("rows", 320):
            mean = jnp.exp(a[group] + beta * x)
            sample("y", dist.NegativeBinomial2(mean, phi), obs=y)

    return with_data(model, group=group, x=x, y=y)


def group_predictors() -> Built:
    """Fifty groups whose level follows two predictors of the group, centred; D = 56."""
    rng = np.random.default_rng(109)
    group, x = np.repeat(np.arange(50), 6), rng.normal(size=300)
    known = rng.normal(size=(50, 2))
    level = 1.0 + known @ np.array([0.8, -0.5]) + 0.3 * rng.normal(size=50)
    y = level[group] + 0.4 * x + 1.0 * rng.normal(size=300)

    def model(group, x, known, y):
        mu, beta = sample("mu", dist.Normal(0, 5)), sample("beta", dist.Normal(0, 2))
        gamma = sample("gamma", dist.Normal(0, 2).expand([2]).to_event(1))
        tau, sigma = sample("tau", dist.HalfNormal(1)), sample("sigma", dist.HalfNormal(2))
        with plate("groups", 50):
            a = sample("a", dist.Normal(mu + known @ gamma, tau))
        with plate("rows", 300):
            sample("y", dist.Normal(a[group] + beta * x, sigma), obs=y)

    return with_data(model, group=group, x=x, known=known, y=y)


def correlated_effects_centred() -> Built:
    """Counts, correlated intercepts and slopes of 30 groups, centred; D = 65."""
    rng = np.random.default_rng(110)
    group, x = np.repeat(np.arange(30), 10), rng.normal(size=300)
    effects = rng.multivariate_normal([1.0, 0.3], [[0.25, 0.08], [0.08, 0.09]], size=30)
    y = rng.poisson(np.exp(effects[group, 0] + effects[group, 1] * x))

    def model(group, x, y):
        mean = sample("mean", dist.Normal(0, 3).expand([2]).to_event(1))
        tau = sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
        factor = sample("factor", dist.LKJCholesky(2, 2.0))
        with plate("groups", 30):
            law = dist.MultivariateNormal(mean, scale_tril=tau[:, None] * factor)
            effects = sample("effects", law)
        with plate("rows", 300):
            rate = jnp.exp(effects[group, 0] + effects[group, 1] * x)
            sample("y", dist.Poisson(rate), obs=y)

    return with_data(model, group=group, x=x, y=y)


def weibull_frailty() -> Built:
    """Survival of 180 patients in 30 clinics with a frailty, censored at 2; D = 35."""
    rng = np.random.default_rng(111)
    clinic, x = np.repeat(np.arange(30), 6), rng.normal(size=(180, 2))
    log_scale = 0.5 + x @ np.array([0.4, -0.3]) + 0.4 * rng.normal(size=30)[clinic]
    time = np.exp(log_scale) * rng.weibull(1.5, size=180)
    seen = time < 2.0

    def model(clinic, x, time, seen):
        mu = sample("mu", dist.Normal(0, 2))
        beta = sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        shape, tau = sample("shape", dist.LogNormal(0, 0.5)), sample("tau", dist.HalfNormal(1))
        with plate("clinics", 30):
            frailty = sample("frailty", dist.Normal(0, tau))
        scale = jnp.exp(mu + x @ beta + frailty[clinic])
        hazard = (time / scale) ** shape
        log_event = jnp.log(shape / scale) + (shape - 1) * jnp.log(time / scale)
        with plate("patients", 180):
            numpyro.factor("survival", jnp.where(seen, log_event, 0.0) - hazard)

    return with_data(model, clinic=clinic, x=x, time=np.minimum(time, 2.0), seen=seen)
