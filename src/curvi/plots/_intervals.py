"""Estimates with intervals: posteriors, coefficients, effects."""

from __future__ import annotations

from typing import Any

import numpy as np

from curvi.plots._curves import draw_curve
from curvi.plots._style import COLOURS, MARKERS, QUIET, WIDTH, house_style, literal, new_figure

MOST_LABELS = 40


def draw_intervals(
    panel: Any, mean: np.ndarray, sides: np.ndarray, *, names: list[str] | None, number: int = 0,
    shift: float = 0.0, size: float = 4.0, label: str | None = None, small_type: int = 12,
) -> None:  # fmt: skip
    """Points with horizontal intervals from top to bottom, their names beside them.

    ``sides`` are half widths, one row or two; ``number`` chooses colour and marker.

    ``small_type``: names, from which on their type is smaller.
    """
    index = np.arange(len(mean))
    colour = COLOURS[number % len(COLOURS)]
    panel.errorbar(
        mean, index + shift, xerr=sides, fmt=MARKERS[number % len(MARKERS)], markersize=size,
        elinewidth=max(0.35 * size, 0.4), color=colour, label=label,
    )  # fmt: skip
    panel.axvline(0, color=QUIET, linewidth=0.8, linestyle="-", zorder=0)
    panel.grid(visible=False, axis="y")
    panel.set_ylim(len(mean) - 0.5, -0.5)
    if names is None:
        panel.set_yticks([])
    else:
        panel.set_yticks(index, literal(names), fontsize=8 if len(names) > small_type else 10)


@house_style
def plot_fit(
    trace: dict[str, np.ndarray],
    *,
    names: list[str],
    mean: np.ndarray,
    sd: np.ndarray,
    title: str = "",
) -> Any:
    """Draw the ELBO against wall-clock time, and each mean with an interval of two sds.

    Parameters
    ----------
    trace : dict of arrays
        ``elbo`` and ``seconds``, one entry per step; values that are not finite are left out.
    names : list of str
        Names of the coordinates, written beside them up to forty.
    mean, sd : arrays, (coordinates,)
        Posterior means and standard deviations.
    title : str
        Title of the figure.

    Returns
    -------
    matplotlib Figure
        Two panels: the trace on the left, the coordinates on the right.
    """
    named = len(names) <= MOST_LABELS
    figure = new_figure(10, float(np.clip(1.4 + 0.24 * len(names), 3.6, 9.0)) if named else 4.2)
    left, right = figure.subplots(1, 2)
    draw_curve(left, trace["seconds"], trace["elbo"], climbs=True)
    left.set_xlabel("wall-clock time [s], without compilation")
    left.set_ylabel("ELBO on the step's sample [nats]")
    draw_intervals(right, mean, 2 * sd, names=names if named else None, size=4 if named else 1.5)
    if not named:
        right.set_ylabel(f"{len(names)} coordinates")
    right.set_xlabel("posterior mean ± 2 sd")
    figure.suptitle(title)
    return figure


@house_style
def plot_coefficients(
    coefficients: np.ndarray, *, names: list[str] | None = None, labels: list[str] | None = None
) -> Any:
    """Draw estimated coefficients as stems, one panel per block.

    Parameters
    ----------
    coefficients : array, (blocks, features)
        Estimated coefficients; a block is a class, or everything where there are no classes.
    names : list of str, optional
        Names of the features, written below the last panel up to forty.
    labels : list of str, optional
        Names of the blocks (classes).

    Returns
    -------
    matplotlib Figure
        One panel per block, with a shared horizontal axis.
    """
    blocks, features = coefficients.shape
    figure = new_figure(WIDTH, 1.2 + 2.4 * blocks)
    panels = figure.subplots(blocks, 1, sharex=True, squeeze=False)[:, 0]
    index = np.arange(features)
    marker = "." if features <= 10 * MOST_LABELS else " "
    for block, panel in enumerate(panels):
        panel.stem(index, coefficients[block], linefmt=COLOURS[0], markerfmt=marker, basefmt=QUIET)
        panel.grid(visible=False, axis="x")
        panel.set_ylabel("estimated coefficient")
        if labels is not None:
            panel.set_title(f"class {literal(labels)[block]}")
    if names is not None and features <= MOST_LABELS:
        panels[-1].set_xticks(index, literal(names), rotation=60, ha="right", fontsize=8)
        panels[-1].set_xlabel("feature")
    else:
        panels[-1].set_xlabel("index of the feature")
    return figure


@house_style
def plot_effects(
    mean: np.ndarray, sd: np.ndarray, *, names: list[str], labels: list[str] | None = None
) -> Any:
    """Draw effects with intervals of two sds, the features with the largest effects first.

    An effect is that of one sd of a feature on the linear predictor. At most forty features are
    drawn.

    Parameters
    ----------
    mean, sd : arrays, (blocks, features)
        Posterior means and standard deviations of the effects.
    names : list of str
        Names of the features.
    labels : list of str, optional
        Names of the blocks (classes), for the legend.

    Returns
    -------
    matplotlib Figure
        One panel with a line per feature; blocks differ in colour and marker.
    """
    order = np.argsort(-np.abs(mean).max(axis=0), kind="stable")[:MOST_LABELS]
    figure = new_figure(WIDTH, 1.3 + 0.24 * max(len(order), 4))
    panel = figure.subplots()
    blocks = mean.shape[0]
    for block in range(blocks):
        draw_intervals(
            panel, mean[block, order], 2 * sd[block, order],
            names=[names[i] for i in order], number=block,
            shift=0.5 * ((block + 0.5) / blocks - 0.5),
            label=literal(labels)[block] if labels is not None else None,
        )  # fmt: skip
    panel.set_xlabel("effect of one sd of the feature: posterior mean ± 2 sd")
    if len(order) < len(names):
        panel.set_title(f"the {len(order)} largest of {len(names)} features")
    if labels is not None:
        figure.legend(title="class", loc="outside right upper")
    return figure
