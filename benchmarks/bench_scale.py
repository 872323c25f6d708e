"""More rows than memory, more than one process, and what a checkpoint costs.

``python -m benchmarks scale --rows 10000000 --copies 100 --vae-rows 60000 --gigabytes 20`` is the
full size; the defaults take minutes. ``--part vae`` repeats a part of the record alone. It needs
the data a9a and two idle cores.
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

from benchmarks.common import log_log_slope, recorded, verdict
from curvi.paper.experiments._provenance import provenance

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("scale_worker.py")
GIBIBYTE = 2**30
FEATURES, BLOCK, PIXELS = 100, 100_000, 784


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


def products(copies: int, rounds: int) -> list[dict]:
    """Products of a9a, repeated, in one process and in two: what the cost model is fitted to."""
    table = []
    for times in (copies // 25 or 1, copies // 5 or 1, copies):
        one, two = (worker("regression", times, rounds, processes=n) for n in (1, 2))
        row = {"rows": one["rows"], "one": one["median"], "two": two["median"]}
        row |= {"one_mean": 1 / one["per_second"], "two_mean": 1 / two["per_second"]}
        table.append(row)
        print(
            f"  {row['rows']:>8} x 123: {1e3 * row['one_mean']:.2f} ms, in two processes "
            f"{1e3 * row['two_mean']:.2f} ms: {row['one_mean'] / row['two_mean']:.2f}", flush=True,
        )  # fmt: skip
    return table


def reductions() -> list[dict]:
    """All-reduces of two processes, from a few numbers to millions."""
    sizes = ((250, 300), (25_000, 300), (400_000, 100), (4_000_000, 20))
    return [worker("all_reduce", *size, processes=2) for size in sizes]


def write_images(path: Path, gigabytes: float) -> None:
    """Random images of the size of MNIST's in a file of so many gigabytes."""
    count = int(gigabytes * 1e9 / (4 * PIXELS))
    X = np.lib.format.open_memmap(path, "w+", np.float32, (count, PIXELS))
    for index, first in enumerate(range(0, count, 20_000)):
        part = slice(first, min(first + 20_000, count))
        numbers = np.random.default_rng([13, index]).integers(
            0, 256, (part.stop - first, PIXELS), np.uint8
        )
        X[part] = numbers < 51
    X.flush()


def mapped(chosen: argparse.Namespace, seconds: int = 15) -> dict:
    """Training of an auto-encoder on a file, against rows in memory."""
    gigabytes = chosen.gigabytes
    found: dict = {"gigabytes": gigabytes}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = chosen.images or Path(folder).resolve() / "images.npy"
        if not path.exists():
            write_images(path, gigabytes)
        for method in ("kfac", "adam"):
            runs = {w: worker("mapped", path, w, method, seconds) for w in ("memory", "file")}
            ratio = runs["file"]["per_second"] / runs["memory"]["per_second"]
            found[method] = {**runs, "ratio": ratio, "met": ratio >= 0.9}
            print(
                f"  {method}: {gigabytes:g} GB on disk, {runs['file']['per_second']:.0f} steps a "
                f"second, {ratio:.2f} of memory ({verdict(ratio >= 0.9)})", flush=True,
            )  # fmt: skip
    return found


def shared_products(chosen: argparse.Namespace) -> dict:
    """Products in one process and in two; the largest table decides."""
    table = products(chosen.copies, chosen.rounds)
    ratio = table[-1]["one_mean"] / table[-1]["two_mean"]
    found = {"products": table, "regression": _doubled("regression", ratio)}
    return {**found, "cache_bytes": cache_bytes()}


def cache_bytes() -> int:
    """The last cache of the processor, on systems that tell; none elsewhere."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max([1024 * int(path.read_text().strip().rstrip("K")) for path in sizes], default=0)


def shared_batches(chosen: argparse.Namespace) -> dict:
    """Steps of an auto-encoder in one process and in two."""
    found = {}
    for method in ("adam", "kfac"):
        given = ("vae", chosen.vae_rows, 2000, 4, method)
        one, two = (worker(*given, processes=count) for count in (1, 2))
        ratio = two["per_second"] / one["per_second"]
        found[f"vae_{method}"] = {"one": one, "two": two, **_doubled(f"vae, {method}", ratio)}
    return found


def saving(_: argparse.Namespace) -> dict:
    """One checkpoint, and what it costs once a minute."""
    cost = worker("saving", 5_000)
    print(
        f"  a checkpoint of {cost['bytes'] / 1e6:.1f} MB takes {cost['seconds'] * 1e3:.0f} ms: "
        f"{100 * cost['seconds'] / 60:.2f} % of a minute ({verdict(cost['seconds'] < 0.6)})"
    )
    return {"saving": {**cost, "share": cost["seconds"] / 60}}


def streams(chosen: argparse.Namespace) -> dict:
    """Rows on disk: time and memory of three lengths."""
    rows = stream([chosen.rows // 16, chosen.rows // 4, chosen.rows])
    slope = log_log_slope([r["rows"] for r in rows], [r["seconds"] for r in rows])
    met = rows[-1]["bytes"] < 2 * GIBIBYTE
    print(f"  exponent of the cost in rows {slope:.2f}; memory {verdict(met)}")
    return {"stream": rows, "slope": slope, "memory_met": met}


PARTS = {
    "products": shared_products,
    "all_reduce": lambda _: {"all_reduce": reductions()},
    "vae": shared_batches,
    "saving": saving,
    "mapped": lambda chosen: {"mapped": mapped(chosen)},
    "stream": streams,
}


def main(options: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--vae-rows", type=int, default=20_000)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--images", type=Path, help="file of so many, written where there is none")
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="these alone; others stay as recorded"
    )
    chosen = parser.parse_args(options or [])
    found = recorded("scale") if chosen.part else {}
    for name in chosen.part or PARTS:
        found |= PARTS[name](chosen)
        found["measured"] = {**found.get("measured", {}), name: provenance()}
    return found


def _doubled(name: str, ratio: float) -> dict:
    print(f"  {name}: two processes over one {ratio:.2f} ({verdict(ratio >= 1.6)})", flush=True)
    return {"ratio": ratio, "met": ratio >= 1.6}
