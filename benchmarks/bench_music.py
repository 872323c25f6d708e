"""Polyphonic music: deep Markov models, in nats per step of the test pieces.

``python -m benchmarks music --set jsb --seconds 600``. The validation pieces choose the weights,
the test pieces report. Numbers of other sets in the result file stay. ``--checkpoint FILE`` lets a
run that was cut short go on, ``--model FILE`` keeps the trained model.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import curvi
from benchmarks.common import recorded

LONGEST = 256  # steps of a training piece; longer ones are cut
# Chosen on validation pieces: few and short pieces need a slow start of the divergence, dropout and
# a penalty, many and long ones time.
_FEW = {"annealing": 300, "dropout": 0.1, "l2": 1e-3}
_MANY = {"annealing": 30, "dropout": 0.0, "l2": 0.0}
SETS = {"jsb": _FEW, "nottingham": _MANY, "piano_midi": _FEW, "musedata": _MANY}


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


def trained(chosen: argparse.Namespace) -> dict[str, Any]:
    """Train on a set; one row of the result."""
    data = curvi.datasets.load(chosen.set)
    pieces = [p[i : i + LONGEST] for p in data.train[0] for i in range(0, len(p), LONGEST)]
    began = time.process_time()
    given = {name: getattr(chosen, name) for name in _FEW}
    options = {**SETS[chosen.set], **{name: v for name, v in given.items() if v is not None}}
    model = curvi.DeepMarkovModel(
        chosen.latent, chosen.hidden, **options,
        max_epochs=5000, patience=chosen.patience, time_budget=chosen.seconds,
        method=chosen.method, random_state=chosen.seed,
    )  # fmt: skip
    model.fit(pieces, validation_sequences=data.validation[0], checkpoint=chosen.checkpoint)
    seconds = time.process_time() - began
    if chosen.model is not None:
        model.save(chosen.model)
    best = int(np.nanargmax(model.history_["validation_elbo"]))
    each = model.bound(data.test[0], per_sequence=True)
    return {
        "processor_seconds": seconds, "epochs": float(model.history_["epoch"][-1]),
        "best_epoch": float(model.history_["epoch"][best]), "seed": chosen.seed,
        "validation": -model.elbo_, "test": -model.bound(data.test[0]),
        "test_per_sequence": -float(np.mean(each)), "trivial": trivial(chosen.set),
        "latent": chosen.latent, "hidden": chosen.hidden, "method": chosen.method, **options,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train on one set and put its row beside those of the others."""
    parser = argparse.ArgumentParser(prog="benchmarks music")
    parser.add_argument("--set", choices=SETS, default="jsb")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--latent", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    for name, value in _FEW.items():  # by default those of the set
        parser.add_argument(f"--{name}", type=type(value))
    parser.add_argument("--patience", type=int, default=20)
    parser.add_argument("--method", default="adam")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=None)
    parser.add_argument("--model", type=Path, default=None)
    chosen = parser.parse_args(arguments or [])
    row = trained(chosen)
    print(f"{chosen.set}: {row}")
    return {"sets": {**recorded("music").get("sets", {}), chosen.set: row}}
