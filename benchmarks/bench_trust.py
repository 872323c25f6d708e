"""What trust costs: the Monte-Carlo error against the fit, linear response against the fit."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.clocks import pin_to_one_core

SEEDS = 40
KINDS = ("iid", "antithetic", "normalised", "whitened", "sobol")


def timed(call):
    began = time.process_time()
    value = call()
    return value, time.process_time() - began


def logistic(num_rows: int, width: int):
    import curvi

    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, width))
    weights = rng.normal(size=width) / width**0.5
    y = np.where(x @ weights + rng.logistic(size=num_rows) > 0, 1.0, -1.0)

    def log_likelihood(z, rows):
        return jax.nn.log_sigmoid(rows["y"] * (rows["x"] @ z))

    def log_prior(z):
        return -0.5 * jnp.sum(z**2)

    return curvi.DataTarget(log_likelihood, {"x": x, "y": y}, log_prior, np.zeros(width))


def error_by_kind() -> dict:
    """Reported Monte-Carlo error over the spread of the optimum, and its cost over the fit's."""
    import curvi

    target, table = logistic(40, 10), {}
    for kind in KINDS:
        means, reported, fits, errors, sds = [], [], [], [], []
        for seed in range(SEEDS):
            result, seconds = timed(
                lambda seed=seed, kind=kind: curvi.fit(
                    target, draws=kind, num_draws=32, seed=seed, progress=False
                )
            )
            means.append(np.asarray(result.mean))
            sds.append(np.asarray(result.sd))
            error, extra = timed(lambda result=result: result.mc_error)
            reported.append(error)
            fits.append(seconds)
            errors.append(extra)
        spread = (np.std(means, axis=0, ddof=1) / np.mean(sds, axis=0)).max()
        table[kind] = {
            "reported": float(np.median(reported)),
            "spread": float(spread),
            "fit_seconds": float(np.median(fits[1:])),
            "error_seconds": float(np.median(errors[1:])),
        }
    return table


def chain(position):
    """A stochastic volatility-like chain: neighbours are coupled, observations are Poisson."""
    steps = position[1:] - 0.9 * position[:-1]
    return jnp.sum(2 * position - jnp.exp(position)) - 2 * jnp.sum(steps**2)


def response_at_scale(dimension: int = 10_000, outputs: int = 20) -> dict:
    """Linear response of 20 quantities against the fit, both with and without compilation."""
    import curvi

    target = curvi.Target(chain, np.zeros(dimension))
    options = {"family": curvi.MeanField(), "progress": False}
    result, first_fit = timed(lambda: curvi.fit(target, **options))
    _, warm_fit = timed(lambda: curvi.fit(target, seed=1, **options))

    def quantities(position):
        return jnp.mean(position.reshape(outputs, -1), axis=1)

    def respond():
        return np.asarray(result.linear_response(quantities))

    sds, first = timed(respond)
    _, warm = timed(respond)
    return {
        "dimension": dimension,
        "outputs": outputs,
        "converged": bool(result.converged),
        "fit_first": first_fit,
        "fit_warm": warm_fit,
        "response_first": first,
        "response_warm": warm,
        "smallest_sd": float(sds.min()),
        "largest_sd": float(sds.max()),
    }


def main() -> dict:
    pin_to_one_core()
    with jax.enable_x64(True):
        kinds, response = error_by_kind(), response_at_scale()
    for kind, row in kinds.items():
        print(
            f"  {kind:11s} reported {row['reported']:.4f}, spread over {SEEDS} seeds "
            f"{row['spread']:.4f}; fit {1e3 * row['fit_seconds']:.0f} ms, error "
            f"{1e3 * row['error_seconds']:.0f} ms"
        )
    print(
        f"  linear response, D = {response['dimension']}, {response['outputs']} quantities: "
        f"{response['response_first']:.2f} s with compilation, {response['response_warm']:.2f} s "
        f"without; fit {response['fit_first']:.2f} s and {response['fit_warm']:.2f} s"
    )
    met = {
        "error_within_1.5": all(
            1 / 1.5 < row["reported"] / row["spread"] < 1.5 for row in kinds.values()
        ),
        "response_cheaper_than_fit": response["response_first"] < response["fit_first"],
        "response_cheaper_than_fit_warm": response["response_warm"] < response["fit_warm"],
    }
    for name, ok in met.items():
        print(f"  {name}: {'met' if ok else 'MISSED'}")
    return {"seeds": SEEDS, "kinds": kinds, "response": response, "met": met}
