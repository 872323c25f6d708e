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
from typing import Any, NamedTuple

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
from benchmarks.vae_runs import TARGETS, Run, reached, splits
from benchmarks.vae_tuning import (
    ADAGRAD,
    ADAGRAD_RATES,
    ADAM,
    ADAM_RATES,
    RUNGS,
    Cell,
    at_the_edge,
    first_order,
    halving,
    last_step,
)
from curvi.reproduction._provenance import provenance
from curvi.reproduction._vae_runs import (
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

GOALS = {-110.0: 2.5, -105.0: 2.0, -102.0: 1.5}
ADAGRAD_GOAL = 5.0
RACE_SECONDS, LONGEST_SECONDS = 40.0, 150.0  # without a schedule, and with any
SEEDS = 3
PRODUCT_GOAL, MEMORY_GOAL = 3.0, 8 * 2**30
KFAC, ALL_DIRECTIONS = curvi.KFAC(), curvi.KFAC(directions=None)
TOTAL_GRADIENTS = curvi.KFAC(path_derivative=False)
HORIZON_EPOCHS = 10
HF = curvi.HessianFree()
FACES = {"digits": Case("digits", 10, 200, "bernoulli", 10.0), **CASES}
ADAM_CANDIDATES = tuple(
    Candidate(
        f"rate {rate:g}",
        curvi.Averaged(curvi.FirstOrder(optax.adam(rate), check_updates=False)),
        100,
    )
    for rate in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
)


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
        rates = ADAM_RATES if name == "adam" else ADAGRAD_RATES
        edges = [t for t, (cell, _) in choice.items() if at_the_edge(cell, rates)]
        results[name] = {"choice": chosen, "grid": table, "at_the_edge": edges,
                         "seconds": time.perf_counter() - began}  # fmt: skip
        say(f"{name}: {chosen}; at the edge of the rates: {edges or 'none'}")
    return results


def label(name: str, choice: dict) -> str:
    """The name of a tuned rival."""
    kind = "averaged" if choice["averaged"] else "last"
    return f"{name} {' '.join(str(value) for value in choice['cell'].values())} {kind}"


class Contender(NamedTuple):
    """A method, its batch size, the scale of the first weights, and when its run ends."""

    method: Any
    batch: int = 100
    scale: float | None = None
    steps: float = np.inf
    seconds: float = RACE_SECONDS
    prepared: Any = None  # the method whose coordinates and gradients are used


def contenders(tuned: dict, rows: int) -> dict[str, Contender]:
    """All of them; KFAC first."""
    horizon = HORIZON_EPOCHS * rows // 100
    found = {
        "kfac": Contender(KFAC),
        "kfac all directions": Contender(ALL_DIRECTIONS),
        "kfac total gradients": Contender(TOTAL_GRADIENTS),
        "kfac horizon": Contender(
            curvi.KFAC(horizon=horizon), steps=horizon, seconds=LONGEST_SECONDS
        ),
    }
    for name, results in tuned.items():
        for choice in results["choice"].values():
            cell = Cell(**choice["cell"])
            method = first_order(name, cell, rows, averaged=choice["averaged"])
            last = last_step(cell, rows)
            seconds = RACE_SECONDS if last == np.inf else LONGEST_SECONDS
            one = Contender(method, cell.batch, cell.init, last, seconds)
            found.setdefault(label(name, choice), one)
            if name == "adam":
                other = one._replace(prepared=KFAC)
                found.setdefault(f"prepared {label(name, choice)}", other)
    return found | {"hessian_free": Contender(HF, HF.usual_batch_size)}


def race(tuned: dict, quick: bool) -> dict:
    """Stage two: alternating runs on new seeds, judged on test images."""
    data = curvi.datasets.load("mnist")
    X, held = data.train[0], jnp.asarray(data.test[0])
    rounds: list[dict] = [] if quick else _known("vae_race").get("rounds", [])
    for seed in range(1, 2 if quick else 1 + SEEDS):
        if len(rounds) < seed:
            rounds.append({})
        row = rounds[seed - 1]
        for name, one in contenders(tuned, len(X)).items():
            if name in row:
                continue
            run = Run(one.method, X, held, batch=one.batch, scale=one.scale, seed=seed,
                      prepared=one.prepared)  # fmt: skip
            path = run.until(2.0 if quick else one.seconds, steps=one.steps).path
            row[name] = {"to": {str(t): reached(path, t) for t in TARGETS},
                         "final": path[-1].averaged, "seconds": path[-1].seconds,
                         "steps": path[-1].step,
                         "path": [[look.seconds, look.averaged] for look in path]}  # fmt: skip
            say(f"seed {seed} {name}: {row[name]['to']}, final {row[name]['final']:.2f}")
            if not quick:
                keep("vae_race", {"rounds": rounds})
    rivals = {
        name: {target: label(name, choice) for target, choice in results["choice"].items()}
        for name, results in tuned.items()
    }
    (RESULTS / "vae_race.json").unlink(missing_ok=True)  # all of it is in what is returned
    rivals["adam on the same coordinates and gradients"] = {
        target: f"prepared {name}" for target, name in rivals["adam"].items()
    }
    for name in ("kfac all directions", "kfac total gradients", "kfac horizon", "hessian_free"):
        rivals[name] = {str(target): name for target in GOALS}
    ratios = _ratios(rounds, rivals)
    return {"rounds": rounds, "rivals": rivals, "ratios": ratios, "met": _met(rounds, ratios),
            "hessian_free": _hessian_free(rounds)}  # fmt: skip


def _hessian_free(rounds: list[dict]) -> list[float | None]:
    """Of every seed: seconds of the best Adagrad to its best bound over those of Hessian-free."""
    found: list[float | None] = []
    for row in rounds:
        path = max((r["path"] for n, r in row.items() if n.startswith("adagrad ")),
                   key=lambda path: max(bound for _, bound in path))  # fmt: skip
        best = max(bound for _, bound in path)
        needed = next(s for s, bound in path if bound >= best)
        mine = next((s for s, b in row["hessian_free"]["path"] if b >= best), None)
        found.append(None if mine is None else needed / mine)
    say(f"Adagrad to its best bound / hessian_free to the same: {found}")
    return found


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


def _known(name: str) -> dict:
    """What an interrupted run of the same commit has kept; nothing otherwise."""
    kept = recorded(name)
    now, then = provenance(), kept.pop("provenance", {})
    same = all(now[key] == then.get(key) for key in ("commit", "modified"))
    return kept if same and not now["modified"] else {}


STAGES = ("products", "memory", "tuning", "mnist", "digits", "frey", "olivetti", "labels")


def main(options: Sequence[str] = ()) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks vae")
    parser.add_argument("--quick", action="store_true", help="seconds per run, nothing is kept")
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, default=STAGES,
        help="what is measured; the rest stays as it was recorded",
    )  # fmt: skip
    chosen = parser.parse_args(list(options))
    quick, wanted = chosen.quick, set(chosen.stages)
    known = {} if quick else _known("vae_partial")
    earlier = {} if quick or wanted == set(STAGES) else recorded("vae")
    if data_folder() is None:
        say(NEEDS_DATA)
        wanted &= {"products", "memory", "digits"}
    calls = {
        "products": lambda: products(quick),
        "memory": memory,
        "tuning": lambda: tuning(quick),
        "mnist": lambda: race((result if "tuning" in result else earlier)["tuning"], quick),
        **{name: partial(faces, name, quick) for name in ("digits", "frey", "olivetti")},
        "labels": lambda: labels(quick),
    }
    result: dict = {"quick": quick, "measured": known.get("measured", {})}
    for name in (name for name in STAGES if name in wanted):
        result[name] = known[name] if name in known else calls[name]()
        result["measured"].setdefault(name, provenance())
        if not quick:
            keep("vae_partial", result)
    for name in (name for name in STAGES if name in earlier and name not in wanted):
        result[name] = earlier[name]
        result["measured"][name] = earlier.get("measured", {}).get(name, earlier["provenance"])
    (RESULTS / "vae_partial.json").unlink(missing_ok=True)
    shutil.rmtree(RESULTS / "vae_runs", ignore_errors=True)
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
