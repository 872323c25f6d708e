"""Posteriors with very many groups: seconds of a step, of whole fits, and of NUTS.

``python -m benchmarks groups [--steps 100,1000,10000,99000] [--fits 600,2000] [--nuts 600]
[--only steps|fits|nuts]``: processor seconds of a natural-gradient step on a logistic model with
that many varying intercepts, with the slope of its logarithm; fits with nothing chosen of a model
with varying intercepts and slopes (D = 2 groups + 4); and NUTS until 400 effective draws of the
worst parameter, with the distance between the two answers. What one part measures is added to the
others in ``results/groups.json``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import curvi
from benchmarks.common import log_log_slope, recorded
from curvi.engine import Resources, VariationalProblem
from curvi.inference._first import draws_for, method_for, sparse_family
from curvi.inference._initial import around
from curvi.objective import fixed_draws

ROWS = 3  # of every group
_TIMED = 5  # steps
_ENOUGH = 400  # effective draws of NUTS
_CHAINS, _WARM = 4, 1000


def intercepts(groups: int) -> curvi.Target:
    """Logistic rows with an intercept for every group."""
    rng = np.random.default_rng(groups)
    effect = rng.normal(size=groups)
    y = jnp.asarray(rng.logistic(size=(groups, ROWS)) < effect[:, None], jnp.float32)

    def log_density(p: dict[str, jax.Array]) -> jax.Array:
        logits = p["effect"][:, None]
        likelihood = jnp.sum(y * logits - jnp.logaddexp(0.0, logits))
        scaled = (p["effect"] - p["mean"]) * jnp.exp(-p["log_sd"])
        prior = -0.5 * jnp.sum(scaled**2) - groups * p["log_sd"]
        return likelihood + prior - 0.5 * (p["mean"] ** 2 + p["log_sd"] ** 2)

    zero = jnp.zeros(())
    start = {"effect": jnp.zeros(groups), "mean": zero, "log_sd": zero}
    return curvi.Target(log_density, start)


def slopes(groups: int) -> tuple[Any, dict[str, jax.Array]]:
    """A NumPyro model of logistic rows with intercepts and slopes for every group, and its data."""
    import numpyro.distributions as dist
    from numpyro import plate, sample

    rng = np.random.default_rng(groups)
    group = np.repeat(np.arange(groups), ROWS)
    x = rng.normal(size=len(group))
    effect = rng.normal(size=(groups, 2)) * [1.0, 0.6]
    y = rng.logistic(size=len(group)) < effect[group, 0] + (0.5 + effect[group, 1]) * x

    def model(group: jax.Array, x: jax.Array, y: jax.Array) -> None:
        level, slope = sample("level", dist.Normal(0, 2)), sample("slope", dist.Normal(0, 2))
        spread = sample("spread", dist.HalfNormal(1)), sample("spread_slope", dist.HalfNormal(1))
        with plate("groups", groups):
            a = sample("a", dist.Normal(level, spread[0]))
            b = sample("b", dist.Normal(slope, spread[1]))
        sample("y", dist.Bernoulli(logits=a[group] + b[group] * x), obs=y)

    data = {"group": group, "x": x.astype(np.float32), "y": y.astype(np.int32)}
    return model, {name: jnp.asarray(values) for name, values in data.items()}


def step_seconds(groups: int) -> float:
    """Processor seconds of one step, on average over some of them."""
    target = intercepts(groups)
    family, dimension = sparse_family(target), target.dimension
    assert family is not None  # noqa: S101  for the type checker
    plan, key = draws_for(family, dimension), jax.random.key(0)
    noise = fixed_draws(key, plan, dimension, family.base, target.dtype)
    problem = VariationalProblem(target.density, family, plan, dimension, None)
    start = around(family, target.start, 0.3)
    stepper = method_for(dimension).stepper(problem, start, Resources(key, target.rows, noise))
    assert stepper is not None  # noqa: S101
    stepper.prepare()
    stepper.step(0.0)  # compiles
    begin = time.process_time()
    for _ in range(_TIMED):
        stepper.step(0.0)
    return (time.process_time() - begin) / _TIMED


def fit_seconds(groups: int) -> tuple[dict[str, Any], Any]:
    """One fit with nothing chosen, compilation included."""
    model, data = slopes(groups)
    jax.clear_caches()
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = curvi.from_numpyro(model, **data)
        result = curvi.fit(target, progress=False, on_failure="return")
        _ = result.mean, result.sd
    row = {
        "dimension": target.dimension,
        "seconds": time.process_time() - begin,
        "flagged": bool(result.warnings) or not result.converged,
        "rungs": [f"{rung.name}: {rung.note}" for rung in result.rungs],
    }
    return row, result


def sampled(groups: int, centred: float) -> Sampled:
    """NUTS on the model, its effects centred or not."""
    from numpyro import handlers
    from numpyro.infer import NUTS
    from numpyro.infer.reparam import LocScaleReparam

    model, data = slopes(groups)
    model = handlers.reparam(model, config={site: LocScaleReparam(centred) for site in "ab"})
    jax.clear_caches()

    def values(draws: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([v.reshape(*v.shape[:2], -1) for v in draws.values()], axis=-1)

    return nuts(lambda: NUTS(model), values, seed=1, arguments=data)


def against_nuts(groups: int) -> dict[str, Any]:
    """The fit beside NUTS: seconds of both, and how far apart their answers are.

    NUTS takes the model as it is written, and with effects that are not centred; the faster counts.
    """
    row, result = fit_seconds(groups)
    runs = {centred: sampled(groups, centred) for centred in (1.0, 0.0)}
    best = min(runs.values(), key=lambda run: run.seconds)
    written, drawn = runs[1.0], best.draws
    row["nuts_as_written"] = {"seconds": written.seconds, "ess": written.ess}
    row |= {"nuts_seconds": best.seconds, "nuts_compiling": best.compiling, "nuts_ess": best.ess}
    row["of_nuts"] = row["seconds"] / row["nuts_seconds"]
    errors, ratios = [], []
    for name in result.mean:
        mean, sd = drawn[name].mean(axis=(0, 1)), drawn[name].std(axis=(0, 1))
        errors.append(float(np.max(np.abs(np.asarray(result.mean[name]) - mean) / sd)))
        ratios += [np.min(np.asarray(result.sd[name]) / sd), np.max(result.sd[name] / sd)]
    row |= {"worst_mean": max(errors), "sds": [float(min(ratios)), float(max(ratios))]}
    return row


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Print what is measured, and add it to what was."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks groups")
    parser.add_argument("--steps", default="100,1000,10000,99000")
    parser.add_argument("--fits", default="600,2000")
    parser.add_argument("--nuts", default="600")
    parser.add_argument("--only", default="steps,fits,nuts")
    given = parser.parse_args(arguments or [])
    found = recorded("groups")
    found.pop("provenance", None)
    only = given.only.split(",")

    def counts(text: str) -> list[int]:
        return [int(part) for part in text.split(",") if part]

    if "steps" in only:
        seconds = {groups: step_seconds(groups) for groups in counts(given.steps)}
        slope = log_log_slope([float(g) for g in seconds], list(seconds.values()))
        found["steps"] = {"seconds": {str(g): s for g, s in seconds.items()}, "slope": slope}
        print(f"  seconds per step {seconds}, slope {slope:.2f}")
    for part, measure in (("fits", lambda g: fit_seconds(g)[0]), ("nuts", against_nuts)):
        if part in only:
            for groups in counts(getattr(given, part)):
                found.setdefault(part, {})[str(groups)] = row = measure(groups)
                print(f"  {groups} groups: {row}", flush=True)
    return found
