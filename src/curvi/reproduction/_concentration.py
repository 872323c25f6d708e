"""Theorem 2, its corollary and Lemma 4 seen with the eye: measured variances against the bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from curvi import concentration as bounds
from curvi._core.files import write_atomically
from curvi.plots import png_bytes
from curvi.reproduction._decoder_bounds import decoder_rows, draw_decoder
from curvi.reproduction._tables import as_csv, as_markdown

Function = Callable[[np.ndarray], np.ndarray]
Row = dict[str, Any]
# Functions with L = 1 in every dimension.
FUNCTIONS: dict[str, Function] = {
    "linear": lambda e: e.sum(axis=1) / math.sqrt(e.shape[1]),
    "length": lambda e: np.linalg.norm(e, axis=1),
    "largest": lambda e: e.max(axis=1),
    "tanh unit": lambda e: np.tanh(e.sum(axis=1) / math.sqrt(e.shape[1])),
}
DIMENSIONS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
COUNTS = (1, 3, 10, 30, 100, 300, 1000)
ERROR = 0.2  # of the mean, in units of L
_NUMBERS_AT_ONCE = 2_000_000


def run(out: Path, *, seeds: int, quick: bool, report: Callable[[str], None]) -> list[Path]:
    """Write bounds_variance, bounds_tails, bounds_decoder (PNG and CSV) and bounds.md."""
    report("variances by dimension")
    variances = variance_rows(2000 if quick else 20_000, seeds)
    report("tails by number of draws")
    tails = tail_rows(2000 if quick else 20_000, seeds)
    decoder = decoder_rows(seeds, quick=quick, report=report)
    drawings = {
        "bounds_variance": (variances, draw_variances),
        "bounds_tails": (tails, draw_tails),
        "bounds_decoder": (decoder, draw_decoder),
    }
    written = []
    for name, (rows, draw) in drawings.items():
        write_atomically(out / f"{name}.csv", as_csv(rows))
        write_atomically(out / f"{name}.png", png_bytes(draw(rows)))
        written += [out / f"{name}.csv", out / f"{name}.png"]
    write_atomically(out / "bounds.md", summary(variances, tails, decoder))
    return [*written, out / "bounds.md"]


def variance_rows(draws: int, seeds: int) -> list[Row]:
    """Measured variance of each function in each dimension, over several seeds."""
    rows = []
    for name, function in FUNCTIONS.items():
        for dimension in DIMENSIONS:
            found = [
                float(_values(function, draws, dimension, seed).var(ddof=1))
                for seed in range(seeds)
            ]
            rows.append(
                {
                    "function": name,
                    "dimension": dimension,
                    "variance": float(f"{np.mean(found):.5g}"),
                    "sharp": bounds.variance_bound(1.0),
                    "theorem 2": bounds.variance_bound(1.0, constant="paper"),
                    "loose": bounds.loose_variance_bound(1.0, dimension),
                }
            )
    return rows


def tail_rows(means: int, seeds: int) -> list[Row]:
    """Share of means of M draws that are off by ERROR or more, for the steepest function."""
    rows = []
    for count in COUNTS:
        rng = np.random.default_rng([11, count])
        # The mean of M draws of a linear function is N(0, 1/M) exactly.
        errors = np.abs(rng.standard_normal(means * seeds)) / math.sqrt(count)
        rows.append(
            {
                "draws": count,
                "measured": float(np.mean(errors >= ERROR)),
                "sharp": bounds.tail_bound(1.0, count, ERROR),
                "corollary": bounds.tail_bound(1.0, count, ERROR, constant="paper"),
            }
        )
    return rows


def _values(function: Function, draws: int, dimension: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([5, seed, dimension])
    size = max(1, _NUMBERS_AT_ONCE // dimension)
    sizes = [min(size, draws - start) for start in range(0, draws, size)]
    return np.concatenate([function(rng.standard_normal((n, dimension))) for n in sizes])


def draw_variances(rows: list[Row]) -> Any:
    """Variance against dimension: three bounds, four functions."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(7, 4.2), layout="constrained")
    panel = page.subplots()
    lines = [row for row in rows if row["function"] == rows[0]["function"]]
    places = [row["dimension"] for row in lines]
    for key, style, label in (
        ("loose", ":", r"loose, $\pi^2 L^2 d / 4$"),
        ("theorem 2", "--", r"Theorem 2, $\pi^2 L^2 / 4$"),
        ("sharp", "-", r"sharp, $L^2$"),
    ):
        panel.plot(places, [row[key] for row in lines], style, color="black", label=label)
    for name in FUNCTIONS:
        found = [row["variance"] for row in rows if row["function"] == name]
        panel.plot(places, found, "o-", markersize=4, linewidth=1, label=f"measured: {name}")
    panel.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="variance (L = 1)")
    panel.set_ylim(bottom=5e-3, top=1e3)
    panel.legend(fontsize=8, ncols=2)
    return page


def draw_tails(rows: list[Row]) -> Any:
    """Tail probability against the number of draws."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(7, 4.2), layout="constrained")
    panel = page.subplots()
    places = [row["draws"] for row in rows]
    for key, style, label in (
        ("corollary", "--", r"corollary, $2\exp(-2Mt^2/\pi^2L^2)$"),
        ("sharp", "-", r"sharp, $2\exp(-Mt^2/2L^2)$"),
    ):
        panel.plot(places, [row[key] for row in rows], style, color="black", label=label)
    seen = [(row["draws"], row["measured"]) for row in rows if row["measured"] > 0]
    panel.plot(*zip(*seen, strict=True), "o-", markersize=4, label="measured: linear")
    panel.set(xscale="log", yscale="log", xlabel="draws M", ylim=(1e-6, 2))
    panel.set_ylabel(f"P(error of the mean >= {ERROR} L)")
    panel.legend(fontsize=8)
    return page


def summary(variances: list[Row], tails: list[Row], decoder: list[Row]) -> str:
    """Where the bounds are loose, and by how much."""
    table = [
        {
            "function (L = 1)": name,
            "variance, d = 1": _at(variances, name, DIMENSIONS[0]),
            f"variance, d = {DIMENSIONS[-1]}": _at(variances, name, DIMENSIONS[-1]),
            "sharp bound / variance": float(f"{1 / _at(variances, name, DIMENSIONS[-1]):.3g}"),
        }
        for name in FUNCTIONS
    ]
    broken = [row for row in variances if row["variance"] > 1.1 * row["sharp"]]
    return "\n\n".join(
        [
            as_markdown(table),
            f"Variances more than a tenth above the sharp bound: {len(broken)} of "
            f"{len(variances)}.",
            as_markdown(tails),
            as_markdown(decoder),
            "",
        ]
    )


def _at(rows: list[Row], name: str, dimension: int) -> float:
    found = [r for r in rows if r["function"] == name and r["dimension"] == dimension]
    return float(found[0]["variance"])
