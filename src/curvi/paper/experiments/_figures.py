"""The figures of the experiments."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from curvi._core.files import write_atomically
from curvi._core.text import printable
from curvi.paper.experiments._methods import NEWTON, Comparison
from curvi.paper.experiments._runs import MethodRun
from curvi.plots import COLOURS, LINES, house_style, new_figure, png_bytes

Row = dict[str, Any]
QUICK = (
    "Quick settings: runs of one or two seconds with one setting per method, which say nothing "
    "about the paper's claims."
)
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are wide


def as_csv(rows: list[Row]) -> str:
    """CSV text of equal dictionaries, without text that a spreadsheet would run."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    lines: list[Iterable[Any]] = [list(rows[0]), *(row.values() for row in rows)]
    writer.writerows([_inert(cell) for cell in line] for line in lines)
    return stream.getvalue()


def _inert(cell: Any) -> Any:
    """The cell, printable, and with an apostrophe before what a spreadsheet would run."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(_FORMULA) else text
    return text


def as_markdown(rows: list[Row]) -> str:
    """A Markdown table of equal dictionaries."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)


def median_and_range(values: list[int] | list[float], digits: int = 0, *, huge: float = 1e7) -> str:
    """``median (lowest to highest)``, or the one value where all are equal.

    ``huge``: above which numbers are written as powers of ten.
    """
    lowest, middle, highest = (
        f"{value:.1e}" if abs(value) > huge else f"{value:.{digits}f}"
        for value in (min(values), statistics.median(values), max(values))
    )
    return middle if lowest == highest else f"{middle} ({lowest} to {highest})"


def write_files(out: Path, files: dict[str, Any], *, dpi: int = 120) -> list[Path]:
    """Write files, each complete or not at all: rows as .csv, figures as .png, text as it is.

    Parameters
    ----------
    out : Path
        Folder of the files.
    files : dict
        File names with their content.
    dpi : int
        Resolution of the figures.

    Returns
    -------
    list of Path
        The files, in the order given.
    """
    for name, content in files.items():
        if isinstance(content, list):
            write_atomically(out / name, as_csv(content))
        elif isinstance(content, str | bytes):
            write_atomically(out / name, content)
        else:
            write_atomically(out / name, png_bytes(content, dpi))
    return [out / name for name in files]


@house_style
def plot_convergence(
    histories: dict[str, list[dict[str, np.ndarray]]], *, title: str = "", furthest: float = 4.0
) -> Any:
    """Draw how far the validation ELBO is below the best one of all runs, on a logarithmic scale.

    Parameters
    ----------
    histories : dict of lists of dicts of arrays
        ``history_`` of trained models, a list of seeds by the name of the method.
    title : str
        Title of the figure.
    furthest : float
        What is drawn of a run, in units of the distance of the starts from the best bound.

    Returns
    -------
    matplotlib Figure
        Two panels, against seconds and against epochs, with a shared vertical axis.
    """
    figure = new_figure(10, 4)
    axes = figure.subplots(1, 2, sharey=True)
    elbos = [history["validation_elbo"] for several in histories.values() for history in several]
    finite = np.concatenate([values[np.isfinite(values)] for values in elbos])
    best = float(finite.max()) if len(finite) else 0.0
    # The best run of all reaches a gap of zero, which has no place on this scale.
    smallest = max(1e-3 * (best - float(np.median(finite))) if len(finite) else 1.0, 1e-12)
    # A run that diverges goes along the upper edge, and is seen to.
    starts = [best - values[0] for values in elbos if np.isfinite(values[:1]).all()]
    largest = max(furthest * max(starts, default=1.0), 10 * smallest)
    for number, (name, several) in enumerate(histories.items()):
        for seed, history in enumerate(several):
            gap = np.nan_to_num(best - history["validation_elbo"], nan=largest, posinf=largest)
            gap = np.clip(gap, smallest, largest)
            for axis, column in zip(axes, ("seconds", "epoch"), strict=True):
                axis.plot(
                    history[column], gap, marker=".", markersize=3, linewidth=0.8,
                    color=f"C{number}", label=name if seed == 0 else None,
                )  # fmt: skip
    axes[0].set_xlabel("training time [s], without compilation and evaluation")
    axes[1].set_xlabel("epoch")
    axes[1].set_xscale("log")
    axes[0].set_yscale("log")
    axes[0].set_ylabel(f"nats per image below {best:.4g}")
    axes[1].legend()
    figure.suptitle(title)
    return figure


