"""Two conjugate problems with a known posterior: a Normal mean, and a regression at full rank."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import curvi
from benchmarks.common import verdict

TARGET_MEAN, TARGET_COVARIANCE = 1e-6, 1e-5
STEPS = 2000
# Prior N(0, 10^2), five observations of sd 1: posterior mean 8.0, sd 0.447.
OBSERVED = 8.0 * (5 + 1e-2) / 5 + np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
TRUE_MEAN = float(OBSERVED.sum() / (OBSERVED.size + 1e-2))
TRUE_SD = float((OBSERVED.size + 1e-2) ** -0.5)


def log_density(z):
    return -0.5 * jnp.sum((jnp.asarray(OBSERVED, z.dtype) - z) ** 2) - 0.5 * (z / 10) ** 2


def by_curvi() -> tuple[float, float, str]:
    result = curvi.fit(log_density, jnp.zeros(()), progress=False)
    return float(result.mean), float(result.sd), result.message


def by_numpyro() -> tuple[float, float, str]:
    import numpyro
    from numpyro import distributions
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    def model(observed):
        mean = numpyro.sample("mean", distributions.Normal(0, 10))
        numpyro.sample("observed", distributions.Normal(mean, 1), obs=observed)

    guide = autoguide.AutoNormal(model)
    svi = SVI(model, guide, numpyro.optim.Adam(5e-4), Trace_ELBO())
    observed = jnp.asarray(OBSERVED, jnp.float32)
    run = svi.run(jax.random.key(0), STEPS, observed, progress_bar=False)
    return (
        float(run.params["mean_auto_loc"]),
        float(run.params["mean_auto_scale"]),
        "none",
    )


def by_blackjax() -> tuple[float, float, str]:
    import blackjax

    method = blackjax.meanfield_vi(log_density, optax.adam(1e-3), 100)
    state = method.init(jnp.zeros(()))

    def body(state, key):
        return method.step(key, state)

    state, _ = jax.lax.scan(body, state, jax.random.split(jax.random.key(0), STEPS))
    return float(state.mu), float(jnp.exp(state.rho)), "none"


def measured(fit: Callable[[], tuple[float, float, str]]) -> dict:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        mean, sd, message = fit()
        seconds = time.perf_counter() - start
    return {
        "mean": mean,
        "sd": sd,
        "error_in_sds": abs(mean - TRUE_MEAN) / TRUE_SD,
        "seconds_with_compilation": seconds,
        "message": message,
        "warnings": [f"{w.category.__name__}: {w.message}"[:120] for w in caught],
    }


def normal() -> dict:
    table = {}
    peers = {
        "curvi.fit": by_curvi,
        "NumPyro AutoNormal Adam(5e-4) x 2000": by_numpyro,
        "BlackJAX meanfield_vi Adam(1e-3) x 2000": by_blackjax,
    }
    print(f"  Normal: posterior mean {TRUE_MEAN:.4f}, sd {TRUE_SD:.4f}")
    for name, fit in peers.items():
        try:
            table[name] = measured(fit)
        except ImportError as error:
            table[name] = {"skipped": str(error)}
            print(f"  {name:41s} not installed")
            continue
        row = table[name]
        print(
            f"  {name:41s} mean {row['mean']:7.4f}  sd {row['sd']:.4f}  "
            f"off by {row['error_in_sds']:8.2g} sds  warnings: {len(row['warnings'])}"
        )
    return table


def regression(rows: int, columns: int, seed: int) -> dict:
    """Linear regression with correlated columns, noise sd 0.5 and prior N(0, 1), at full rank."""
    rng = np.random.default_rng(seed)
    mixing = np.eye(columns) + 0.5 * rng.normal(size=(columns, columns)) / columns**0.5
    X = rng.normal(size=(rows, columns)) @ mixing
    y = X @ rng.normal(size=columns) + 0.5 * rng.normal(size=rows)
    precision = X.T @ X / 0.25 + np.eye(columns)
    covariance = np.linalg.inv(precision)
    mean = covariance @ (X.T @ y) / 0.25
    target = curvi.DataTarget(
        lambda z, data: -0.5 * (data[1] - data[0] @ z) ** 2 / 0.25,
        (jnp.asarray(X), jnp.asarray(y)),
        lambda z: -0.5 * jnp.sum(z**2),
        jnp.zeros(columns),
    )
    result = curvi.fit(target, family=curvi.FullRank(), progress=False)
    sds = np.sqrt(np.diag(covariance))
    error = np.asarray(result.covariance()) - covariance
    return {
        "rows": rows,
        "dimension": columns,
        "converged": result.converged,
        "steps": result.steps,
        "seconds_with_compilation": result.seconds,
        "mean_error_in_sds": float(np.max(np.abs(np.asarray(result.mean) - mean) / sds)),
        "covariance_relative_error": float(np.linalg.norm(error) / np.linalg.norm(covariance)),
    }


def main() -> dict:
    peers = normal()
    with jax.enable_x64(True):
        regressions = [regression(200, 5, 0), regression(500, 20, 1), regression(300, 60, 2)]
    print("  linear regression, FullRank, float64, default fit")
    for row in regressions:
        print(
            f"  D = {row['dimension']:3d}: mean error {row['mean_error_in_sds']:.1e} sds, "
            f"covariance {row['covariance_relative_error']:.1e}, {row['steps']} steps, "
            f"{row['seconds_with_compilation']:.2f} s, converged {row['converged']}"
        )
    ours = peers["curvi.fit"]
    met = {
        "normal_mean_within_0.01_sd": ours["error_in_sds"] < 0.01,
        "regression_mean": all(r["mean_error_in_sds"] <= TARGET_MEAN for r in regressions),
        "regression_covariance": all(
            r["covariance_relative_error"] <= TARGET_COVARIANCE for r in regressions
        ),
    }
    for name, ok in met.items():
        print(f"  {name}: {verdict(ok)}")
    return {
        "true": {"mean": TRUE_MEAN, "sd": TRUE_SD},
        "normal": peers,
        "regression": regressions,
        "targets": {"mean_sds": TARGET_MEAN, "covariance_relative": TARGET_COVARIANCE},
        "met": met,
    }
