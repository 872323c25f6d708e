"""Auto-encoders: seconds to a test bound of KFAC against tuned Adam and Adagrad on MNIST, unchanged
defaults on other data, the price of products, memory, and few labels.

Stage one tunes Adam over its complete grid, and Adagrad, on the last 5,000 training images
(:mod:`benchmarks.vae_tuning`). In stage two the contenders alternate on new seeds and are judged on
the test images: 784-500-20-500-784, grey levels as probabilities, M = 1. Under KFAC the encoder
reads the leading 200 principal directions, under the others all pixels. Results are kept after
every stage. ``python -m benchmarks.bench_vae [--quick]``; about 25 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import curvi
from benchmarks.common import (
    NEEDS_DATA,
    RESULTS,
    data_folder,
    interleaved,
    keep,
    median_ratio,
    verdict,
)
from benchmarks.vae_labels import accuracies, few_labels
from benchmarks.vae_runs import TARGETS, Run, reached, splits
from benchmarks.vae_tuning import ADAGRAD, ADAM, RUNGS, Cell, first_order, halving
from curvi.vae import MLPObjective, initial_params

GOALS = {-110.0: 2.5, -105.0: 2.0, -102.0: 1.5}
ADAGRAD_GOAL = 5.0
RACE_SECONDS = 45.0
PRODUCT_GOAL, MEMORY_GOAL = 3.0, 8 * 2**30
KFAC = curvi.KFAC()
HF = curvi.HessianFree(preconditioner="kronecker", cg_steps=10, curvature_rows=500)
SETS = {"digits": ("bernoulli", 10), "frey": ("gaussian", 20), "olivetti": ("gaussian", 100)}


def say(text: str) -> None:
    print(f"  {text}", flush=True)


def tuning(quick: bool) -> dict:
    """Stage one: for every target the Adam and the Adagrad that get there first."""
    X, held = splits(curvi.datasets.load("mnist"))
    rungs = ((0.3, 0.25), (0.6, 0.5)) if quick else RUNGS
    results = {}
    for name, grid, steps in (("adam", ADAM, rungs), ("adagrad", ADAGRAD, rungs[-2:])):
        began = time.perf_counter()
        choice, table = halving(name, grid[:: 7 if quick else 1], X, held, rungs=steps, report=say)
        chosen = {
            str(target): {"cell": cell._asdict(), "averaged": averaged}
            for target, (cell, averaged) in choice.items()
        }
        results[name] = {"choice": chosen, "grid": table, "seconds": time.perf_counter() - began}
        say(f"{name}: {chosen}")
    return results


def label(name: str, choice: dict) -> str:
    """The name of a tuned rival."""
    kind = "averaged" if choice["averaged"] else "last"
    return f"{name} {' '.join(str(value) for value in choice['cell'].values())} {kind}"


def contenders(tuned: dict, rows: int) -> dict:
    """Methods with their batch size and scale of the first weights; KFAC first."""
    found = {"kfac": (KFAC, 100, None)}
    for name, results in tuned.items():
        for choice in results["choice"].values():
            cell = Cell(**choice["cell"])
            method = first_order(name, cell, rows, averaged=choice["averaged"])
            found.setdefault(label(name, choice), (method, cell.batch, cell.init))
    return found | {"hessian_free": (HF, 2000, None)}


def race(tuned: dict, quick: bool) -> dict:
    """Stage two: alternating runs on new seeds, judged on test images."""
    data = curvi.datasets.load("mnist")
    X, held = data.train[0], jnp.asarray(data.test[0])
    rounds: list[dict] = []
    goals = _goals(tuned)
    for seed in range(1, 2 if quick else 6):
        row = {}
        for name, (method, batch, scale) in contenders(tuned, len(X)).items():
            if name.startswith(("adagrad", "hessian_free")) and seed > 1:
                continue
            run = Run(method, X, held, batch=batch, scale=scale, seed=seed)
            path = run.until(2.0 if quick else RACE_SECONDS, goal=goals.get(name, np.inf)).path
            row[name] = {"to": {str(t): reached(path, t) for t in TARGETS},
                         "final": path[-1].averaged, "seconds": path[-1].seconds,
                         "steps": path[-1].step,
                         "path": [[look.seconds, look.averaged] for look in path]}  # fmt: skip
            say(f"seed {seed} {name}: {row[name]['to']}, final {row[name]['final']:.2f}")
        rounds.append(row)
        if not quick:
            keep("vae_race", {"rounds": rounds})
    rivals = {
        name: {target: label(name, choice) for target, choice in results["choice"].items()}
        for name, results in tuned.items()
    }
    (RESULTS / "vae_race.json").unlink(missing_ok=True)  # all of it is in what is returned
    rivals["hessian_free"] = {str(target): "hessian_free" for target in GOALS}
    ratios = _ratios(rounds, rivals)
    return {"rounds": rounds, "rivals": rivals, "ratios": ratios, "met": _met(rounds, ratios)}


def _goals(tuned: dict) -> dict:
    """Where an Adam has done what it was chosen for; the one for the last bound runs on."""
    goals: dict[str, float] = {}
    for target, choice in tuned["adam"]["choice"].items():
        name, goal = label("adam", choice), float(target)
        goals[name] = max(goals.get(name, goal), goal)
    return {name: goal if goal < max(GOALS) else np.inf for name, goal in goals.items()}


def _ratios(rounds: list[dict], rivals: dict) -> dict:
    """Medians of rival / kfac seconds.

    What the rival never reached counts as its whole run, what kfac never reached as zero.
    """
    ratios = {}
    for rival, labels_ in rivals.items():
        for target, name in labels_.items():
            pairs = [
                (r[name]["to"][target], r[name]["seconds"], r["kfac"]["to"][target])
                for r in rounds
                if name in r
            ]
            found = [0.0 if b is None else (a or most) / b for a, most, b in pairs]
            ratios[f"{rival} {target}"] = {
                "ratio": statistics.median(found),
                "pairs": len(found),
                "at_least": any(a is None for a, _, _ in pairs),
            }
    return ratios


def _after_equal_time(row: dict) -> bool:
    """Whether kfac's bound at the end of the shorter run is at least that of every Adam then."""

    def at(name: str, end: float) -> float:
        path = np.asarray(row[name]["path"])
        return float(np.interp(end, path[:, 0], path[:, 1]))

    rivals = [name for name in row if name.startswith("adam ")]
    ends = {name: min(row[name]["seconds"], row["kfac"]["seconds"]) for name in rivals}
    return all(at("kfac", end) >= at(name, end) for name, end in ends.items())


