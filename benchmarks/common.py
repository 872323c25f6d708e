"""What several benchmarks need: interleaved timing, slopes, the data folder, kept results."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from curvi._core.files import write_atomically
from curvi.paper.experiments._provenance import provenance

RESULTS = Path(__file__).parent / "results"
NEEDS_DATA = "set CURVI_DATA to the folder that holds libsvm/*.bz2 to run this benchmark"


def recorded(name: str) -> dict[str, Any]:
    """What ``results/NAME.json`` holds; nothing where there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def data_folder() -> Path | None:
    """The folder named by CURVI_DATA, or None."""
    folder = os.environ.get("CURVI_DATA")
    return Path(folder) if folder else None


def load_libsvm(folder: Path, name: str, n_features: int | None = None):
    """Dense X in float64 and y in {-1, 1} of ``libsvm/NAME.bz2``."""
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(folder / "libsvm" / f"{name}.bz2"), n_features=n_features)
    return np.asarray(X.toarray()), np.where(y > 0, 1.0, -1.0)


def with_intercept(X: np.ndarray) -> np.ndarray:
    """X with a last column of ones."""
    return np.concatenate([X, np.ones((len(X), 1))], axis=1)


def timed(call: Callable[[], object]) -> float:
    """Processor seconds of one call, its results waited for: other work counts for nobody."""
    start = time.process_time()
    jax.block_until_ready(call())
    return time.process_time() - start


def interleaved(calls: dict[str, Callable[[], object]], rounds: int = 7) -> dict[str, list[float]]:
    """Processor seconds of each call in every round, after one call to warm up."""
    for call in calls.values():
        jax.block_until_ready(call())
    table: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            table[name].append(timed(call))
    return table


def median_ratio(first: list[float], second: list[float]) -> float:
    """Median over the rounds of first / second."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def log_log_slope(sizes: list[float], seconds: list[float]) -> float:
    """Exponent p of the least-squares fit seconds = c size^p."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def verdict(met: bool) -> str:
    """Met or MISSED, for the tables."""
    return "met" if met else "MISSED"


def keep(name: str, result: dict) -> Path:
    """Write what a benchmark measured to ``results/NAME.json``, with where it comes from."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {**result, "provenance": provenance()}
    write_atomically(path, json.dumps(whole, indent=2, sort_keys=True, allow_nan=False) + "\n")
    return path
