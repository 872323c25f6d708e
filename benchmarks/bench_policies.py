"""A pendulum swung up by a small network: second-order steps and Adam, by the clock."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "sequences"))
POINTS = 200  # of a curve, at most


def learned(name: str, seed: int, seconds: float) -> dict[str, Any]:
    """One run: the least cost so far against seconds, and the cost on noise not seen before."""
    import policy_pendulum

    began = time.process_time()
    result, cost = policy_pendulum.learn(name, seed, seconds=seconds)
    used = time.process_time() - began
    value = np.minimum.accumulate(np.asarray(result.trace["value"], float))
    kept = np.unique(np.linspace(0, len(value) - 1, POINTS).astype(int))
    return {
        "method": name, "seed": seed, "cost": cost, "steps": len(value), "processor_seconds": used,
        "seconds": np.asarray(result.trace["seconds"], float)[kept].tolist(),
        "least": value[kept].tolist(),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Every method of the example with three seeds."""
    import policy_pendulum

    parser = argparse.ArgumentParser(prog="benchmarks policies")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args(arguments or [])
    rows = []
    for name in policy_pendulum.METHODS:
        for seed in range(chosen.seeds):
            rows.append(learned(name, seed, chosen.seconds))
            print(f"{name:13} seed {seed}: {rows[-1]['cost']:.3f} per step", flush=True)
    return {"pendulum": rows, "budget": chosen.seconds}