def _met(rounds: list[dict], ratios: dict) -> dict:
    goals = {f"adam {target}": goal for target, goal in GOALS.items()}
    goals |= {f"adagrad {target}": ADAGRAD_GOAL for target in GOALS}
    met = {name: ratios[name]["ratio"] >= goal for name, goal in goals.items()}
    met["bound after equal time"] = all(_after_equal_time(r) for r in rounds)
    for name, ok in met.items():
        say(f"{name}: {verdict(ok)} ({ratios.get(name, {}).get('ratio')})")
    return met


def images(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Training and test images of a small data set; a tenth is for testing."""
    if name == "digits":
        from sklearn.datasets import load_digits

        X = (load_digits().data / 16).astype(np.float32)
    else:
        X = curvi.datasets.load(name).train[0]
    order = np.random.default_rng(0).permutation(len(X))
    return X[order[len(X) // 10 :]], X[order[: len(X) // 10]]


def fitted(X, test, likelihood: str, latent: int, method, budget: float, **more) -> dict:
    """Best validation bound, when it was reached, the path to it, and what test images say."""
    options = {"latent": latent, "hidden": (200,), "likelihood": likelihood, "method": method,
               "random_state": 0, **more}  # fmt: skip
    curvi.VAE(**options, max_epochs=1).fit(X)  # compiles
    model = curvi.VAE(**options, max_epochs=100_000, time_budget=budget, patience=50).fit(X)
    bounds, seconds = model.history_["validation_elbo"], model.history_["seconds"]
    finite = np.isfinite(bounds)
    return {
        "bound": model.elbo_,
        "seconds_to_best": float(seconds[int(np.nanargmax(bounds))]),
        "test_bound": float(model.score(test)),
        "test_squared_error": float(np.mean((model.reconstruct(test) - test) ** 2)),
        "path": np.stack([seconds, bounds], axis=1)[finite].tolist(),
    }


def defaults(name: str, quick: bool) -> dict:
    """Stage three: unchanged defaults on other data; Adam and Adagrad at their best rates."""
    (X, test), (likelihood, latent) = images(name), SETS[name]
    budget = 1.0 if quick else 8.0 if name == "frey" else 5.0
    rows = {}
    for method in ("kfac", "hessian_free", "lbfgs"):
        rows[method] = fitted(X, test, likelihood, latent, method, budget)
    for rate in (0.01,) if quick else (0.003, 0.01, 0.03):
        adagrad = curvi.FirstOrder(optax.adagrad(rate))
        rows[f"adagrad {rate:g}"] = fitted(X, test, likelihood, latent, adagrad, budget)
    for rate in (1e-3,) if quick else (1e-3, 3e-3, 1e-2):
        adam = curvi.Averaged(curvi.FirstOrder(optax.adam(rate)))
        for scale in (None, 0.01) if name == "frey" and not quick else (None,):
            key = f"adam {rate:g} init {scale}"
            rows[key] = fitted(X, test, likelihood, latent, adam, budget, init_scale=scale)
    for key, row in rows.items():
        say(f"{name} {key}: bound {row['bound']:.2f} at {row['seconds_to_best']:.1f} s, "
            f"test squared error {row['test_squared_error']:.5f}")  # fmt: skip
    ratios = {
        "adam / kfac": _times_as_long(rows, "adam", "kfac"),
        "adagrad / kfac": _times_as_long(rows, "adagrad", "kfac"),
        "adagrad / hessian_free": _times_as_long(rows, "adagrad", "hessian_free"),
    }
    say(f"{name}, seconds to the best bound of the first: {ratios}")
    return {"runs": rows, "ratios": ratios}


def _times_as_long(rows: dict, rival: str, ours: str) -> float | None:
    """Seconds of the rival's best setting to its best bound, over ours to that; None if never."""
    best = max((row for k, row in rows.items() if k.startswith(f"{rival} ")),
               key=lambda row: row["bound"])  # fmt: skip
    sooner = next((s for s, b in rows[ours]["path"] if b >= best["bound"]), None)
    return None if sooner is None else best["seconds_to_best"] / sooner


def products(quick: bool) -> dict:
    """Seconds of a product with the linearised Gauss-Newton matrix over those of a gradient."""
    generator = np.random.default_rng(0)
    X = jnp.asarray(generator.random((500, 784)), jnp.float32)
    params = initial_params(generator, inputs=784, hidden=(500,), latent=20)
    objective, key = MLPObjective(), jax.random.key(0)

    @jax.jit
    def several(params, count):
        _, gradient, operator = objective.gauss_newton(params, X, key)
        return jax.lax.fori_loop(0, count, lambda _, v: operator.apply(v), gradient)

    gradient = jax.jit(jax.value_and_grad(objective))
    calls = {
        "gradient": lambda: gradient(params, X, key),
        "one": lambda: several(params, 1),
        "eleven": lambda: several(params, 11),
    }
    table = interleaved(calls, 3 if quick else 15)
    each = [(b - a) / 10 for a, b in zip(table["one"], table["eleven"], strict=True)]
    ratio = median_ratio(each, table["gradient"])
    say(f"a product costs {ratio:.2f} gradients: {verdict(ratio <= PRODUCT_GOAL)}")
    return {"ratio": ratio, "met": ratio <= PRODUCT_GOAL}


def large_model() -> None:
    """Train more than 10^7 parameters for an epoch; prints what it took, for :func:`memory`."""
    X = np.random.default_rng(0).random((2000, 784)).astype(np.float32)
    model = curvi.VAE(latent=20, hidden=(2100, 1600), max_epochs=1, random_state=0).fit(X)
    count = sum(leaf.size for leaf in jax.tree.leaves(model.params_))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"parameters": count, "peak_bytes": peak, "steps": model.n_iter_}))


