"""Sequences: state-space models against NUTS, the slope of time in the length, music.

``python -m benchmarks sequences`` runs the first two; ``--music jsb --seconds 600`` trains a deep
Markov model (minutes) and keeps its weights in ``--state FILE`` after every round, so that a run
that was cut short goes on from there.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import curvi
from benchmarks.common import verdict
from benchmarks.sequence_peers import nuts, simulated
from curvi.sequences._latent import LatentModel
from curvi.sequences._structure import Components

CASES = (("volatility", 1000), ("poisson", 1000), ("bernoulli", 1000))
LENGTHS = (100, 1_000, 10_000, 100_000)


def against_nuts(likelihood: str, length: int) -> dict[str, Any]:
    """Errors in posterior sds, ratios of sds, and processor seconds of both."""
    y, _ = simulated(likelihood, length)
    curvi.StateSpace(likelihood=likelihood).fit(y[:50])  # imports
    began = time.process_time()
    model = curvi.StateSpace(likelihood=likelihood).fit(y)
    band = model.smooth()
    ours = time.process_time() - began
    draws, theirs, smallest = nuts(likelihood, y)
    mean, sd = draws["signal"].mean(axis=0), draws["signal"].std(axis=0)
    row: dict[str, Any] = {
        "likelihood": likelihood, "length": length, "seconds": ours, "nuts_seconds": theirs,
        "nuts_smallest_ess": smallest, "speedup": theirs / ours,
        "state_error": float((np.abs(band.mean - mean) / sd).max()),
        "state_error_median": float(np.median(np.abs(band.mean - mean) / sd)),
        "sd_ratio": [float((band.sd / sd).min()), float((band.sd / sd).max())],
    }  # fmt: skip
    for name in ("level", "phi"):
        if name in draws:
            centre, spread = model.hyperparameters_[name]
            row[f"{name}_error"] = float(abs(centre - draws[name].mean()) / draws[name].std())
            row[f"{name}_ratio"] = float(spread / draws[name].std())
    return row


def slope() -> dict[str, Any]:
    """Seconds of one evaluation of the bound (a Poisson walk) against the length of the series."""
    table = {}
    for length in LENGTHS:
        y, _ = simulated("poisson", length)
        model = LatentModel(
            y, "poisson", Components(), np.zeros((length, 0)), np.zeros(0), 1.0, {"level": 1.0}
        )
        theta = np.log([[0.1]])
        sites = model.fit(theta)
        timed = []
        for _ in range(5):
            began = time.process_time()
            model.at(theta, (sites.precision, sites.linear))
            timed.append(time.process_time() - began)
        table[length] = min(timed)
    long = [n for n in LENGTHS if n >= 1_000]  # below, calls cost more than arithmetic
    fitted = np.polyfit(np.log(long), np.log([table[n] for n in long]), 1)[0]
    return {"seconds": table, "slope": float(fitted)}


def trivial(name: str) -> dict[str, float]:
    """Nats per test step of notes that are independent, and of a Markov chain per note."""
    data = curvi.datasets.load(name)
    train, test = data.train[0], data.test[0]

    def nats(share: np.ndarray, x: np.ndarray) -> float:
        return -float(np.sum(x * np.log(share) + (1 - x) * np.log(1 - share)))

    steps = np.concatenate(train)
    first = (steps.sum(axis=0) + 0.5) / (len(steps) + 1)
    total = sum(len(piece) for piece in test)
    before = np.concatenate([p[:-1] for p in train])
    after = np.concatenate([p[1:] for p in train])
    chances = np.stack([(after * (before == k)).sum(axis=0) + 0.5 for k in (0, 1)]) / np.stack(
        [(before == k).sum(axis=0) + 1.0 for k in (0, 1)]
    )
    chained = 0.0
    for piece in test:
        chained += nats(first, piece[:1])
        chained += nats(np.where(piece[:-1] == 1, chances[1], chances[0]), piece[1:])
    independent = sum(nats(first, piece) for piece in test)
    return {"independent": independent / total, "chain": chained / total}


def music(
    name: str, seconds: float, state: Path | None, latent: int, hidden: int
) -> dict[str, Any]:
    """Train on a music set; the validation split chooses the weights, the test split reports."""
    data = curvi.datasets.load(name)
    pieces = [piece[i : i + 256] for piece in data.train[0] for i in range(0, len(piece), 256)]
    began = time.process_time()
    model = curvi.DeepMarkovModel(
        latent, hidden, annealing=100, max_epochs=2000, patience=30, time_budget=seconds
    )
    start = None
    if state is not None and state.exists():
        start = unpacked(dict(np.load(state, allow_pickle=False)))
    model.fit(pieces, validation_sequences=data.validation[0], start=start)
    if state is not None:
        np.savez(state, **packed(model.params_))
    return {
        "name": name, "processor_seconds": time.process_time() - began,
        "validation": -model.elbo_, "test": -model.bound(data.test[0]),
        "test_per_sequence": -float(np.mean(model.bound(data.test[0], per_sequence=True))),
        "trivial": trivial(name), "epochs": float(model.history_["epoch"][-1]),
        "latent": latent, "hidden": hidden,
    }  # fmt: skip


def packed(params: dict[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """Nested dictionaries as one with joined names."""
    out = {}
    for key, value in params.items():
        if isinstance(value, dict):
            out.update(packed(value, f"{prefix}{key}."))
        else:
            out[prefix + key] = np.asarray(value)
    return out


def unpacked(flat: dict[str, np.ndarray]) -> dict[str, Any]:
    """Back from joined names."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        place = out
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return out


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run what is asked for; by default all but the music."""
    parser = argparse.ArgumentParser(prog="benchmarks sequences")
    parser.add_argument("--music", default="", help="jsb, nottingham, piano_midi or musedata")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--state", type=Path, default=None)
    parser.add_argument("--latent", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    chosen = parser.parse_args(arguments or [])
    if chosen.music:
        row = music(chosen.music, chosen.seconds, chosen.state, chosen.latent, chosen.hidden)
        print(row)
        return {"music": row}
    rows = []
    for case in CASES:
        rows.append(against_nuts(*case))
        row = rows[-1]
        right = (
            row["state_error"] <= 0.1 and 0.8 <= row["sd_ratio"][0] <= row["sd_ratio"][1] <= 1.25
        )
        print(
            f"{row['likelihood']:10} {row['length']:5}: worst state {row['state_error']:.3f} sd, "
            f"sd ratios {row['sd_ratio'][0]:.2f} to {row['sd_ratio'][1]:.2f}, "
            f"{row['seconds']:.2f} against {row['nuts_seconds']:.1f} s ({row['speedup']:.0f} x); "
            f"{verdict(right)}",
            flush=True,
        )
    found = slope()
    print(f"slope of time in length {found['slope']:.2f}")
    return {"nuts": rows, "slope": found}