_NUMBERS = {NEWTON: 0, "HFSGVI": 1, "L-BFGS-SGVI": 2, "DSVI": 6}
_COLOURS = {method: COLOURS[number] for method, number in _NUMBERS.items()}


@house_style
def draw_convergence(
    comparisons: list[Comparison], *, smallest_gap: float = 1e-2, smallest_time: float = 1e-2,
    few: int = 40,
) -> Any:  # fmt: skip
    """Nats below the best bound of all runs, against processor time and against epochs.

    Both axes are logarithmic: on the scale of the bound itself all ends look alike.

    ``smallest_gap``: nats that are drawn.
    ``smallest_time``: seconds that are drawn.
    ``few``: points of a curve that are drawn one by one.
    """
    page = new_figure(4.3 * len(comparisons), 7.2)
    panels = page.subplots(2, len(comparisons), squeeze=False)
    for column, one in enumerate(comparisons):
        best = max(run.last for runs in one.runs.values() for run in runs)
        upper, lower = panels[0, column], panels[1, column]
        first = min(run.bound[0] for runs in one.runs.values() for run in runs)
        top = max(4 * (best - first), 10 * smallest_gap)
        for method, runs in one.runs.items():
            for number, run in enumerate(runs):
                style = {
                    "color": _COLOURS[method],
                    "linestyle": LINES[_NUMBERS[method]],
                    "label": method if number == 0 else None,
                    "linewidth": 1.3,
                    "alpha": 0.8,
                    "marker": "." if len(run.step) < few else None,
                }
                # A run that diverges goes along the upper edge, and is seen to.
                gap = np.nan_to_num(best - run.bound, nan=top, posinf=top)
                gap = np.clip(gap, smallest_gap, top)
                upper.plot(np.maximum(run.seconds, smallest_time), gap, **style)
                lower.plot(np.maximum(_epochs(one, method, run), 0.5), gap, **style)
        for panel, label in ((upper, "processor time [s], without compilation"),
                             (lower, "epochs (gradients of all rows)")):  # fmt: skip
            panel.set(xscale="log", yscale="log", xlabel=label)
            panel.set_ylim(0.8 * smallest_gap, 1.25 * top)
        upper.set_title(f"{one.name}, best bound {best:.2f} nats", fontsize=10)
    for row in panels:
        row[0].set_ylabel("nats below the best bound")
    panels[0, 0].legend(fontsize=8, loc="lower left")
    return page


def _epochs(one: Comparison, method: str, run: MethodRun) -> np.ndarray:
    setting = one.settings.get(method)
    return run.step if setting is None else setting.epochs(run.step, len(one.train[1]))


@house_style
def draw_coefficients(means: dict[str, dict[str, np.ndarray]], *, marked: float = 0.1) -> Any:
    """Stems of the posterior means, zero where switched off: data by rows, methods by columns.

    ``marked``: share of the largest coefficient, from which on a stem has a head.
    """
    methods = list(next(iter(means.values())))
    page = new_figure(3.4 * len(methods), 2.1 * len(means))
    panels = page.subplots(len(means), len(methods), squeeze=False)
    for row, (name, means_of) in zip(panels, means.items(), strict=True):
        for panel, method in zip(row, methods, strict=True):
            mean = means_of[method]
            index = np.arange(len(mean))
            panel.axhline(0, color="0.8", linewidth=0.8)
            panel.vlines(index, 0, mean, color=_COLOURS[method], linewidth=1.2)
            large = np.abs(mean) > marked * np.abs(mean).max(initial=0.0)
            panel.plot(index[large], mean[large], "o", markersize=2.5, color=_COLOURS[method])
            panel.set_title(f"{name}, {method}", fontsize=9)
        row[0].set_ylabel("coefficient")
    for panel in panels[-1]:
        panel.set_xlabel("index (the last is the intercept)", fontsize=9)
    return page
