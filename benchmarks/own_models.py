"""Ten posteriors of our own: logistic, Poisson and hierarchical models on simulated data.

The data follow from fixed seeds. The references are means and sds from long NUTS runs, written to
``results/own_references.json`` by ``python -m benchmarks.own_models``. Every model is a log
density of one unconstrained vector; positive parameters are exponentials.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from benchmarks.posteriors import Density, Posterior, normal
from curvi._core.files import write_atomically

REFERENCES = Path(__file__).parent / "results" / "own_references.json"
CHAINS, WARMUP, DRAWS = 4, 1000, 20_000
Layout = tuple[tuple[str, int, bool], ...]  # name, length, whether positive


@dataclass(frozen=True)
class OwnModel:
    """Data, the parameters in order, and ``log_joint(parameters, data)`` on the natural scale."""

    layout: Layout
    data: dict[str, np.ndarray]
    log_joint: Callable[[dict, dict], jax.Array]

    @property
    def dimension(self) -> int:
        return sum(length for _, length, _ in self.layout)

    @property
    def parameters(self) -> list[str]:
        return [f"{name}[{i}]" for name, length, _ in self.layout for i in range(length)]

    @property
    def positive(self) -> np.ndarray:
        return np.concatenate([np.full(length, flag) for _, length, flag in self.layout])

    def density(self) -> Density:
        """The log density of the unconstrained vector, Jacobian included."""
        data = {name: jnp.asarray(value) for name, value in self.data.items()}
        # Plain functions and arrays only: two fits of the same model then share compiled code.
        positive, layout, log_joint = self.positive, self.layout, self.log_joint

        def constrain(z):
            return jnp.where(positive, jnp.exp(z), z)

        def log_density(z):
            jacobian = jnp.sum(jnp.where(positive, z, 0.0))
            return log_joint(split(constrain(z), layout), data) + jacobian

        def unconstrain(x):
            return np.where(positive, np.log(np.where(positive, x, 1.0)), x)

        return Density(self.dimension, log_density, constrain, unconstrain)


def split(x, layout: Layout) -> dict:
    """A vector of parameters by name."""
    found, begin = {}, 0
    for name, length, _ in layout:
        found[name] = x[begin : begin + length]
        begin += length
    return found


def half_normal(x, scale):
    return jnp.sum(-0.5 * (x / scale) ** 2)


def design(rng, num_rows, width, correlation=0.0):
    shared = rng.normal(size=(num_rows, 1))
    own = rng.normal(size=(num_rows, width - 1))
    columns = np.sqrt(1 - correlation) * own + np.sqrt(correlation) * shared
    return np.column_stack([np.ones(num_rows), columns])


def bernoulli(eta, y):
    return jnp.sum(jax.nn.log_sigmoid(jnp.where(y > 0, eta, -eta)))


def poisson(eta, y):
    return jnp.sum(y * eta - jnp.exp(eta))


def logistic(seed, num_rows, width, correlation) -> OwnModel:
    rng = np.random.default_rng(seed)
    X = design(rng, num_rows, width, correlation)
    y = 1.0 * (X @ rng.normal(size=width) + rng.logistic(size=num_rows) > 0)

    def log_joint(p, d):
        return bernoulli(d["X"] @ p["beta"], d["y"]) + jnp.sum(normal(p["beta"], 0.0, 2.5))

    return OwnModel((("beta", width, False),), {"X": X, "y": y}, log_joint)


def poisson_offset() -> OwnModel:
    rng = np.random.default_rng(3)
    X, exposure = design(rng, 150, 4), rng.uniform(0.5, 5.0, size=150)
    beta = np.array([0.3, 0.5, -0.4, 0.2])
    y = 1.0 * rng.poisson(exposure * np.exp(X @ beta))

    def log_joint(p, d):
        eta = d["X"] @ p["beta"] + jnp.log(d["exposure"])
        return poisson(eta, d["y"]) + jnp.sum(normal(p["beta"], 0.0, 2.5))

    data = {"X": X, "exposure": exposure, "y": y}
    return OwnModel((("beta", 4, False),), data, log_joint)


def robust_regression() -> OwnModel:
    rng = np.random.default_rng(4)
    X = design(rng, 120, 4)
    y = X @ np.array([1.0, -0.5, 0.8, 0.0]) + 0.7 * rng.standard_t(4, size=120)

    def log_joint(p, d):
        scaled = (d["y"] - d["X"] @ p["beta"]) / p["sigma"]
        rows = -2.5 * jnp.log1p(scaled**2 / 4) - jnp.log(p["sigma"])
        return jnp.sum(rows) + jnp.sum(normal(p["beta"], 0.0, 2.5)) + half_normal(p["sigma"], 2.0)

    return OwnModel((("beta", 4, False), ("sigma", 1, True)), {"X": X, "y": y}, log_joint)


def negative_binomial() -> OwnModel:
    rng = np.random.default_rng(5)
    X = design(rng, 200, 4)
    mean = np.exp(X @ np.array([1.0, 0.4, -0.3, 0.2]))
    y = 1.0 * rng.poisson(mean * rng.gamma(3.0, 1 / 3.0, size=200))

    def log_joint(p, d):
        eta, phi, y = d["X"] @ p["beta"], p["phi"], d["y"]
        rows = gammaln(y + phi) - gammaln(phi) + phi * jnp.log(phi) + y * eta
        rows -= (y + phi) * jnp.logaddexp(jnp.log(phi), eta)
        prior = jnp.sum(normal(p["beta"], 0.0, 2.5))
        return jnp.sum(rows) + prior + jnp.sum(normal(jnp.log(phi), 1.0, 1.0) - jnp.log(phi))

    return OwnModel((("beta", 4, False), ("phi", 1, True)), {"X": X, "y": y}, log_joint)


def grouped(seed, num_groups, each):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(num_groups), each)
    return rng, group, rng.normal(size=num_groups * each)


def varying(p, d):
    """mu + tau eta[group] + beta x, with its priors."""
    linear = p["mu"] + p["tau"] * p["eta"][d["group"]] + p["beta"] * d["x"]
    prior = normal(p["mu"], 0.0, 5.0) + normal(p["beta"], 0.0, 2.5)
    return linear, jnp.sum(prior) + half_normal(p["tau"], 1.0) - 0.5 * jnp.sum(p["eta"] ** 2)


def intercepts(num_groups, *more) -> Layout:
    return (
        ("mu", 1, False), ("beta", 1, False), ("tau", 1, True), *more, ("eta", num_groups, False)
    )  # fmt: skip


def varying_intercept_normal() -> OwnModel:
    rng, group, x = grouped(6, 20, 10)
    y = 1.0 + 0.8 * rng.normal(size=20)[group] + 0.5 * x + rng.normal(size=len(x))

    def log_joint(p, d):
        linear, prior = varying(p, d)
        return jnp.sum(normal(d["y"], linear, p["sigma"])) + prior + half_normal(p["sigma"], 2.0)

    layout = intercepts(20, ("sigma", 1, True))
    return OwnModel(layout, {"group": group, "x": x, "y": y}, log_joint)


def varying_intercept_logistic() -> OwnModel:
    rng, group, x = grouped(7, 15, 30)
    linear = -0.5 + 0.9 * rng.normal(size=15)[group] + 0.8 * x
    y = 1.0 * (linear + rng.logistic(size=len(x)) > 0)

    def log_joint(p, d):
        eta, prior = varying(p, d)
        return bernoulli(eta, d["y"]) + prior

    return OwnModel(intercepts(15), {"group": group, "x": x, "y": y}, log_joint)


def multilevel_poisson() -> OwnModel:
    rng, group, x = grouped(8, 15, 12)
    y = 1.0 * rng.poisson(np.exp(0.7 + 0.6 * rng.normal(size=15)[group] + 0.3 * x))

    def log_joint(p, d):
        eta, prior = varying(p, d)
        return poisson(eta, d["y"]) + prior

    return OwnModel(intercepts(15), {"group": group, "x": x, "y": y}, log_joint)


def varying_slopes() -> OwnModel:
    rng, group, x = grouped(9, 12, 15)
    start, slope = 1 + 0.7 * rng.normal(size=12), -0.5 + 0.5 * rng.normal(size=12)
    y = start[group] + slope[group] * x + 0.8 * rng.normal(size=len(x))

    def log_joint(p, d):
        linear, prior = varying(p, d)
        linear += p["tau_slope"] * p["eta_slope"][d["group"]] * d["x"]
        prior += half_normal(p["tau_slope"], 1.0) - 0.5 * jnp.sum(p["eta_slope"] ** 2)
        return jnp.sum(normal(d["y"], linear, p["sigma"])) + prior + half_normal(p["sigma"], 2.0)

    layout = intercepts(12, ("sigma", 1, True), ("tau_slope", 1, True), ("eta_slope", 12, False))
    return OwnModel(layout, {"group": group, "x": x, "y": y}, log_joint)


def thirty_schools() -> OwnModel:
    rng = np.random.default_rng(10)
    spread = rng.uniform(5.0, 15.0, size=30)
    y = 4.0 + 6.0 * rng.normal(size=30) + spread * rng.normal(size=30)

    def log_joint(p, d):
        theta = p["mu"] + p["tau"] * p["eta"]
        prior = jnp.sum(normal(p["mu"], 0.0, 10.0)) + half_normal(p["tau"], 10.0)
        rows = normal(d["y"], theta, d["spread"])
        return jnp.sum(rows) + prior - 0.5 * jnp.sum(p["eta"] ** 2)

    layout = (("mu", 1, False), ("tau", 1, True), ("eta", 30, False))
    return OwnModel(layout, {"y": y, "spread": spread}, log_joint)


OWN = {
    "own-logistic": lambda: logistic(1, 200, 5, 0.0),
    "own-logistic_correlated": lambda: logistic(2, 300, 8, 0.8),
    "own-poisson_offset": poisson_offset,
    "own-robust_regression": robust_regression,
    "own-negative_binomial": negative_binomial,
    "own-varying_intercept_normal": varying_intercept_normal,
    "own-varying_intercept_logistic": varying_intercept_logistic,
    "own-multilevel_poisson": multilevel_poisson,
    "own-varying_slopes": varying_slopes,
    "own-thirty_schools": thirty_schools,
}


def reference(model: OwnModel) -> dict:
    """Means, sds and their Monte-Carlo errors by NumPyro's NUTS."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    density = model.density()
    kernel = NUTS(potential_fn=lambda z: -density.log_density(z), target_accept_prob=0.9)
    run = MCMC(
        kernel, num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS, progress_bar=False,
        chain_method="vectorized",
    )  # fmt: skip
    starts = 0.1 * np.random.default_rng(0).normal(size=(CHAINS, model.dimension))
    run.run(jax.random.key(0), init_params=jnp.asarray(starts))
    x = np.asarray(jax.vmap(jax.vmap(density.constrain))(run.get_samples(group_by_chain=True)))
    size = effective_sample_size(x)
    return {
        "mean": x.mean(axis=(0, 1)).tolist(),
        "sd": x.reshape(-1, model.dimension).std(axis=0, ddof=1).tolist(),
        "mean_error_in_sds": float((1 / np.sqrt(size)).max()),
        "rhat": float(split_gelman_rubin(x).max()),
        "parameters": model.parameters,
    }


def write_references(names: list[str]) -> None:
    """Run NUTS on the named models, or on all; minutes."""
    found = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    with jax.enable_x64(True):
        for name in names or OWN:
            found[name] = reference(OWN[name]())
            print(f"  {name}: {found[name]['mean_error_in_sds']:.4f} sd, {found[name]['rhat']:.4f}")
            write_atomically(REFERENCES, json.dumps(found, indent=1) + "\n")


def load(name: str) -> Posterior:
    """One of our own models with its reference."""
    model, known = OWN[name](), json.loads(REFERENCES.read_text())[name]
    mean, sd = np.asarray(known["mean"]), np.asarray(known["sd"])
    return Posterior(name, model.density(), mean, sd, known["parameters"], model.data)


if __name__ == "__main__":
    write_references(sys.argv[1:])
