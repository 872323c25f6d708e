"""Curves: what an optimisation went through, and series with bands."""

from __future__ import annotations

from typing import Any

import numpy as np

from curvi.plots._style import COLOURS, QUIET, house_style, new_figure


def draw_curve(
    panel: Any, x: np.ndarray, values: np.ndarray, *, climbs: bool, share: float = 0.75
) -> None:
    """One curve of an objective, on an axis that shows where it ends and not where it began.

    ``share``: fraction of the values that an axis shows: the first ones may be far from the rest.
    """
    finite = np.isfinite(values)
    shown = values[finite]
    panel.plot(x[finite], shown, marker=".", markersize=4, color=COLOURS[0], linestyle="-")
    if not len(shown):
        return
    best = shown.max() if climbs else shown.min()
    far = np.quantile(shown, 1 - share if climbs else share)
    margin = 0.1 * abs(best - far) + 1e-6 * max(abs(best), 1.0)
    limits = (far - 5 * margin, best + margin) if climbs else (best - margin, far + 5 * margin)
    panel.set_ylim(*limits)


def draw_run(
    figure: Any, x: np.ndarray, values: np.ndarray, norms: np.ndarray, climbs: bool
) -> tuple[Any, Any]:
    """An objective above the norm of its gradient; the two panels."""
    upper, lower = figure.subplots(2, 1, sharex=True)
    draw_curve(upper, x, values, climbs=climbs)
    norms = np.where(norms > 0, norms, np.nan)
    lower.plot(x, norms, marker=".", markersize=4, color=COLOURS[1], linestyle="-")
    if np.isfinite(norms).any():
        lower.set_yscale("log")
    lower.set_ylabel("norm of the gradient")
    return upper, lower


@house_style
def plot_training(histories: dict[str, dict[str, np.ndarray]], *, title: str = "") -> Any:
    """Draw the ELBO per row against seconds and against epochs, one line per method.

    A single method shows its training ELBO too, dashed.

    Parameters
    ----------
    histories : dict of dicts of arrays
        ``history_`` of trained models, by the name of the method; the validation ELBO is drawn
        where there is one, otherwise the training ELBO.
    title : str
        Title of the figure.

    Returns
    -------
    matplotlib Figure
        Two panels with a shared vertical axis.
    """
    figure = new_figure(10, 4)
    axes = figure.subplots(1, 2, sharey=True)
    tops: list[float] = []
    for name, history in histories.items():
        elbo = history["validation_elbo"]
        elbo = history["elbo"] if np.all(np.isnan(elbo)) else elbo
        for axis, column in zip(axes, ("seconds", "epoch"), strict=True):
            axis.plot(history[column], elbo, marker=".", markersize=3, label=name)
            if len(histories) == 1 and elbo is not history["elbo"]:
                axis.plot(history[column], history["elbo"], "--", color=QUIET, label="training")
        tops += [float(v) for v in elbo if np.isfinite(v)]
    axes[0].set_xlabel("training time [s], without compilation")
    axes[1].set_xlabel("epoch")
    axes[0].set_ylabel("ELBO per image [nats]")
    if tops:
        high, low = max(tops), np.quantile(tops, 0.1)
        axes[0].set_ylim(low - 0.2 * (high - low) - 1e-6, high + 0.1 * (high - low) + 1e-6)
    axes[1].legend()
    figure.suptitle(title)
    return figure


@house_style
def plot_trace(trace: dict[str, np.ndarray], *, title: str = "") -> Any:
    """Draw an objective that was minimised, and the norm of its gradient, against time.

    Parameters
    ----------
    trace : dict of arrays
        ``seconds``, ``value`` and ``grad_norm``, one entry per step.
    title : str
        Title of the figure.

    Returns
    -------
    matplotlib Figure
        Two panels with a shared horizontal axis.
    """
    figure = new_figure(8, 5)
    upper, lower = draw_run(figure, trace["seconds"], trace["value"], trace["grad_norm"], False)
    upper.set_ylabel("objective on the step's sample")
    lower.set_xlabel("wall-clock time [s], without compilation")
    figure.suptitle(title)
    return figure


@house_style
def plot_bands(
    series: np.ndarray, smoothed: list[Any], ahead: list[Any], *, absolute: bool = False
) -> Any:
    """Draw a series, bands around its signal, and a fan of forecasts.

    Parameters
    ----------
    series : array, (steps,)
        Observations; NaN where there is none.
    smoothed, ahead : list of Band
        Bands of the signal and of future observations, the widest first; ``ahead`` may be empty.
    absolute : bool
        Draw absolute values, beside the volatility that they have in common.

    Returns
    -------
    matplotlib Figure
        One panel.
    """
    figure = new_figure(9, 3.6)
    axes = figure.subplots()
    steps = np.arange(len(series))
    shown = np.abs(series) if absolute else series
    axes.plot(steps, shown, ".", color=QUIET, markersize=4, label="observed")
    future = len(series) + np.arange(len(ahead[0].mean)) if ahead and not absolute else None
    for bands, x, number, label in (
        (smoothed, steps, 0, "smoothed"),
        (ahead, future, 1, "forecast"),
    ):
        if x is None:
            continue
        colour = COLOURS[number]
        for band in bands:
            axes.fill_between(x, band.lower, band.upper, color=colour, alpha=0.25, linewidth=0)
        axes.plot(
            x, bands[0].mean, color=colour, linestyle=("-", "--")[number], label=label
        )  # fmt: skip
    axes.set_xlabel("step")
    axes.set_ylabel("absolute value" if absolute else "value")
    axes.legend(loc="upper left")
    return figure
