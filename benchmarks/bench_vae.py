"""Auto-encoders: seconds to a test bound of KFAC against tuned Adam and Adagrad on MNIST, unchanged
defaults on other data, the price of products, memory, and few labels.

Stage one tunes Adam over its complete grid, and Adagrad, on the last 5,000 training images
(:mod:`benchmarks.vae_tuning`). In stage two the contenders alternate on new seeds and are judged on
the test images: 784-500-20-500-784, grey levels as probabilities, M = 1. Under KFAC and
Hessian-free the encoder reads the leading 200 principal coordinates, under the others all pixels;
the best Adam also runs on the coordinates and with the gradients of KFAC, and KFAC on all
directions, with the total gradients of the others, and with a horizon. A run lasts until its
schedule ends. Finished stages and races are kept, and a run that was
interrupted goes on with the next one as long as the commit is the same.
The race counts processor seconds. ``python -m benchmarks vae [--quick] [--stages NAME ...]``; about
50 minutes on one idle core.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial

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
    recorded,
    verdict,
)
from benchmarks.vae_labels import accuracies, few_labels
from benchmarks.vae_race import SEEDS, known_parts, patient_adagrad, race, say
from benchmarks.vae_runs import splits
from benchmarks.vae_tuning import (
    ADAGRAD,
    ADAGRAD_RATES,
    ADAM,
    ADAM_RATES,
    RUNGS,
    at_the_edge,
    halving,
)
from curvi.paper.experiments._provenance import provenance
from curvi.paper.experiments._vae_runs import (
    CANDIDATES,
    CASES,
    Candidate,
    Case,
    Images,
    Job,
    Model,
    finished,
    images,
    tuned,
)
from curvi.vae import MLPObjective, initial_params

PRODUCT_GOAL, MEMORY_GOAL = 3.0, 8 * 2**30
FACES = {"digits": Case("digits", 10, 200, "bernoulli", 10.0), **CASES}
ADAM_CANDIDATES = tuple(
    Candidate(
        f"rate {rate:g}",
        curvi.Averaged(curvi.FirstOrder(optax.adam(rate), check_updates=False)),
        100,
    )
    for rate in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
)


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
        rates = ADAM_RATES if name == "adam" else ADAGRAD_RATES
        edges = [t for t, (cell, _) in choice.items() if at_the_edge(cell, rates)]
        results[name] = {"choice": chosen, "grid": table, "at_the_edge": edges,
                         "seconds": time.perf_counter() - began}  # fmt: skip
        say(f"{name}: {chosen}; at the edge of the rates: {edges or 'none'}")
    return results


def faces(name: str, quick: bool) -> dict:
    """Stage three: unchanged defaults on other data; rates of the rivals tuned on a pilot seed.

    Evaluations come by the clock. Of every method the run of each seed.
    """
    case, data = FACES[name], images(name) if name != "digits" else _digits()
    seconds, folder = 1.0 if quick else 6.0, RESULTS / "vae_runs"
    model = Model(None, 1e-4, case.hidden)
    candidates = {**CANDIDATES, "adam": ADAM_CANDIDATES}
    runs: dict[str, list] = {}
    chosen = {}
    for method in ("kfac", "hessian_free", "lbfgs", "adagrad", "adam"):
        several = candidates[method][:1] if quick else candidates[method]
        chosen[method] = tuned(case, model, method, data, folder, seconds, several)
        jobs = [Job(case, model, method, chosen[method], seed, seconds)
                for seed in range(1 if quick else SEEDS)]  # fmt: skip
        runs[method] = [finished(job, data, folder) for job in jobs]
        say(f"{name} {method} {chosen[method].name}: {[round(r.best, 2) for r in runs[method]]}")
    rows = {
        method: {
            "setting": chosen[method].name,
            "bound": statistics.median(run.best for run in several),
            "seconds_to_best": statistics.median(run.seconds_to(run.best) for run in several),
            "test_bound": statistics.median(run.test_bound for run in several),
            "test_squared_error": statistics.median(run.test_squared_error for run in several),
        }
        for method, several in runs.items()
    }
    ratios = {
        f"{rival} / {ours}": [
            _times_as_long(*pair) for pair in zip(runs[rival], runs[ours], strict=True)
        ]
        for rival, ours in (("adam", "kfac"), ("adagrad", "kfac"), ("adagrad", "hessian_free"),
                            ("lbfgs", "hessian_free"))
    }  # fmt: skip
    say(f"{name}, seconds to the best bound of the first over those of the second: {ratios}")
    return {"runs": rows, "ratios": {k: _median(v) for k, v in ratios.items()}, "by_seed": ratios}


def _digits() -> Images:
    from sklearn.datasets import load_digits

    X = (load_digits().data / 16).astype(np.float32)
    X = X[np.random.default_rng(0).permutation(len(X))]
    return Images(X[360:], X[180:360], X[:180], (8, 8))


def _times_as_long(rival, ours) -> float | None:
    """Seconds of the rival to its best bound over ours to the same; None if never."""
    mine = ours.seconds_to(rival.best)
    return None if mine is None else rival.seconds_to(rival.best) / mine


def _median(found: list[float | None]) -> float | None:
    """The median, where never counts as zero; None if that is what it is."""
    middle = statistics.median(0.0 if value is None else value for value in found)
    return middle or None


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


STAGES = (
    "products",
    "memory",
    "tuning",
    "mnist",
    "adagrad",
    "digits",
    "frey",
    "olivetti",
    "labels",
)


def main(options: Sequence[str] = ()) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks vae")
    parser.add_argument("--quick", action="store_true", help="seconds per run, nothing is kept")
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, default=STAGES,
        help="what is measured; the rest stays as it was recorded",
    )  # fmt: skip
    chosen = parser.parse_args(list(options))
    quick, wanted = chosen.quick, set(chosen.stages)
    known = {} if quick else known_parts("vae_partial")
    earlier = {} if wanted == set(STAGES) else recorded("vae")
    if data_folder() is None:
        say(NEEDS_DATA)
        wanted &= {"products", "memory", "digits"}

    def choices() -> dict:
        return (result if "tuning" in result else earlier)["tuning"]

    calls = {
        "products": lambda: products(quick),
        "memory": memory,
        "tuning": lambda: tuning(quick),
        "mnist": lambda: race(choices(), quick),
        "adagrad": lambda: patient_adagrad(choices(), quick),
        **{name: partial(faces, name, quick) for name in ("digits", "frey", "olivetti")},
        "labels": lambda: labels(quick),
    }
    result: dict = {"quick": quick, "measured": known.get("measured", {})}
    for name in (name for name in STAGES if name in wanted):
        result[name] = known[name] if name in known else calls[name]()
        result["measured"].setdefault(name, provenance())
        if not quick:
            keep("vae_partial", result)
    for name in (name for name in STAGES if name in earlier and name not in wanted and not quick):
        result[name] = earlier[name]
        result["measured"][name] = earlier.get("measured", {}).get(name, earlier["provenance"])
    (RESULTS / "vae_partial.json").unlink(missing_ok=True)
    shutil.rmtree(RESULTS / "vae_runs", ignore_errors=True)
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
