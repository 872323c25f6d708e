"""The figures of the page on sequences: ``python docs/sequence_figures.py [NAME ...]``.

``volatility`` and ``forecast`` take seconds. ``roll`` needs the data sets
(CURVI_DATA) and the model of ``python -m benchmarks music --set jsb --model FILE``:
``python docs/sequence_figures.py roll FILE``.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import curvi
from curvi.plots import plot_rolls, png_bytes
from curvi.plots._style import INK

IMAGES = ROOT / "docs" / "images"


def write(name: str, figure: object) -> None:
    (IMAGES / f"sequences_{name}.png").write_bytes(png_bytes(figure))


def volatility() -> None:
    """Absolute returns, their smoothed volatility, and the truth that made them."""
    from benchmarks.sequence_peers import simulated

    y, signal = simulated("volatility", 1000, seed=1)
    figure = curvi.StateSpace(likelihood="volatility").fit(y).plot()
    axes = figure.axes[0]
    axes.plot(np.exp(0.5 * signal), color=INK, linewidth=0.8, label="true volatility")
    axes.legend(loc="upper left", frameon=False)
    axes.set_ylabel("|return|")
    write("volatility", figure)


def forecast() -> None:
    """Counts with a level and a season, a gap, and a year ahead."""
    rng = np.random.default_rng(4)
    t = np.arange(120)
    level = 2.2 + np.cumsum(0.06 * rng.normal(size=len(t)))
    y = rng.poisson(np.exp(level + 0.5 * np.sin(2 * np.pi * t / 12))).astype(float)
    y[50:58] = np.nan
    figure = curvi.StateSpace(season=12, likelihood="poisson").fit(y).plot(24)
    figure.axes[0].set_ylabel("count")
    write("forecast", figure)


def roll(path: str) -> None:
    """A chorale of the test pieces, and three samples of the model."""
    data = curvi.datasets.load("jsb")
    pieces = [data.test[0][0][:60], *curvi.load(path).sample(3, 60, seed=1)]
    figure = plot_rolls(pieces, ["a chorale", *["a sample"] * 3])
    figure.supylabel("note")
    write("roll", figure)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen = sys.argv[1:] or ["volatility", "forecast"]
    for place, name in enumerate(chosen):
        if name == "roll":
            roll(chosen[place + 1])
            break
        {"volatility": volatility, "forecast": forecast}[name]()
