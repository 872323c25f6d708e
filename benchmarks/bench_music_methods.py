"""Chorales: KFAC with factors shared over time against a tuned Adam, the same deep Markov model.

``python -m benchmarks music_methods``. Validation pieces choose the settings of both
methods (``--adam``, ``--kfac`` and ``--annealing`` take several, to try them with ``--try``)
and the step at which weights are kept; test pieces report. Processor seconds, without compilation
and evaluations.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import curvi
from curvi.solvers import KFAC, Method
from curvi.vae._markov import MarkovObjective, initial_weights
from curvi.vae._markov_training import (
    cut_lengths,
    method_named,
    padded,
    sequence_bounds,
    train_sequences,
)
from curvi.vae._training import Schedule

BATCH = 20
CLOSE = 0.01  # nats per step that count as reached
ADAM, ADAM_ANNEALING = 1.2e-2, 50
STEP, KFAC_ANNEALING = 0.3, 50


def kfac(step_size: float) -> Method:
    """The method by name, with another step size."""
    return KFAC(step_size=step_size, factor_rows=BATCH)


def trained(method: Method, annealing: int, seed: int, chosen: argparse.Namespace) -> Any:
    """One run: seconds and validation bounds, and the test bound of the best weights."""
    data = curvi.datasets.load("jsb")
    batch, held_out, test = (
        padded(pieces[0], np.float32) for pieces in (data.train, data.validation, data.test)
    )
    share = np.clip(np.concatenate(data.train[0]).mean(axis=0), 1e-3, 1 - 1e-3)
    start = initial_weights(
        np.random.default_rng(seed), 88, chosen.latent, chosen.hidden, np.log(share / (1 - share))
    )
    objective = MarkovObjective(lengths=cut_lengths(batch.length, BATCH, method))
    schedule = Schedule(BATCH, 10**5, chosen.seconds, 10**6, seed, seconds_between=2.0)
    found = train_sequences(
        objective, jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), start), batch,
        method=method, schedule=schedule, annealing=annealing, validation_batch=held_out,
    )  # fmt: skip
    nats = sequence_bounds(objective, found.params, test, 0).sum() / test.length.sum()
    history = found.history
    return {
        "seconds": history["seconds"].tolist(), "epochs": history["epoch"].tolist(),
        "validation": (-history["validation_elbo"]).tolist(), "best": -found.elbo,
        "test": float(nats), "seed": seed, "annealing": annealing,
    }  # fmt: skip


def reached(run: dict[str, Any], target: float) -> float | None:
    """Processor seconds until the validation bound is within a hundredth of a nat of a target."""
    pairs = zip(run["seconds"], run["validation"], strict=True)
    return next((seconds for seconds, nats in pairs if nats <= target + CLOSE), None)


def raced(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Adam and KFAC from the same weights, one seed after another."""
    rows = []
    for seed in range(chosen.seeds):
        adam = trained(method_named("adam", chosen.adam[0]), chosen.annealing[0], seed, chosen)
        ours = trained(kfac(chosen.kfac[0]), chosen.annealing[-1], seed, chosen)
        times = [reached(run, adam["best"]) for run in (adam, ours)]
        ratio = None if None in times else times[0] / times[1]  # type: ignore[operator]
        print(
            f"seed {seed}: Adam {adam['best']:.3f} after {times[0]} s (test {adam['test']:.3f}), "
            f"KFAC {ours['best']:.3f}, there after {times[1]} s (test {ours['test']:.3f}); "
            f"ratio {ratio}",
            flush=True,
        )
        rows.append({"seed": seed, "adam": adam, "kfac": ours, "seconds": times, "ratio": ratio})
    return rows


def tried(chosen: argparse.Namespace) -> None:
    """Print what every setting reaches by itself."""
    named = [(f"adam {rate}", method_named("adam", rate)) for rate in chosen.adam]
    named += [(f"kfac {step}", kfac(step)) for step in chosen.kfac]
    for (name, method), annealing in itertools.product(named, chosen.annealing):
        run = trained(method, annealing, 0, chosen)
        pairs = zip(run["seconds"], run["validation"], strict=True)
        shown = [f"{seconds:.0f} s {nats:.3f}" for seconds, nats in pairs]
        best = shown[int(np.argmin(run["validation"]))]
        print(f"{name}, annealing {annealing}: best {best};", ", ".join(shown[::4]), flush=True)


def main(arguments: list[str] | None = None) -> dict[str, Any] | None:
    """The race over several seeds, or with ``--try`` single runs of all settings."""
    parser = argparse.ArgumentParser(prog="benchmarks music_methods")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--latent", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--adam", type=float, nargs="*", default=[ADAM])
    parser.add_argument("--kfac", type=float, nargs="*", default=[STEP])
    both = [ADAM_ANNEALING, KFAC_ANNEALING]
    parser.add_argument("--annealing", type=int, nargs="*", default=both)
    parser.add_argument("--try", dest="only_try", action="store_true")
    chosen = parser.parse_args(arguments or [])
    if chosen.only_try:
        tried(chosen)
        return None
    settings = {"adam": chosen.adam[0], "kfac": chosen.kfac[0], "annealing": chosen.annealing}
    sizes = {"latent": chosen.latent, "hidden": chosen.hidden, "budget": chosen.seconds}
    return {"runs": raced(chosen), **settings, **sizes}
