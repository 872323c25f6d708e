"""Rows in blocks and sparse tables: processor seconds and peak of memory, in fresh processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.clocks import pin_to_one_core
from benchmarks.common import log_log_slope, verdict

COUNTS = (10_000, 100_000, 1_000_000, 10_000_000)
FEATURES, BLOCK = 10, 65_536
SPARSE_ROWS, SPARSE_COLUMNS, SHARE = 20_000, 50_000, 0.001
GIBIBYTE = 2**30


def blocks(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Synthetic logistic rows, made anew in every pass and never stored."""
    slope = np.linspace(-1, 1, FEATURES)
    for index, start in enumerate(range(0, count, BLOCK)):
        rng = np.random.default_rng([7, index])
        X = rng.standard_normal((min(BLOCK, count - start), FEATURES))
        yield X, rng.logistic(size=len(X)) < X @ slope


def fit_blocks(count: int) -> dict:
    """One fit of rows in blocks."""
    import curvi

    model = curvi.BayesianLogisticRegression(covariance="diagonal", standardize=False)
    started = time.process_time()
    model.fit_blocks(lambda: blocks(count))
    return {
        "seconds": time.process_time() - started,
        "converged": bool(model.converged_),
        "worst_error_sds": float(
            np.max(np.abs(model.coef_[0] - np.linspace(-1, 1, FEATURES)) / model.coef_sd_[0])
        ),
    }


def fit_sparse() -> dict:
    """One fit of a wide sparse table."""
    from scipy import sparse

    import curvi

    rng = np.random.default_rng(3)
    X = sparse.random(SPARSE_ROWS, SPARSE_COLUMNS, SHARE, "csr", np.float32, random_state=rng)
    slope = np.zeros(SPARSE_COLUMNS, np.float32)
    slope[:500] = rng.normal(size=500)
    y = rng.logistic(size=SPARSE_ROWS) < 5 * (X @ slope)
    started = time.process_time()
    model = curvi.BayesianLogisticRegression(covariance="diagonal", standardize=False).fit(X, y)
    return {"seconds": time.process_time() - started, "converged": bool(model.converged_)}


def alone(call: str) -> dict:
    """Run a call in a process of its own, and report the peak of its memory."""
    code = f"from benchmarks import bench_rows; bench_rows.report({call!r})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def report(call: str) -> None:
    """Do what was asked and print what it took."""
    name, _, argument = call.partition(" ")
    found = fit_blocks(int(argument)) if name == "blocks" else fit_sparse()
    # Not ru_maxrss, which a process inherits from its parent on Linux.
    status = Path("/proc/self/status").read_text()
    peak = 1024 * int(next(re.finditer(r"VmHWM:\s+(\d+) kB", status))[1])
    print(json.dumps({**found, "peak_bytes": peak}))


def main() -> dict:
    pin_to_one_core()
    rows = []
    for count in COUNTS:
        rows.append({"rows": count, **alone(f"blocks {count}")})
        print(
            f"  {count:>10} rows: {rows[-1]['seconds']:8.2f} s, "
            f"peak {rows[-1]['peak_bytes'] / GIBIBYTE:.2f} GiB, converged {rows[-1]['converged']}"
        )
    slope = log_log_slope([r["rows"] for r in rows], [r["seconds"] for r in rows])
    growth = rows[-1]["peak_bytes"] / rows[0]["peak_bytes"]
    thin = alone("sparse")
    met = thin["peak_bytes"] < GIBIBYTE
    print(f"  exponent of the cost in rows {slope:.2f}, memory grows by {growth:.2f}")
    print(
        f"  sparse {SPARSE_ROWS} x {SPARSE_COLUMNS}: {thin['seconds']:.1f} s, peak "
        f"{thin['peak_bytes'] / GIBIBYTE:.2f} GiB ({verdict(met)})"
    )
    return {"blocks": rows, "slope": slope, "memory_growth": growth, "sparse": thin, "met": met}
