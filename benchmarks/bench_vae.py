"""Seconds to a test bound: KFAC against tuned Adam and Adagrad on MNIST; defaults elsewhere.

MNIST, 784-500-20-500-784, grey levels as probabilities, M = 1. Adam is tuned over a complete grid
on a validation split, then the contenders alternate on new seeds and are judged on the test
images. Clocks run while training runs: evaluation and compilation do not count, the principal
coordinates of KFAC do; its encoder reads the leading 300 of them, that of the others all pixels.
``python -m benchmarks.bench_vae --budget 60 --tune 20 --pairs 5``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import curvi
from benchmarks.common import NEEDS_DATA, data_folder, verdict
from curvi.fitting import loop
from curvi.models.vae import MLPObjective, initial_params
from curvi.models.vae.problem import EpochProblem, EpochResources, shuffling_multipliers
from curvi.models.vae.rotation import principal_rotation

TARGETS = (-115.0, -110.0, -105.0, -103.0, -102.0)
GOALS = {-110.0: 2.5, -105.0: 2.0, -102.0: 1.5}
LOOK_EVERY = 100
PLAIN = MLPObjective(decoder_l2=1e-4)
GRID = list(
    itertools.product(
        (5e-4, 1e-3, 2e-3, 4e-3), (100, 200, 500), (None, 0.01), ("constant", "cosine"),
        (True, False),
    )
)  # fmt: skip
HORIZON_EPOCHS = 20


def adam(rate, batch, schedule, averaged, rows):
    """One cell of the grid."""
    if schedule == "cosine":
        rate = optax.cosine_decay_schedule(rate, HORIZON_EPOCHS * rows // batch)
    method = curvi.FirstOrder(optax.adam(rate))
    return curvi.Averaged(method, window=180_000 // batch) if averaged else method


def run(method, batch, scale, X, held, *, seed, budget):
    """(seconds, bound on held images) at every look."""
    began = time.perf_counter()
    generator = np.random.default_rng(seed)
    params = initial_params(generator, inputs=X.shape[1], hidden=(500,), latent=20, scale=scale)
    X = X[generator.permutation(len(X))]
    objective, rows, restore = PLAIN, jnp.asarray(X), lambda p: p
    if isinstance(method, curvi.KFAC):
        rotation = principal_rotation(X, directions=method.directions, damping=method.damping)
        objective = MLPObjective(decoder_l2=PLAIN.decoder_l2, white=True)
        rows = (jnp.asarray(rotation.features(X)), rows)
        params, restore = rotation.rotated(params), rotation.restored
    prepared = time.perf_counter() - began
    resources = EpochResources(
        jax.random.key(seed), rows, jnp.asarray(shuffling_multipliers(len(X), generator))
    )
    path: list[tuple[float, float]] = []

    def look(step, seconds, answer):
        del step
        path.append((prepared + seconds, float(bound(restore(answer), held, jax.random.key(99)))))
        return prepared + seconds > budget

    loop.run(
        EpochProblem(objective, batch), method, params, resources,
        tolerance=1e-30, max_steps=10**7, monitor=look, monitor_every=LOOK_EVERY * 100 // batch,
    )  # fmt: skip
    return path


@jax.jit
def bound(params, images, key):
    return -MLPObjective()(params, images, key)


def encoder_reads(method):
    """What of an image the encoder sees."""
    if isinstance(method, curvi.KFAC) and method.directions is not None:
        return f"at most {method.directions} principal directions"
    return "all pixels"


def reached(path, target):
    return next((seconds for seconds, value in path if value >= target), None)


def tune(X, *, budget):
    """The cell with the best validation bound after ``budget`` seconds."""
    held = jnp.asarray(X[-5000:])
    table = []
    for rate, batch, scale, schedule, averaged in GRID:
        method = adam(rate, batch, schedule, averaged, len(X) - 5000)
        path = run(method, batch, scale, X[:-5000], held, seed=0, budget=budget)
        row = {"rate": rate, "batch": batch, "init": scale, "schedule": schedule,
               "averaged": averaged, "bound": path[-1][1]}  # fmt: skip
        table.append(row)
        print(f"    {row}", flush=True)
    return max(table, key=lambda row: row["bound"] if np.isfinite(row["bound"]) else -np.inf), table


def mnist(budget: float, tuning: float, pairs: int) -> dict:
    data = curvi.datasets.load("mnist")
    X, held = data.train[0], jnp.asarray(data.test[0])
    best, table = tune(X, budget=tuning) if tuning > 0 else (
        {"rate": 2e-3, "batch": 100, "init": 0.01, "schedule": "constant", "averaged": True}, []
    )  # fmt: skip
    tuned = adam(best["rate"], best["batch"], best["schedule"], best["averaged"], len(X))
    contenders = {
        "kfac": (curvi.KFAC(), 100, None),
        "adam": (tuned, best["batch"], best["init"]),
        "adagrad": (curvi.FirstOrder(optax.adagrad(0.03)), 100, None),
    }
    rounds = []
    for seed in range(1, pairs + 1):
        row = {}
        for name, (method, batch, scale) in contenders.items():
            path = run(method, batch, scale, X, held, seed=seed, budget=budget)
            row[name] = {"to": {str(t): reached(path, t) for t in TARGETS}, "final": path[-1][1],
                         "encoder_reads": encoder_reads(method)}  # fmt: skip
            print(f"    seed {seed} {name}: {row[name]}", flush=True)
        rounds.append(row)
    ratios = {}
    for rival in ("adam", "adagrad"):
        for target in TARGETS:
            pair = [(r[rival]["to"][str(target)], r["kfac"]["to"][str(target)]) for r in rounds]
            known = [a / b for a, b in pair if a is not None and b is not None]
            ratios[f"{rival} {target}"] = statistics.median(known) if known else None
    met = {
        f"adam {t}": ratios[f"adam {t}"] is not None and ratios[f"adam {t}"] >= goal
        for t, goal in GOALS.items()
    }
    met["final bound"] = all(r["kfac"]["final"] >= r["adam"]["final"] for r in rounds)
    for name, ok in met.items():
        print(f"  {name}: {verdict(ok)} ({ratios.get(name)})")
    return {"best_adam": best, "grid": table, "rounds": rounds, "ratios": ratios, "met": met}


def defaults(budget: float) -> list[dict]:
    """Unchanged defaults of curvi.VAE on other data: best validation bound by method and time."""
    from sklearn.datasets import load_digits

    sets = {"digits": ((load_digits().data / 16).astype(np.float32), "bernoulli", 10)}
    if data_folder() is not None:
        sets["frey"] = (curvi.datasets.load("frey").train[0], "gaussian", 20)
        sets["olivetti"] = (curvi.datasets.load("olivetti").train[0], "gaussian", 100)
    rows = []
    for name, (X, likelihood, latent) in sets.items():
        for method in ("kfac", "adam", "adagrad", "lbfgs", "hf"):
            options = {"latent": latent, "hidden": (200,), "likelihood": likelihood,
                       "method": method, "random_state": 0}  # fmt: skip
            curvi.VAE(**options, max_epochs=1).fit(X)  # compiles
            model = curvi.VAE(**options, max_epochs=100_000, time_budget=budget).fit(X)
            bounds, seconds = model.history_["validation_elbo"], model.history_["seconds"]
            reads = encoder_reads(curvi.KFAC() if method == "kfac" else method)
            row = {"data": name, "method": method, "encoder_reads": reads, "bound": model.elbo_,
                   "seconds_to_best": float(seconds[int(np.nanargmax(bounds))]),
                   "squared_error": float(np.mean((model.reconstruct(X) - X) ** 2)),
                   "path": np.stack([seconds, bounds], axis=1).tolist()}  # fmt: skip
            rows.append(row)
            print(
                "    " + ", ".join(f"{k}: {v}" for k, v in row.items() if k != "path"), flush=True
            )
    return rows


def main(budget: float = 60.0, tuning: float = 20.0, pairs: int = 5) -> dict:
    result: dict = {"defaults": defaults(min(budget, 30.0))}
    if data_folder() is None:
        print(f"  {NEEDS_DATA}")
        return result
    return result | {"mnist": mnist(budget, tuning, pairs)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds per run")
    parser.add_argument("--tune", type=float, default=20.0, help="seconds per cell; 0 skips it")
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    print(json.dumps(main(given.budget, given.tune, given.pairs), indent=1))
