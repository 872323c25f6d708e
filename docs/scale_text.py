"""The cost model of a product, fitted to recorded measurements, checked, and carried further."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from markdown import as_table
from scipy.optimize import nnls

Row = dict[str, Any]
COLUMNS = 123  # of a9a
DEVICES, ROWS, WIDE = 64, 1e9, 100  # of the first example on paper
PARAMETERS, VECTORS = 1e9, 20  # of the second
NUMBER = 4  # bytes of float32


@dataclass(frozen=True)
class Cost:
    """Seconds of a product of N d numbers, those beyond the cache read from memory, on P devices:

    ``overhead + (each N d + fetch (4 N d - cache)) / P + log2(P) (latency + wire d) + waiting``.
    """

    overhead: float
    each: float  # per row and column
    fetch: float  # per byte beyond the cache
    cache: float  # bytes
    latency: float
    wire: float  # per number of an all-reduce
    waiting: float  # for the slower of the processes

    @classmethod
    def fitted(cls, result: Row) -> Cost:
        """Computing from one process alone, sending from sums alone, waiting from two processes."""
        table, sums = result["products"], result["all_reduce"]
        work = np.asarray([row["rows"] * COLUMNS for row in table], float)
        cache = float(result["cache_bytes"])
        beyond = np.maximum(NUMBER * work - cache, 0.0)
        overhead, each, fetch = _fitted([work, beyond], [row["one"] for row in table])
        numbers = np.asarray([s["numbers"] for s in sums], float)
        latency, wire = _fitted([numbers], [s["median"] for s in sums])
        waiting = float(np.mean([row["two_mean"] - row["two"] for row in table]))
        return cls(overhead, each, fetch, cache, latency, wire, max(waiting, 0.0))

    def product(self, rows: float, columns: float, devices: int) -> float:
        """Seconds of a product of so many rows."""
        beyond = max(NUMBER * rows * columns - self.cache, 0.0)
        own = self.overhead + (self.each * rows * columns + self.fetch * beyond) / devices
        if devices == 1:
            return own
        return own + math.log2(devices) * self.sum(columns) + self.waiting

    def sum(self, numbers: float) -> float:
        """Seconds of an all-reduce of two."""
        return self.latency + self.wire * numbers


def _fitted(columns: list[np.ndarray], seconds: list[float]) -> list[float]:
    """Offset and slopes, none of them negative, with the least relative errors."""
    y = np.asarray(seconds, float)
    design = np.stack([np.ones(len(y)), *columns], axis=1) / y[:, None]
    sizes = np.linalg.norm(design, axis=0) + np.finfo(float).tiny
    return [float(value) for value in nnls(design / sizes, np.ones(len(y)))[0] / sizes]


def scale_text(result: Row) -> str:
    """What was measured, the model beside it, and where the model leads."""
    return "\n\n".join([_measured(result), _checked(result), _carried(Cost.fitted(result))])


def _measured(result: Row) -> str:
    """What the parts of the record say; one that was not measured is left out."""
    last, saving, mapped = result["stream"][-1], result["saving"], result.get("mapped")
    disk = (
        f"**Rows on disk.** {last['rows']:,} rows of 100 columns take {last['seconds']:.0f} s on "
        f"one core and {last['bytes'] / 2**30:.2f} GiB of memory; the cost grows with "
        f"the power {result['slope']:.2f} of it."
    )
    if mapped is not None:
        disk += (
            " An auto-encoder of the size used for MNIST whose rows are in a file of "
            f"{mapped['gigabytes']:g} GB takes {mapped['kfac']['ratio']:.2f} (`kfac`) and "
            f"{mapped['adam']['ratio']:.2f} (`adam`) times as many steps a second as one with rows "
            "in memory."
        )
    shared = (
        f"**Two processes on two cores** make {result['regression']['ratio']:.2f} times as many "
        f"products with the Hessian of a9a, repeated to {result['products'][-1]['rows']:,} rows, "
        "as one on one core"
    )
    if "vae_adam" in result:
        shared += (
            f", and {result['vae_adam']['ratio']:.2f} (`adam`) and "
            f"{result['vae_kfac']['ratio']:.2f} (`kfac`) times as many steps of an auto-encoder at "
            "batches of 2,000 rows"
        )
    checkpoint = (
        f"**A checkpoint** of an auto-encoder, {saving['bytes'] / 1e6:.0f} MB, takes "
        f"{1e3 * saving['seconds']:.0f} ms: once a minute that is {100 * saving['share']:.2f} % of "
        "a run."
    )
    return "\n\n".join([disk, f"{shared}.", checkpoint])


def _checked(result: Row) -> str:
    cost = Cost.fitted(result)
    rows = [
        {
            "rows": f"{row['rows']:,}",
            "one process [ms]": 1e3 * row["one_mean"],
            "model": 1e3 * cost.product(row["rows"], COLUMNS, 1),
            "two processes [ms]": 1e3 * row["two_mean"],
            "model, two": 1e3 * cost.product(row["rows"], COLUMNS, 2),
        }
        for row in result["products"]
    ]
    errors = [abs(row["model, two"] / row["two processes [ms]"] - 1) for row in rows]
    return (
        f"The constants come from one process alone ($c = {1e9 * cost.each:.3f}$ ns per row and "
        f"column, $m = {1e9 * cost.fetch:.3f}$ ns per byte beyond the {cost.cache / 2**20:.0f} MiB "
        f"of the cache, {1e3 * cost.overhead:.2f} ms to begin), from sums of two processes alone "
        "($\\alpha "
        f"= {1e6 * cost.latency:.0f}$ µs, $\\beta = {1e9 * cost.wire:.2f}$ ns per number) and "
        "from the "
        f"difference between mean and median of two ($s = {1e3 * cost.waiting:.2f}$ ms). What "
        "they "
        "say of two processes was not fitted to any product of two, but for $s$; it is within "
        f"{100 * max(errors):.0f} % of what was measured:\n\n" + as_table(rows)
    )


def _carried(cost: Cost) -> str:
    each = cost.each + NUMBER * cost.fetch  # far beyond the cache
    compute = each * ROWS * WIDE / DEVICES
    talk = math.log2(DEVICES) * cost.sum(WIDE)
    everything = ROWS * WIDE * NUMBER
    even = math.log2(DEVICES) * cost.sum(WIDE) / (each * WIDE) * DEVICES
    sent = 2 * PARAMETERS  # mean and log sd of every coordinate
    return (
        f"**On paper: $10^9$ rows** of {WIDE} columns on {DEVICES} devices such as these cores. A "
        f"product computes for {compute:.2f} s and sends for {1e3 * talk:.1f} ms; the two are "
        "equal at "
        f"{even:,.0f} rows. What breaks first is memory: {everything / 1e9:.0f} GB of float32, "
        f"{everything / 1e9 / DEVICES:.1f} GB on each device, twice that while they are placed. "
        "Then "
        "the slowest device: every product waits for it, and $s$ grows with the number of "
        "devices. We "
        "would let each process stream its own share of the rows from its own disk, and take "
        "stochastic steps until the noise of a batch matters.\n\n"
        f"**On paper: $10^9$ parameters** of a mean field. One vector of means and log sds has "
        f"{sent * NUMBER / 1e9:.0f} GB, conjugate gradients and a trust region keep about "
        f"{VECTORS} of "
        f"them on every device ({VECTORS * sent * NUMBER / 1e9:.0f} GB), and one all-reduce at "
        "the "
        f"bandwidth measured here takes {math.log2(DEVICES) * cost.wire * sent:.0f} s on "
        f"{DEVICES} "
        "devices. The vectors break first, long before the rows: curvi keeps a copy of all "
        "parameters "
        "on each device. We would cut the parameters over a second axis of the mesh, so that a "
        "device "
        f"keeps 1/{DEVICES} of each vector and an all-reduce becomes a reduce-scatter of that "
        "share, "
        "and take few products per step instead of many. KFAC breaks before that, at layers of "
        "$10^4$ "
        "units, whose factors have $10^8$ numbers: we would give each device the factors of its "
        "own "
        "layers."
    )
