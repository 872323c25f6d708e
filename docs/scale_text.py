"""The cost model of a product, fitted to recorded measurements, checked, and carried further."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from markdown import as_table

Row = dict[str, Any]
COLUMNS = 123  # of a9a
DEVICES, ROWS, WIDE = 64, 1e9, 100  # of the first example on paper
PARAMETERS, VECTORS = 1e9, 20  # of the second
NUMBER = 4  # bytes of float32


@dataclass(frozen=True)
class Cost:
    """Seconds of a product: ``overhead + each N d / P + log2(P) (latency + wire d) + waiting``."""

    overhead: float
    each: float  # per row and column
    latency: float
    wire: float  # per number of an all-reduce
    waiting: float  # for the slower of the processes

    @classmethod
    def fitted(cls, result: Row) -> Cost:
        """Computing from one process alone, sending from sums alone, waiting from two processes."""
        table, sums = result["products"], result["all_reduce"]
        seconds = np.asarray([row["one"] for row in table])
        work = np.asarray([row["rows"] * COLUMNS for row in table], float)
        overhead, each = _line(work, seconds)
        latency, wire = _line([s["numbers"] for s in sums], [s["median"] for s in sums])
        waiting = float(np.mean([row["two_mean"] - row["two"] for row in table]))
        return cls(overhead, each, latency, wire, max(waiting, 0.0))

    def product(self, rows: float, columns: float, devices: int) -> float:
        """Seconds of a product of so many rows."""
        own = self.overhead + self.each * rows * columns / devices
        if devices == 1:
            return own
        return own + math.log2(devices) * self.sum(columns) + self.waiting

    def sum(self, numbers: float) -> float:
        """Seconds of an all-reduce of two."""
        return self.latency + self.wire * numbers


def _line(x: Any, y: Any) -> tuple[float, float]:
    """Offset and slope, both not negative, with the least relative errors."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    design = np.stack([1 / y, x / y], axis=1)
    found = np.linalg.lstsq(design, np.ones(len(y)), rcond=None)[0]
    if found.min() >= 0:
        return float(found[0]), float(found[1])
    slope = np.sum(x / y) / np.sum((x / y) ** 2)
    return 0.0, float(slope)


def scale_text(result: Row) -> str:
    """What was measured, the model beside it, and where the model leads."""
    return "\n\n".join([_measured(result), _checked(result), _carried(Cost.fitted(result))])


def _measured(result: Row) -> str:
    last, saving, mapped = result["stream"][-1], result["saving"], result["mapped"]
    ratios = {m: mapped[m]["ratio"] for m in ("kfac", "adam")}
    return (
        f"**Rows on disk.** {last['rows']:,} rows of 100 columns take {last['seconds']:.0f} s on "
        "one "
        f"core and {last['bytes'] / 2**30:.2f} GiB, whatever their number; the cost grows with "
        "the "
        f"power {result['slope']:.2f} of it. An auto-encoder of the size used for MNIST whose "
        "rows "
        f"are in a file of {mapped['gigabytes']:g} GB takes {ratios['kfac']:.2f} (`kfac`) and "
        f"{ratios['adam']:.2f} (`adam`) times as many steps a second as one with rows in "
        "memory.\n\n"
        f"**Two processes on two cores** make {result['regression']['ratio']:.2f} times as many "
        f"products with the Hessian of a9a, repeated to {result['products'][-1]['rows']:,} rows, "
        "as "
        f"one on one core, and {result['vae_adam']['ratio']:.2f} (`adam`) and "
        f"{result['vae_kfac']['ratio']:.2f} (`kfac`) times as many steps of that auto-encoder at "
        "batches of 2,000 rows.\n\n"
        f"**A checkpoint** of it, {saving['bytes'] / 1e6:.0f} MB, takes "
        f"{1e3 * saving['seconds']:.0f} ms: once a minute that is {100 * saving['share']:.2f} % "
        "of a "
        "run."
    )


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
        f"column, {1e3 * cost.overhead:.2f} ms to begin), from sums of two processes alone "
        "($\\alpha "
        f"= {1e6 * cost.latency:.0f}$ µs, $\\beta = {1e9 * cost.wire:.2f}$ ns per number) and "
        "from the "
        f"difference between mean and median of two ($s = {1e3 * cost.waiting:.2f}$ ms). What "
        "they "
        "say of two processes was not fitted to any product of two, but for $s$; it is within "
        f"{100 * max(errors):.0f} % of what was measured:\n\n" + as_table(rows)
    )


def _carried(cost: Cost) -> str:
    compute = cost.each * ROWS * WIDE / DEVICES
    talk = math.log2(DEVICES) * cost.sum(WIDE)
    everything = ROWS * WIDE * NUMBER
    even = math.log2(DEVICES) * cost.sum(WIDE) / (cost.each * WIDE) * DEVICES
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
