"""More rows than memory, more than one process, and what a checkpoint costs.

``python -m benchmarks scale --rows 10000000 --copies 100 --vae-rows 60000`` is the full size; the
defaults take minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import log_log_slope, verdict

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("scale_worker.py")
GIBIBYTE = 2**30
FEATURES, BLOCK = 100, 100_000


def worker(*arguments: object, processes: int = 1) -> dict:
    """Run a part in so many processes, each on a core of its own."""
    words = [str(WORKER), *map(str, arguments)]
    launch = ["-m", "curvi", "launch", "--processes", str(processes), "--", *words]
    command = [sys.executable, *(words if processes == 1 else launch)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = {**os.environ, "PYTHONPATH": path, "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    return json.loads(done.stdout.splitlines()[-1])


def write_rows(folder: Path, count: int) -> tuple[Path, Path]:
    """Synthetic logistic rows as two .npy files, written a block at a time."""
    paths = folder / "x.npy", folder / "y.npy"
    X = np.lib.format.open_memmap(paths[0], "w+", np.float32, (count, FEATURES))
    y = np.lib.format.open_memmap(paths[1], "w+", np.float32, (count,))
    slope = np.linspace(-0.3, 0.3, FEATURES, dtype=np.float32)
    for index, first in enumerate(range(0, count, BLOCK)):
        rng = np.random.default_rng([11, index])
        part = slice(first, min(first + BLOCK, count))
        X[part] = rng.standard_normal((part.stop - first, FEATURES), np.float32)
        y[part] = rng.logistic(size=part.stop - first) < X[part] @ slope
    X.flush()
    y.flush()
    return paths


def stream(counts: list[int]) -> list[dict]:
    """Fits of files of several lengths."""
    table = []
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            paths = write_rows(Path(folder), count)
            table.append({"rows": count, **worker("stream", *paths)})
        last = table[-1]
        print(
            f"  {count:>10} x {FEATURES}: {last['seconds']:.1f} s, peak beyond the imports "
            f"{last['bytes'] / GIBIBYTE:.2f} GiB, converged {last['converged']}",
            flush=True,
        )
    return table


def main(options: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--vae-rows", type=int, default=20_000)
    chosen = parser.parse_args(options or [])
    rows = stream([chosen.rows // 16, chosen.rows // 4, chosen.rows])
    slope = log_log_slope([r["rows"] for r in rows], [r["seconds"] for r in rows])
    found: dict = {"stream": rows, "slope": slope}
    jobs = {
        "regression": (chosen.copies, chosen.rounds),
        "vae": (chosen.vae_rows, 2000, 4),
    }
    for name, arguments in jobs.items():
        if name == "regression" and not os.environ.get("CURVI_DATA"):
            continue
        one, two = (worker(name, *arguments, processes=count) for count in (1, 2))
        ratio = two["per_second"] / one["per_second"]
        found[name] = {"one": one, "two": two, "ratio": ratio, "met": ratio >= 1.6}
        print(f"  {name}: two processes over one {ratio:.2f} ({verdict(ratio >= 1.6)})", flush=True)
    cost = worker("saving", 5_000)
    found["saving"] = {**cost, "share": cost["seconds"] / 60}
    print(
        f"  a checkpoint of {cost['bytes'] / 1e6:.1f} MB takes {cost['seconds'] * 1e3:.0f} ms: "
        f"{100 * cost['seconds'] / 60:.2f} % of a minute ({verdict(cost['seconds'] < 0.6)})"
    )
    met = rows[-1]["bytes"] < 2 * GIBIBYTE
    print(f"  exponent of the cost in rows {slope:.2f}; memory {verdict(met)}")
    return {**found, "memory_met": met}
