"""Bayesian logistic regression against its peers: processor time to a bound, compilation apart.

a9a with a normal prior against NumPyro's AutoNormal with Adam, on a cosine schedule and at constant
rates, the soonest setting of a pilot key run with five others; a table of indicators against
SciPy's L-BFGS on the same bound; a9a, duke and leukemia with the relevance prior against DSVI.
Options: `--seeds N` fits with a relevance prior, `--seconds S` of every run of a rival.
`python -m benchmarks.bench_regression --quick` runs a shrunken copy and writes nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import curvi
from benchmarks import indicators
from benchmarks.clocks import pin_to_one_core, spent
from benchmarks.common import NEEDS_DATA, data_folder
from curvi.glm._dense import DenseBound
from curvi.glm._rows import WholeTable
from curvi.likelihoods import Bernoulli
from curvi.paper.experiments._methods import LARGE, SMALL, load_rows, newton_run
from curvi.paper.experiments._runs import design, errors, run_setting, steps_to

REFERENCE = -10780.496  # optimum of the normal-prior bound on a9a
NORMAL_NATS, LARGE_NATS, SMALL_NATS = 15.0, 30.0, 2.0
EVALUATE_EVERY = 50


WARM_FITS = 5


def timed_fit(X, y, **options):
    """A fit: processor seconds, the median of later ones (compiled), the last one by the clock."""
    seconds = []
    for _ in range(1 + WARM_FITS):
        model = curvi.BayesianLogisticRegression(
            standardize=False, covariance="diagonal", **options
        )
        began, wall = time.process_time(), time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y)
        seconds.append(time.process_time() - began)
        wall = time.perf_counter() - wall
    return model, (seconds[0], float(np.median(seconds[1:])), wall)


class Schedule(NamedTuple):
    """A rate of Adam as users give it: constant, or a cosine from it to zero."""

    rate: float
    batch: int | None = None
    steps: int | None = None  # of the cosine

    def __str__(self) -> str:
        """In a few words."""
        rate = f"{self.rate:g}" if self.steps is None else f"cosine {self.rate:g}, {self.steps}"
        return rate + f", batches of {self.batch}" * (self.batch is not None)


CONSTANT = [Schedule(r, b) for r in (0.1, 0.05, 0.02, 0.01) for b in (None, 1000)]
COSINE = [Schedule(r, None, n) for r in (0.05, 0.1, 0.2, 0.4) for n in (200, 400, 600, 1200)]
KEYS = range(1, 6)  # key 0 is that of the pilot runs


def numpyro_run(X, y, schedule, goal, budget, key=0):
    """Adam on AutoNormal until the exact bound is above the goal or the budget is spent."""
    import numpyro
    import numpyro.distributions as dist
    import optax
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    matrix, batch = design(X), schedule.batch
    table = WholeTable(matrix, y.astype(float), np.ones(len(y)))
    exact = DenseBound(False, np.ones(matrix.shape[1]), Bernoulli(), table)
    data = jnp.asarray(matrix, jnp.float32)
    label = jnp.asarray(y > 0, jnp.int32)

    def model():
        beta = numpyro.sample("beta", dist.Normal(jnp.zeros(matrix.shape[1]), 1.0).to_event(1))
        with numpyro.plate("rows", len(y), subsample_size=batch) as index:
            numpyro.sample("y", dist.Bernoulli(logits=data[index] @ beta), obs=label[index])

    guide = AutoNormal(model, init_scale=0.01)
    most = schedule.steps
    rate = schedule.rate if most is None else optax.cosine_decay_schedule(schedule.rate, most)
    svi = SVI(model, guide, optax.adam(rate), Trace_ELBO())
    state = svi.init(jax.random.key(key))

    @jax.jit
    def chunk(state):
        return jax.lax.fori_loop(0, EVALUATE_EVERY, lambda _, s: svi.update(s)[0], state)

    with spent() as compiling:
        compiled = chunk.lower(state).compile()
    clock, best, reached, step = 0.0, -np.inf, None, 0
    while clock < budget and reached is None and (most is None or step < most):
        began = time.process_time()
        state = jax.block_until_ready(compiled(state))
        clock, step = clock + time.process_time() - began, step + EVALUATE_EVERY
        params = svi.get_params(state)
        mean, sd = (np.asarray(params[f"beta_auto_{k}"], float) for k in ("loc", "scale"))
        bound = -exact.value(exact.join(mean, sd))
        best = max(best, bound)
        reached = clock if bound >= goal else None
    return {
        "schedule": str(schedule), "key": key, "seconds": reached, "steps": step,
        "best_bound": best, "compile_seconds": compiling.seconds,
    }  # fmt: skip


def numpyro_race(X, y, schedules, goal, budget):
    """The setting that is soonest in a pilot run, then the median over keys of its own."""
    pilots = [numpyro_run(X, y, one, goal, budget) for one in schedules]
    reached = [i for i, run in enumerate(pilots) if run["seconds"] is not None]
    if not reached:
        return {"pilots": pilots, "chosen": None, "runs": [], "seconds": None}
    chosen = min(reached, key=lambda i: pilots[i]["seconds"])
    runs = [numpyro_run(X, y, schedules[chosen], goal, budget, key) for key in KEYS]
    times = sorted(np.inf if run["seconds"] is None else run["seconds"] for run in runs)
    median = times[len(times) // 2]
    return {
        "pilots": pilots, "chosen": str(schedules[chosen]), "runs": runs,
        "seconds": None if np.isinf(median) else median,
        "compile_seconds": float(np.median([run["compile_seconds"] for run in runs])),
    }  # fmt: skip


def rows_of(name, quick):
    """Training and test rows; few of them in a quick run."""
    (X, y), test = load_rows(name)
    return ((X[:2000], y[:2000]), test) if quick else ((X, y), test)


def normal_prior(quick, budget=None):
    """(a) a9a, normal prior of scale 1 on all columns, the intercept included."""
    (X, y), _ = rows_of("a9a", quick)
    model, seconds = timed_fit(X, y)
    goal = (model.elbo_ if quick else REFERENCE) - NORMAL_NATS
    # Like is compared with like: what the fit spends after the rivals' goal is taken off.
    trace = model.result_.trace
    reached = int(np.argmax(trace["elbo"] >= goal))
    after = float(trace["seconds"][-1] - trace["seconds"][reached]) / seconds[2]  # of the last fit
    to_goal = (1 - after) * seconds[1]
    limit = budget or (3.0 if quick else 12.0)
    races = {
        name: numpyro_race(X, y, found[:1] if quick else found, goal, limit)
        for name, found in (("cosine", COSINE), ("constant", CONSTANT))
    }
    best = min((race["seconds"] for race in races.values() if race["seconds"]), default=None)
    return {
        "elbo": model.elbo_,
        "gap_to_reference": None if quick else model.elbo_ - REFERENCE,
        "seconds_first": seconds[0],
        "seconds_warm": seconds[1],
        "seconds_to_goal": to_goal,
        "numpyro": races,
        "numpyro_seconds": best,
        "numpyro_budget": limit,
        "speedup": (limit if best is None else best) / to_goal,
        "speedup_whole_fit": (limit if best is None else best) / seconds[1],
        "at_least": best is None,
    }


def relevance_prior(name, nats, quick, seeds=10, budget=None):
    """(c) The relevance prior, ours against the best DSVI setting."""
    (X, y), test = rows_of(name, quick)
    seeds = range(2 if quick else seeds)
    newton_run(X, y, seed=0)  # compiles
    ours = []
    for seed in seeds:
        began = time.process_time()
        fitted = newton_run(X, y, seed=seed)
        ours.append((time.process_time() - began, fitted))
    bounds = [fitted.last for _, fitted in ours]
    goal = float(np.median(bounds)) - nats
    settings = (LARGE if len(X) > 1000 else SMALL)["DSVI"]
    seconds = float(np.median([t for t, _ in ours]))
    # Like is compared with like: our seconds until the bound is as good as what DSVI is asked for.
    arrived = [first_time(fitted, goal) for _, fitted in ours]
    to_goal = float(np.median([np.inf if t is None else t for t in arrived]))
    times = 6 if name == "a9a" else 11  # enough to see whether DSVI needs 5 or 10 times as long
    limit = budget or (2.0 if quick else max(25.0, times * seconds))
    dsvi = [run_setting(s, X, y, seed=0, seconds=limit) for s in settings[: 1 if quick else None]]
    reached = [first_time(run, goal) for run in dsvi]
    best = min((t for t in reached if t is not None), default=None)
    return {
        "elbo": bounds,
        "converged": [fitted.outcome.name for _, fitted in ours],
        "train_errors": [errors(fitted.mean, X, y) for _, fitted in ours],
        "test_errors": [errors(fitted.mean, *test) for _, fitted in ours],
        "seconds": seconds,
        "seconds_to_goal": to_goal,
        "dsvi": [
            {"setting": str(s), "best_bound": float(np.nanmax(r.bound)), "seconds": t}
            for s, r, t in zip(settings, dsvi, reached, strict=False)
        ],
        "dsvi_seconds": best,
        "dsvi_budget": limit,
        "speedup": (limit if best is None else best) / to_goal,
        "speedup_whole_fit": (limit if best is None else best) / seconds,
        "at_least": best is None,
    }


def first_time(run, goal):
    """Seconds at the first evaluation at which the bound is above the goal."""
    good = np.flatnonzero(run.bound >= goal)
    return float(run.seconds[good[0]]) if good.size else None


def hfsgvi_iterations(name, quick):
    """Steps until HFSGVI stays within two nats of where it ends, with every candidate setting."""
    (X, y), _ = rows_of(name, quick)
    table = []
    for setting in SMALL["HFSGVI"][: 1 if quick else None]:
        runs = [run_setting(setting, X, y, seed=s, seconds=3.0) for s in range(1 if quick else 5)]
        table.append(
            {
                "setting": str(setting),
                "steps": [steps_to(r, r.last - SMALL_NATS) for r in runs],
                "bounds": [r.last if np.isfinite(r.last) else None for r in runs],
                "starts": [float(r.bound[0]) for r in runs],
            }
        )
    return table


def main(options: Sequence[str] = ()) -> dict:
    """Measure everything and print one line for each part."""
    if data_folder() is None:
        raise SystemExit(NEEDS_DATA)
    parser = argparse.ArgumentParser(prog="python -m benchmarks regression")
    parser.add_argument("--quick", action="store_true", help="a shrunken copy")
    parser.add_argument("--seeds", type=int, default=10, help="fits with a relevance prior")
    parser.add_argument("--seconds", type=float, help="of every run of a rival")
    chosen = parser.parse_args(list(options))
    quick, budget = chosen.quick, chosen.seconds
    pin_to_one_core()
    parts: dict[str, Callable[[], Any]] = {
        "a9a_normal": lambda: normal_prior(quick, budget),
        "one_hot": lambda: indicators.measured(quick, budget),
        "a9a": lambda: relevance_prior("a9a", LARGE_NATS, quick, chosen.seeds, budget),
        "duke": lambda: relevance_prior("duke", SMALL_NATS, quick, chosen.seeds, budget),
        "leukemia": lambda: relevance_prior("leukemia", SMALL_NATS, quick, chosen.seeds, budget),
        "hfsgvi_iterations": lambda: {n: hfsgvi_iterations(n, quick) for n in ("duke", "leukemia")},
    }
    result = {}
    for name, measure in parts.items():
        result[name] = measure()
        print(f"  {name}:", short(result[name]), flush=True)
    return result | {"quick": True} if quick else result


def short(part: dict) -> dict:
    """What is printed of a part."""
    names = (
        "elbo", "seconds", "seconds_to_goal", "seconds_warm", "cpu_seconds", "numpyro_seconds",
        "dsvi_seconds", "scipy", "speedup", "speedup_whole_fit",
        "at_least",
    )  # fmt: skip
    return {name: part[name] for name in names if name in part} or part


if __name__ == "__main__":
    main(sys.argv[1:])