def memory() -> dict:
    """Peak memory of a training run with more than 10^7 parameters, in a process of its own."""
    code = "from benchmarks.bench_vae import large_model; large_model()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    row = json.loads(done.stdout.splitlines()[-1])
    row["met"] = row["parameters"] > 10**7 and row["peak_bytes"] < MEMORY_GOAL
    peak = row["peak_bytes"] / 2**30
    say(f"{row['parameters']} parameters: {peak:.1f} GiB: {verdict(row['met'])}")
    return row


def labels(quick: bool) -> dict:
    """Stage four: MNIST with 1,000 labels, against logistic regression on the same labels."""
    data = curvi.datasets.load("mnist")
    (X, y), test = data.train, data.test
    options = {"epochs": (1, 1), "budget": 5.0} if quick else {}
    rows = accuracies(X, few_labels(y, seed=0), *test, **options)
    say(f"accuracy with 1,000 labels: {rows}")
    return rows


def main(quick: bool = False) -> dict:
    result: dict = {"quick": quick, "cores": os.cpu_count(), "products": products(quick)}

    def stage(name, call):
        result[name] = call()
        if not quick:
            keep("vae", result)

    stage("digits", lambda: defaults("digits", quick))
    stage("memory", memory)
    if data_folder() is None:
        say(NEEDS_DATA)
        return result
    stage("tuning", lambda: tuning(quick))
    stage("mnist", lambda: race(result["tuning"], quick))
    for name in ("frey", "olivetti"):
        stage(name, lambda name=name: defaults(name, quick))
    stage("labels", lambda: labels(quick))
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds per run, nothing is kept")
    main(parser.parse_args().quick)
