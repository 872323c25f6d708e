"""Theorem 2, its corollary and Lemma 4: measured variances and tails beside the inequalities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from curvi.paper.concentration import loose_variance_bound, tail_bound, variance_bound
from curvi.paper.experiments._figures import Row, as_markdown, write_files
from curvi.plots import house_style, new_figure
from curvi.vae import reconstruction_variance, relative_gradient_error

Function = Callable[[np.ndarray], np.ndarray]
# Functions with L = 1 in every dimension.
FUNCTIONS: dict[str, Function] = {
    "linear": lambda e: e.sum(axis=1) / math.sqrt(e.shape[1]),
    "length": lambda e: np.linalg.norm(e, axis=1),
    "largest": lambda e: e.max(axis=1),
    "tanh unit": lambda e: np.tanh(e.sum(axis=1) / math.sqrt(e.shape[1])),
}
DIMENSIONS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
COUNTS = (1, 3, 10, 30, 100, 300, 1000)
EPOCHS = (1, 2, 5, 10, 20, 40)
ERROR = 0.2  # of the mean, in units of L
_ROWS, _DRAWS = 100, 200


def run(
    out: Path, *, seeds: Sequence[int], quick: bool, report: Callable[[str], None]
) -> list[Path]:
    """Write the variances, the tails and the decoder (CSV and PNG), and concentration.md."""
    report("variances by dimension")
    variances = variance_rows(2000 if quick else 20_000, seeds)
    report("tails by number of draws")
    tails = tail_rows(2000 if quick else 20_000, seeds)
    decoder = decoder_rows(seeds, quick=quick, report=report)
    files = {
        "concentration_variance.csv": variances,
        "concentration_variance.png": draw_variances(variances),
        "concentration_tails.csv": tails,
        "concentration_tails.png": draw_tails(tails),
        "concentration_decoder.csv": decoder,
        "concentration_decoder.png": draw_decoder(decoder),
        "concentration.md": summary(variances, tails, decoder),
    }
    return write_files(out, files)


def variance_rows(draws: int, seeds: Sequence[int]) -> list[Row]:
    """Measured variance of each function in each dimension, over several seeds."""
    rows = []
    for name, function in FUNCTIONS.items():
        for dimension in DIMENSIONS:
            variances = [_values(function, draws, dimension, seed).var(ddof=1) for seed in seeds]
            rows.append(
                {
                    "function": name,
                    "dimension": dimension,
                    "variance": _rounded(np.mean(variances), 5),
                    "sharp": variance_bound(1.0),
                    "theorem 2": variance_bound(1.0, constant="paper"),
                    "loose": loose_variance_bound(1.0, dimension),
                }
            )
    return rows


def tail_rows(means: int, seeds: Sequence[int]) -> list[Row]:
    """Share of means of M draws that are off by ERROR or more, for the steepest function."""
    rows = []
    for count in COUNTS:
        rng = np.random.default_rng([11, count, seeds[0]])
        # The mean of M draws of a linear function is N(0, 1/M) exactly.
        errors = np.abs(rng.standard_normal(means * len(seeds))) / math.sqrt(count)
        rows.append(
            {
                "draws": count,
                "measured": float(np.mean(errors >= ERROR)),
                "sharp": tail_bound(1.0, count, ERROR),
                "corollary": tail_bound(1.0, count, ERROR, constant="paper"),
            }
        )
    return rows


def _values(
    function: Function, draws: int, dimension: int, seed: int, *, numbers_at_once: int = 2_000_000
) -> np.ndarray:
    rng = np.random.default_rng([5, seed, dimension])
    size = max(1, numbers_at_once // dimension)
    sizes = [min(size, draws - start) for start in range(0, draws, size)]
    return np.concatenate([function(rng.standard_normal((n, dimension))) for n in sizes])


def _rounded(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def decoder_rows(seeds: Sequence[int], *, quick: bool, report: Callable[[str], None]) -> list[Row]:
    """Train the paper's shape of network on bundled digits, and measure it on the way.

    For the decoder of each stage: its Lipschitz constant, the variance of the reconstruction term
    from one draw, and the error of a gradient from one draw. The same seed gives the same bits, so
    a longer run passes through the shorter ones.
    """
    from sklearn.datasets import load_digits

    from curvi.vae import VAE

    images = (load_digits().data / 16).astype(np.float32)
    rows = []
    for epochs in EPOCHS[:3] if quick else EPOCHS:
        reports = []
        for seed in seeds[:1] if quick else seeds:
            report(f"digits: {epochs} epochs, seed {seed}")
            model = VAE(
                latent=10, hidden=(100,), max_epochs=epochs, validation_fraction=0.0,
                random_state=seed,
            ).fit(images)  # fmt: skip
            inputs = (model.objective_, model.params_, images[:_ROWS])
            variance = reconstruction_variance(*inputs, num_draws=_DRAWS, seed=seed)
            error = relative_gradient_error(*inputs, num_draws=_DRAWS, seed=seed)
            reports.append((variance.lipschitz, variance.measured, variance.sharp, error))
        lipschitz, measured, sharp, error = np.mean(reports, axis=0)
        rows.append(
            {
                "epochs": epochs,
                "Lipschitz constant": _rounded(lipschitz),
                "measured variance [nats^2]": _rounded(measured),
                "upper bound [nats^2]": _rounded(sharp),
                "upper bound / measured": _rounded(sharp / measured),
                "gradient error, M = 1": _rounded(error, 3),
            }
        )
    return rows


@house_style
def draw_variances(rows: list[Row]) -> Any:
    """Variance against dimension: three upper bounds, four functions."""
    page = new_figure(7, 4.2)
    panel = page.subplots()
    lines = [row for row in rows if row["function"] == rows[0]["function"]]
    places = [row["dimension"] for row in lines]
    for key, style, label in (
        ("loose", "k:", r"loose, $\pi^2 L^2 d / 4$"),
        ("theorem 2", "k--", r"Theorem 2, $\pi^2 L^2 / 4$"),
        ("sharp", "k-", r"sharp, $L^2$"),
    ):
        panel.plot(places, [row[key] for row in lines], style, label=label)
    for name in FUNCTIONS:
        variances = [row["variance"] for row in rows if row["function"] == name]
        panel.plot(places, variances, "o-", markersize=4, linewidth=1, label=f"measured: {name}")
    panel.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="variance (L = 1)")
    panel.set_ylim(bottom=5e-3, top=1e3)
    panel.legend(fontsize=8, ncols=2)
    return page


@house_style
def draw_tails(rows: list[Row]) -> Any:
    """Tail probability against the number of draws."""
    page = new_figure(7, 4.2)
    panel = page.subplots()
    places = [row["draws"] for row in rows]
    for key, style, label in (
        ("corollary", "k--", r"corollary, $2\exp(-2Mt^2/\pi^2L^2)$"),
        ("sharp", "k-", r"sharp, $2\exp(-Mt^2/2L^2)$"),
    ):
        panel.plot(places, [row[key] for row in rows], style, label=label)
    seen = [(row["draws"], row["measured"]) for row in rows if row["measured"] > 0]
    panel.plot(*zip(*seen, strict=True), "o-", markersize=4, label="measured: linear")
    panel.set(xscale="log", yscale="log", xlabel="draws M", ylim=(1e-6, 2))
    panel.set_ylabel(f"P(error of the mean >= {ERROR} L)")
    panel.legend(fontsize=8)
    return page


@house_style
def draw_decoder(rows: list[Row]) -> Any:
    """Upper bound and measurement of the variance, and the error of the gradient, by epochs."""
    page = new_figure(9, 3.8)
    left, right = page.subplots(1, 2)
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    epochs = columns["epochs"]
    left.plot(epochs, columns["upper bound [nats^2]"], "k-", label="upper bound, mean of $L^2$")
    left.plot(epochs, columns["measured variance [nats^2]"], "o-", label="measured")
    left.set(xscale="log", yscale="log", xlabel="epochs", ylabel="variance of one draw [nats$^2$]")
    left.set_title("reconstruction term of one image", fontsize=10)
    left.legend(fontsize=8)
    right.plot(epochs, columns["gradient error, M = 1"], "o-", color="C1")
    right.set(xscale="log", xlabel="epochs", ylim=(0, None))
    right.set_ylabel("sd of a gradient from M = 1 / its length")
    right.set_title(f"gradient over {_ROWS} images", fontsize=10)
    return page


def summary(variances: list[Row], tails: list[Row], decoder: list[Row]) -> str:
    """Where the inequalities are loose, and by how much."""
    measured = {(row["function"], row["dimension"]): row["variance"] for row in variances}
    low, high = DIMENSIONS[0], DIMENSIONS[-1]
    table = [
        {
            "function (L = 1)": name,
            f"variance, d = {low}": measured[name, low],
            f"variance, d = {high}": measured[name, high],
            "sharp upper bound / variance": _rounded(1 / measured[name, high], 3),
        }
        for name in FUNCTIONS
    ]
    broken = [row for row in variances if row["variance"] > 1.1 * row["sharp"]]
    count = (
        f"Variances more than a tenth above the sharp upper bound: {len(broken)} of "
        f"{len(variances)}."
    )
    return "\n\n".join([as_markdown(table), count, as_markdown(tails), as_markdown(decoder), ""])
