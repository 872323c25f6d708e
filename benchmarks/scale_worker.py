"""What ``bench_scale`` runs in processes of their own, each on one core; the first prints JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
import warnings
from pathlib import Path

RANK = int(os.environ.get("CURVI_LAUNCH_RANK", "0"))
if "mapped" not in sys.argv:  # which takes all cores from memory and file; before JAX has threads
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[RANK % len(cores)]})

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

import curvi  # noqa: E402


def regression(copies: int, rounds: int) -> dict:
    """Products per second with the Hessian of a logistic regression, its rows shared."""
    from benchmarks.common import data_folder, load_libsvm

    X, y = load_libsvm(data_folder(), "a9a", n_features=123)
    X, y = np.tile(X.astype(np.float32), (copies, 1)), np.tile(y.astype(np.float32), copies)
    target = curvi.DataTarget(
        lambda b, r: jax.nn.log_sigmoid(r["y"] * (r["x"] @ b)),
        {"x": X, "y": y},
        lambda b: -0.5 * jnp.sum(b**2),
        jnp.zeros(123, jnp.float32),
    ).on_mesh(curvi.data_mesh())

    @jax.jit
    def product(rows, z, v):
        return jax.jvp(jax.grad(lambda x: target.density.log_prob(x, rows)), (z,), (v,))[1]

    z, v = jnp.zeros(123, jnp.float32), jnp.ones(123, jnp.float32)
    return {**_timed(lambda: product(target.rows, z, v), rounds), "rows": len(y)}


def all_reduce(numbers: int, rounds: int) -> dict:
    """Sums of so many numbers over the devices."""
    mesh = curvi.data_mesh()
    parts = jnp.zeros((mesh.size, numbers), jnp.float32)
    parts = jax.device_put(parts, NamedSharding(mesh, PartitionSpec("data")))
    everywhere = NamedSharding(mesh, PartitionSpec())
    total = jax.jit(lambda x: jnp.sum(x, axis=0), out_shardings=everywhere)
    return {**_timed(lambda: total(parts), rounds), "numbers": numbers}


def vae(rows: int, batch: int, epochs: int, method: str) -> dict:
    """Steps per second of an auto-encoder of the size used for MNIST."""
    X = (np.random.default_rng(0).random((rows, 784)) < 0.2).astype(np.float32)
    model = curvi.VAE(20, (500,), batch_size=batch, max_epochs=epochs, random_state=0,
                      validation_fraction=0, method=method)  # fmt: skip
    model.fit(X, mesh=curvi.data_mesh())
    seconds = model.result_.trace["seconds"]
    return {"per_second": float((len(seconds) - 1) / (seconds[-1] - seconds[0]))}


def stream(path: str, responses: str) -> dict:
    """One fit of rows on disk, and the peak of memory beyond what importing takes."""
    model = curvi.BayesianLogisticRegression(covariance="diagonal", random_state=0)
    with Watch() as memory:
        started = time.perf_counter()
        model.fit_blocks(curvi.io.rows(path, target=responses))
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "converged": bool(model.converged_), "bytes": memory.bytes}


def mapped(path: str, where: str, method: str, seconds: int) -> dict:
    """Steps per second of an auto-encoder whose rows are in a file, or the first in memory."""
    X = np.load(path, mmap_mode="r")
    X = np.array(X[:60_000]) if where == "memory" else curvi.io.rows(path)
    model = curvi.VAE(20, (500,), max_epochs=1000, time_budget=seconds, random_state=0,
                      validation_fraction=0, method=method)  # fmt: skip
    with warnings.catch_warnings(), Watch() as memory:
        warnings.simplefilter("ignore")  # that the time ran out
        model.fit(X)
    taken = model.result_.trace["seconds"]
    half = len(taken) // 2  # the second half: the first one waits for the cold file
    rate = (len(taken) - 1 - half) / (taken[-1] - taken[half])
    return {"per_second": float(rate), "bytes": memory.bytes, "elbo": model.elbo_}


def saving(rows: int) -> dict:
    """Seconds of one checkpoint of an auto-encoder of the size used for MNIST."""
    import tempfile

    from curvi.engine import _checkpoint

    spent: list[float] = []
    save = _checkpoint.Session.save

    def timed(session):
        started = time.perf_counter()
        save(session)
        spent.append(time.perf_counter() - started)

    _checkpoint.Session.save = timed
    X = (np.random.default_rng(0).random((rows, 784)) < 0.2).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        policy = curvi.Checkpoint(path, every_seconds=0)
        model = curvi.VAE(20, (500,), max_epochs=2, random_state=0, validation_fraction=0)
        model.fit(X, checkpoint=policy)
        return {"seconds": float(np.median(spent[1:])), "bytes": path.stat().st_size}


def _timed(call, rounds: int) -> dict:
    """Calls per second, and the median seconds of one."""
    jax.block_until_ready(call())
    marks = [time.perf_counter()]
    for _ in range(rounds):
        jax.block_until_ready(call())
        marks.append(time.perf_counter())
    each = np.diff(marks)
    return {"per_second": float(1 / each.mean()), "median": float(np.median(each))}


class Watch:
    """The largest memory beyond that at the beginning; pages of files, which can be taken back, not
    counted."""

    def __enter__(self) -> Watch:
        self.before = self.most = self._now()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def __exit__(self, *error) -> None:
        self.done.set()
        self.thread.join()

    @property
    def bytes(self) -> int:
        return max(self.most, self._now()) - self.before

    def _look(self) -> None:
        while not self.done.wait(0.02):
            self.most = max(self.most, self._now())

    @staticmethod
    def _now() -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(next(re.finditer(r"RssAnon:\s+(\d+) kB", status))[1])


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    numbers = [int(text) if text.isdigit() else text for text in given]
    parts = (regression, all_reduce, vae, stream, mapped, saving)
    found = {part.__name__: part for part in parts}[name](*numbers)
    if RANK == 0:
        print(json.dumps(found), flush=True)
