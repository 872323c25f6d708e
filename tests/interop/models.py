"""One model with four textbook parts, in each library, and its answer in closed form.

The parts are independent, so a mean-field fit of the whole is a mean-field fit of each: a Normal
mean, a Bernoulli probability with a Beta prior, a Poisson rate with a Gamma prior, and a
hierarchical Normal with known variances.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy import optimize, special

# Prior N(0, 10^2), five observations of unit noise: posterior mean 8.0, sd 0.447.
NORMAL = 8.0 * (5 + 1e-2) / 5 + np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
COINS = np.array([1.0] * 27 + [0.0] * 13)
COUNTS = np.array([3, 5, 2, 4, 6, 1, 3, 2, 4, 4, 3, 5, 2, 3, 6])
GROUPS = np.array([1.5, -0.5, 2.5])


def import_pymc():
    """PyMC imports ArviZ, which announces its next version with a warning once a day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import pymc

    return pymc


def numpyro_model(normal, coins, counts, groups):
    import numpyro
    import numpyro.distributions as dist

    mean = numpyro.sample("mean", dist.Normal(0, 10))
    numpyro.sample("y", dist.Normal(mean, 1), obs=normal)
    chance = numpyro.sample("chance", dist.Beta(2, 2))
    numpyro.sample("coins", dist.Bernoulli(chance), obs=coins)
    rate = numpyro.sample("rate", dist.Gamma(3, 1))
    numpyro.sample("counts", dist.Poisson(rate), obs=counts)
    centre = numpyro.sample("centre", dist.Normal(0, 5))
    with numpyro.plate("group", len(groups)):
        effect = numpyro.sample("effect", dist.Normal(centre, 1))
        numpyro.sample("groups", dist.Normal(effect, 1), obs=groups)
    numpyro.deterministic("odds", chance / (1 - chance))


def numpyro_arguments(dtype):
    real = [np.asarray(values, dtype) for values in (NORMAL, COINS)]
    return *real, COUNTS.astype(np.int32), np.asarray(GROUPS, dtype)


def pymc_model():
    pm = import_pymc()
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        mean = pm.Normal("mean", 0, 10)
        pm.Normal("y", mean, 1, observed=NORMAL)
        chance = pm.Beta("chance", 2, 2)
        pm.Bernoulli("coins", chance, observed=COINS.astype(int))
        rate = pm.Gamma("rate", 3, 1)
        pm.Poisson("counts", rate, observed=COUNTS)
        centre = pm.Normal("centre", 0, 5)
        effect = pm.Normal("effect", centre, 1, dims="group")
        pm.Normal("groups", effect, 1, observed=GROUPS, dims="group")
        pm.Deterministic("odds", chance / (1 - chance))
    return model


def beta_optimum(a: float, b: float) -> tuple[float, float]:
    """Mean and sd of the logistic of z under the Gaussian z closest to Beta(a, b)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()

    def divergence(params):
        z = params[0] + np.exp(params[1]) * nodes
        return -weights @ (a * special.log_expit(z) + b * special.log_expit(-z)) - params[1]

    found = optimize.minimize(divergence, [0.0, -1.0], tol=1e-12).x
    p = special.expit(found[0] + np.exp(found[1]) * nodes)
    mean = weights @ p
    return mean, (weights @ (p - mean) ** 2) ** 0.5


def _precision_of_groups() -> np.ndarray:
    joint = np.diag([1 / 25 + 3.0, 2.0, 2.0, 2.0])
    joint[0, 1:] = joint[1:, 0] = -1.0
    return joint


def best_gaussian() -> dict[str, tuple]:
    """Mean and sd of each site under the mean-field Gaussian (of the free coordinates) closest
    to the posterior. For Gamma(a, b) on the log scale: variance 1/a, and the mean is exact.
    """
    precision = len(NORMAL) + 1e-2
    shape, scale = 3 + COUNTS.sum(), 1 / (1 + len(COUNTS))
    joint = _precision_of_groups()
    both = np.linalg.solve(joint, np.concatenate([[0.0], GROUPS]))
    sds = np.diag(joint) ** -0.5
    return {
        "mean": (NORMAL.sum() / precision, precision**-0.5),
        "chance": beta_optimum(2 + COINS.sum(), 2 + (1 - COINS).sum()),
        "rate": (shape * scale, shape * scale * np.expm1(1 / shape) ** 0.5),
        "centre": (both[0], sds[0]),
        "effect": (both[1:], sds[1:]),
    }


def exact() -> dict[str, tuple]:
    """Mean and sd of every site under the posterior; those of the groups are jointly Gaussian."""
    closest = best_gaussian()
    sds = np.diag(np.linalg.inv(_precision_of_groups())) ** 0.5
    a, b = 2 + COINS.sum(), 2 + (1 - COINS).sum()
    shape, rate = 3 + COUNTS.sum(), 1 + len(COUNTS)
    return {
        "mean": closest["mean"],
        "centre": (closest["centre"][0], sds[0]),
        "effect": (closest["effect"][0], sds[1:]),
        "chance": (a / (a + b), (a * b / (a + b + 1)) ** 0.5 / (a + b)),
        "rate": (shape / rate, shape**0.5 / rate),
    }


def assert_right(result) -> None:
    """Against the posterior itself.

    The default fit weights draws of a q that all but is the posterior: their Monte-Carlo error is
    some thousandths of an sd.
    """
    assert result.converged, result.message
    for name, (mean, sd) in exact().items():
        assert np.abs((np.asarray(result.mean[name]) - mean) / sd).max() < 0.02, name
        assert np.abs(np.asarray(result.sd[name]) / sd - 1).max() < 0.02, name
