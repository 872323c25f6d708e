"""The figures of the page on sequences: ``python docs/sequence_figures.py [NAME ...]``.

``volatility`` and ``forecast`` take seconds, ``return`` a minute. ``roll`` needs the data sets
(CURVI_DATA) and the model of ``python -m benchmarks music --set jsb --model FILE``:
``python docs/sequence_figures.py roll FILE``.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "sequences")]

import curvi
from curvi.plots import house_style, new_figure, plot_rolls, png_bytes
from curvi.plots._style import COLOURS, INK, LINES

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


@house_style
def returns(seconds: float = 30.0) -> None:
    """The cost of pendulum policies against time."""
    import jax
    import policy_pendulum

    figure = new_figure(7, 3.6)
    axes = figure.subplots()
    for number, name in enumerate(policy_pendulum.METHODS):
        for seed in range(3):
            result, _ = policy_pendulum.learn(name, seed, seconds=seconds)
            value = np.minimum.accumulate(result.trace["value"])
            axes.plot(
                result.trace["seconds"],
                value,
                color=COLOURS[number],
                linestyle=LINES[number],
                label=name if seed == 0 else None,
            )
    jax.clear_caches()
    axes.set_xlabel("wall-clock time [s], without compilation")
    axes.set_ylabel("best cost per step so far")
    axes.legend()
    write("return", figure)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen = sys.argv[1:] or ["volatility", "forecast", "return"]
    for place, name in enumerate(chosen):
        if name == "roll":
            roll(chosen[place + 1])
            break
        {"volatility": volatility, "forecast": forecast, "return": returns}[name]()
