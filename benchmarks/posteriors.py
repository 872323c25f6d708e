"""Twenty reference posteriors as log densities; their data and draws are read from CURVI_DATA.

Each is a log density of one unconstrained vector, with the map to the columns of the reference
draws and back. Supports: positive by exp, (0, 1) by the logistic function, ordered by increments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

HARD = {
    "eight_schools-eight_schools_centered",
    "gp_pois_regr-gp_regr",
    "hmm_example-hmm_example",
    "low_dim_gauss_mix-low_dim_gauss_mix",
    "garch-garch11",
}
LINEAR = {
    "diamonds-diamonds",
    "earnings-earn_height",
    "earnings-logearn_interaction",
    "kidiq-kidscore_interaction",
    "kidiq-kidscore_momhs",
    "kilpisjarvi_mod-kilpisjarvi",
    "mesquite-logmesquite_logva",
    "mesquite-mesquite",
    "nes1980-nes",
    "nes2000-nes",
    "sblrc-blr",
}


@dataclass(frozen=True)
class Density:
    """A log density of a vector, with its way to the natural scale and back."""

    dimension: int
    log_density: Callable
    constrain: Callable
    unconstrain: Callable
    rows: tuple[np.ndarray, np.ndarray] | None = None  # X and y of a regression with normal errors


@dataclass(frozen=True)
class Posterior:
    """A density with the reference means and sds of its parameters on the natural scale."""

    name: str
    density: Density
    mean: np.ndarray
    sd: np.ndarray
    parameters: list[str]
    data: dict
    draws: np.ndarray | None = None


def load(folder: Path, name: str) -> Posterior:
    """Read one posterior from the folder ``posteriordb``."""
    with np.load(folder / "posteriordb" / f"{name}.npz", allow_pickle=False) as file:
        data = {k.removeprefix("data_"): file[k] for k in file.files if k.startswith("data_")}
        data = {k: np.asarray(v, float) for k, v in data.items()}
        draws = file["draws"].astype(float)
        names = file["parameter_names"].tolist()
    mean, sd = draws.mean(axis=0), draws.std(axis=0, ddof=1)
    return Posterior(name, MODELS[name](data), mean, sd, names, data, draws)


def cauchy(x, scale):
    return -jnp.log1p((x / scale) ** 2)


def student3(x, location, scale):
    return -2.0 * jnp.log1p(((x - location) / scale) ** 2 / 3)


def normal(x, location, scale):
    return -0.5 * ((x - location) / scale) ** 2 - jnp.log(scale)


def logit(p):
    return np.log(p) - np.log1p(-p)


def last_positive(dimension, log_density) -> Density:
    """All coordinates real but the last, which is positive; log_density(reals, positive)."""

    def unconstrained(z):
        return log_density(z[:-1], jnp.exp(z[-1])) + z[-1]

    return Density(
        dimension,
        unconstrained,
        lambda z: jnp.concatenate([z[:-1], jnp.exp(z[-1:])]),
        lambda x: np.concatenate([x[:-1], np.log(x[-1:])]),
    )


def flat(_beta, _sigma):
    return 0.0


def regression(response, columns, prior=flat, intercept=True) -> Density:
    """Normal errors; flat unless a log prior of (beta, sigma) is given."""
    columns = [np.ones_like(response), *columns] if intercept else list(columns)
    X, y = jnp.asarray(np.stack(columns, axis=1)), jnp.asarray(response)

    def log_density(beta, sigma):
        residual = (y - X @ beta) / sigma
        return -0.5 * jnp.sum(residual**2) - len(y) * jnp.log(sigma) + prior(beta, sigma)

    found = last_positive(X.shape[1] + 1, log_density)
    return replace(found, rows=(np.asarray(X), np.asarray(y)))


def half_cauchy(_, sigma):
    return cauchy(sigma, 2.5)


def earn_height(d):
    return regression(d["earn"], [d["height"]])


def logearn_interaction(d):
    return regression(np.log(d["earn"]), [d["height"], d["male"], d["height"] * d["male"]])


def kidscore_momhs(d):
    return regression(d["kid_score"], [d["mom_hs"]], half_cauchy)


def kidscore_interaction(d):
    columns = [d["mom_hs"], d["mom_iq"], d["mom_hs"] * d["mom_iq"]]
    return regression(d["kid_score"], columns, half_cauchy)


def mesquite(d):
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return regression(d["weight"], [d[name] for name in names])


def logmesquite_logva(d):
    area = d["diam1"] * d["diam2"]
    columns = [np.log(area * d["canopy_height"]), np.log(area), d["group"]]
    return regression(np.log(d["weight"]), columns)


def nes(d):
    ages = [1.0 * (d["age_discrete"] == code) for code in (2, 3, 4)]
    columns = [d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"]]
    return regression(d["partyid7"], columns)


def kilpisjarvi(d):
    def prior(beta, _):
        return normal(beta[0], d["pmualpha"], d["psalpha"]) + normal(
            beta[1], d["pmubeta"], d["psbeta"]
        )

    return regression(d["y"], [d["x"]], prior)


def blr(d):
    def prior(beta, sigma):
        return jnp.sum(normal(beta, 0.0, 10.0)) + normal(sigma, 0.0, 10.0)

    return regression(d["y"], list(d["X"].T), prior, intercept=False)


def diamonds(d):
    X = jnp.asarray(d["X"][:, 1:] - d["X"][:, 1:].mean(axis=0))
    y = jnp.asarray(d["Y"])

    def log_density(reals, sigma):
        b, a = reals[:-1], reals[-1]
        residual = (y - a - X @ b) / sigma
        prior = -0.5 * jnp.sum(b**2) + student3(a, 8.0, 10.0) + student3(sigma, 0.0, 10.0)
        return -0.5 * jnp.sum(residual**2) - len(y) * jnp.log(sigma) + prior

    return replace(last_positive(26, log_density), rows=(np.asarray(X), np.asarray(y)))


def eight_schools_centered(d):
    y, s = jnp.asarray(d["y"]), jnp.asarray(d["sigma"])

    def log_density(reals, tau):
        theta, mu = reals[:8], reals[8]
        prior = normal(mu, 0.0, 5.0) + cauchy(tau, 5.0) + jnp.sum(normal(theta, mu, tau))
        return prior + jnp.sum(normal(y, theta, s))

    return last_positive(10, log_density)


def eight_schools_noncentered(d):
    y, s = jnp.asarray(d["y"]), jnp.asarray(d["sigma"])

    def log_density(z):
        eta, mu, tau = z[:8], z[8], jnp.exp(z[9])
        prior = normal(mu, 0.0, 5.0) + cauchy(tau, 5.0) - 0.5 * jnp.sum(eta**2)
        return prior + jnp.sum(normal(y, mu + tau * eta, s)) + z[9]

    def constrain(z):
        tau = jnp.exp(z[9])
        return jnp.concatenate([z[8] + tau * z[:8], z[8:9], tau[None]])

    def unconstrain(x):
        return np.concatenate([(x[:8] - x[8]) / x[9], x[8:9], np.log(x[9:])])

    return Density(10, log_density, constrain, unconstrain)


def low_dim_gauss_mix(d):
    y = jnp.asarray(d["y"])

    def constrain(z):
        mu = jnp.stack([z[0], z[0] + jnp.exp(z[1])])
        return jnp.concatenate([mu, jnp.exp(z[2:4]), jax.nn.sigmoid(z[4:])])

    def log_density(z):
        mu1, mu2, s1, s2, _ = constrain(z)
        log_w, log_v = jax.nn.log_sigmoid(z[4]), jax.nn.log_sigmoid(-z[4])
        rows = jnp.logaddexp(log_w + normal(y, mu1, s1), log_v + normal(y, mu2, s2))
        prior = -(mu1**2 + mu2**2 + s1**2 + s2**2) / 8 + 4 * (log_w + log_v)
        return jnp.sum(rows) + prior + z[1] + z[2] + z[3] + log_w + log_v

    def unconstrain(x):
        return np.array([x[0], np.log(x[1] - x[0]), np.log(x[2]), np.log(x[3]), logit(x[4])])

    return Density(5, log_density, constrain, unconstrain)


def ark(d):
    y = d["y"]
    lags = np.stack([y[5 - k : len(y) - k] for k in range(1, 6)], axis=1)

    def prior(beta, sigma):
        return jnp.sum(normal(beta, 0.0, 10.0)) + cauchy(sigma, 2.5)

    return regression(y[5:], list(lags.T), prior)


def arma11(d):
    y = jnp.asarray(d["y"])

    def log_density(reals, sigma):
        mu, phi, theta = reals
        first = y[0] - (mu + phi * mu)

        def step(before, pair):
            now = pair[1] - (mu + phi * pair[0] + theta * before)
            return now, now

        _, later = jax.lax.scan(step, first, (y[:-1], y[1:]))
        errors = jnp.concatenate([first[None], later])
        prior = normal(mu, 0.0, 10.0) + normal(phi, 0.0, 2.0) + normal(theta, 0.0, 2.0)
        return prior + cauchy(sigma, 2.5) + jnp.sum(normal(errors, 0.0, sigma))

    return last_positive(4, log_density)


def garch11(d):
    y, first = jnp.asarray(d["y"]), jnp.asarray(d["sigma1"]) ** 2

    def constrain(z):
        a1 = jax.nn.sigmoid(z[2])
        return jnp.stack([z[0], jnp.exp(z[1]), a1, (1 - a1) * jax.nn.sigmoid(z[3])])

    def log_density(z):
        mu, a0, a1, b1 = constrain(z)

        def step(variance, before):
            now = a0 + a1 * (before - mu) ** 2 + b1 * variance
            return now, now

        _, later = jax.lax.scan(step, first, y[:-1])
        variance = jnp.concatenate([first[None], later])
        rows = -0.5 * (y - mu) ** 2 / variance - 0.5 * jnp.log(variance)
        sig = jax.nn.log_sigmoid
        jacobian = z[1] + sig(z[2]) + 2 * sig(-z[2]) + sig(z[3]) + sig(-z[3])
        return jnp.sum(rows) + jacobian

    def unconstrain(x):
        return np.array([x[0], np.log(x[1]), logit(x[2]), logit(x[3] / (1 - x[2]))])

    return Density(4, log_density, constrain, unconstrain)


def hmm(d):
    y = jnp.asarray(d["y"])

    def constrain(z):
        p = jax.nn.sigmoid(z[:2])
        mu = jnp.stack([jnp.exp(z[2]), jnp.exp(z[2]) + jnp.exp(z[3])])
        return jnp.stack([p[0], 1 - p[0], p[1], 1 - p[1], mu[0], mu[1]])

    def log_density(z):
        sig = jax.nn.log_sigmoid
        moves = jnp.stack([sig(z[:2]), sig(-z[:2])], axis=1)  # row j: from state j
        mu = constrain(z)[4:]
        emission = -0.5 * (y[:, None] - mu[None]) ** 2

        def step(gamma, log_emission):
            return log_emission + logsumexp(gamma[:, None] + moves, axis=0), None

        last, _ = jax.lax.scan(step, emission[0], emission[1:])
        prior = normal(mu[0], 3.0, 1.0) + normal(mu[1], 10.0, 1.0)
        return logsumexp(last) + prior + jnp.sum(moves) + z[2] + z[3]

    def unconstrain(x):
        return np.array(
            [np.log(x[0] / x[1]), np.log(x[2] / x[3]), np.log(x[4]), np.log(x[5] - x[4])]
        )

    return Density(4, log_density, constrain, unconstrain)


def gp_regr(d):
    x, y = jnp.asarray(d["x"]), jnp.asarray(d["y"])
    squares = (x[:, None] - x[None]) ** 2

    def log_density(z):
        rho, alpha, sigma = jnp.exp(z)
        cov = alpha**2 * jnp.exp(-0.5 * squares / rho**2) + sigma * jnp.eye(len(x))
        chol = jnp.linalg.cholesky(cov)
        white = jax.scipy.linalg.solve_triangular(chol, y, lower=True)
        likelihood = -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diagonal(chol)))
        prior = 24 * z[0] - 4 * rho - alpha**2 / 8 - 0.5 * sigma**2
        return likelihood + prior + jnp.sum(z)

    return Density(3, log_density, jnp.exp, np.log)


def lotka_volterra(d):
    first, later = jnp.log(jnp.asarray(d["y_init"])), jnp.log(jnp.asarray(d["y"]))
    inner, width = 20, 1.0 / 20

    def log_density(z):
        theta, start, sigma = jnp.exp(z[:4]), z[4:6], jnp.exp(z[6:])

        def slope(w):
            prey, predator = jnp.exp(w)
            return jnp.stack([theta[0] - theta[1] * predator, -theta[2] + theta[3] * prey])

        def small(w, _):
            a = slope(w)
            b = slope(w + 0.5 * width * a)
            c = slope(w + 0.5 * width * b)
            e = slope(w + width * c)
            return w + width / 6 * (a + 2 * b + 2 * c + e), None

        def year(w, _):
            w, _ = jax.lax.scan(small, w, None, length=inner)
            return w, w

        _, path = jax.lax.scan(year, start, None, length=later.shape[0])
        likelihood = jnp.sum(normal(first, start, sigma))
        likelihood += jnp.sum(normal(later, path, sigma[None]))
        centre, spread = jnp.array([1, 0.05, 1, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
        prior = jnp.sum(norm.logpdf(theta, centre, spread)) + jnp.sum(z[:4])
        prior += jnp.sum(normal(start, jnp.log(10.0), 1.0)) + jnp.sum(normal(z[6:], -1.0, 1.0))
        return likelihood + prior

    return Density(8, log_density, jnp.exp, np.log)


MODELS = {
    "arK-arK": ark,
    "arma-arma11": arma11,
    "diamonds-diamonds": diamonds,
    "earnings-earn_height": earn_height,
    "earnings-logearn_interaction": logearn_interaction,
    "eight_schools-eight_schools_centered": eight_schools_centered,
    "eight_schools-eight_schools_noncentered": eight_schools_noncentered,
    "garch-garch11": garch11,
    "gp_pois_regr-gp_regr": gp_regr,
    "hmm_example-hmm_example": hmm,
    "hudson_lynx_hare-lotka_volterra": lotka_volterra,
    "kidiq-kidscore_interaction": kidscore_interaction,
    "kidiq-kidscore_momhs": kidscore_momhs,
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "low_dim_gauss_mix-low_dim_gauss_mix": low_dim_gauss_mix,
    "mesquite-logmesquite_logva": logmesquite_logva,
    "mesquite-mesquite": mesquite,
    "nes1980-nes": nes,
    "nes2000-nes": nes,
    "sblrc-blr": blr,
}
