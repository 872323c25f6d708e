"""Figures with matplotlib: functions of arrays that return figures and use no other room."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

__all__ = [
    "plot_bands", "plot_codes", "plot_coefficients", "plot_effects", "plot_fit", "plot_images",
    "plot_sheet", "plot_trace", "plot_training",
]  # fmt: skip
_MOST_LABELS = 40
_MOST_CLASSES = 20


def new_figure(width: float, height: float, *, layout: Any = "constrained") -> Any:
    """An empty figure; matplotlib is imported when the first one is drawn."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


def png_bytes(figure: Any, dpi: int = 120) -> bytes:
    """The figure as PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi)
    return stream.getvalue()


def _literal(texts: list[str]) -> list[str]:
    """Names as they are written: matplotlib would read a formula between dollar signs."""
    return [text.replace("$", r"\$") for text in texts]


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
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    finite = np.isfinite(trace["elbo"])
    left.plot(trace["seconds"][finite], trace["elbo"][finite], marker=".", color="tab:blue")
    left.set_xlabel("wall-clock time [s], without compilation")
    left.set_ylabel("ELBO on the step's sample [nats]")
    if finite.any():  # the first steps may start thousands of nats below the rest
        low, top = np.quantile(trace["elbo"][finite], 0.25), trace["elbo"][finite].max()
        margin = 0.1 * (top - low) + 1e-6 * max(abs(top), 1.0)
        left.set_ylim(low - 5 * margin, top + margin)
    place = np.arange(len(names))
    right.errorbar(mean, place, xerr=2 * sd, fmt="o", markersize=3, color="tab:blue", ecolor="0.6")
    right.axvline(0, color="0.8", zorder=0)
    if len(names) <= _MOST_LABELS:
        right.set_yticks(place, _literal(names), fontsize=8 if len(names) > 12 else 10)
    else:
        right.set_ylabel("coordinate")
    right.invert_yaxis()
    right.set_xlabel("posterior mean ± 2 sd")
    figure.suptitle(title)
    return figure


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
    figure = new_figure(8, 1.2 + 2.4 * blocks)
    panels = figure.subplots(blocks, 1, sharex=True, squeeze=False)[:, 0]
    place = np.arange(features)
    marker = "." if features <= 10 * _MOST_LABELS else " "
    for block, panel in enumerate(panels):
        panel.stem(place, coefficients[block], linefmt="tab:blue", markerfmt=marker, basefmt="0.8")
        panel.set_ylabel("estimated coefficient")
        if labels is not None:
            panel.set_title(f"class {_literal(labels)[block]}")
    if names is not None and features <= _MOST_LABELS:
        panels[-1].set_xticks(place, _literal(names), rotation=60, ha="right", fontsize=8)
        panels[-1].set_xlabel("feature")
    else:
        panels[-1].set_xlabel("index of the feature")
    return figure


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
        One panel with a line per feature and a colour per block.
    """
    order = np.argsort(-np.abs(mean).max(axis=0), kind="stable")[:_MOST_LABELS]
    place = np.arange(len(order))
    figure = new_figure(7.5, 1.3 + 0.24 * max(len(order), 4))
    panel = figure.subplots()
    panel.axvline(0, color="0.8", zorder=0)
    blocks = mean.shape[0]
    for block in range(blocks):
        shift = 0.5 * ((block + 0.5) / blocks - 0.5)
        panel.errorbar(
            mean[block, order],
            place + shift,
            xerr=2 * sd[block, order],
            fmt="o",
            markersize=4,
            elinewidth=1.2,
            color=f"C{block}",
            label=_literal(labels)[block] if labels is not None else None,
        )
    shown = [names[i] for i in order]
    panel.set_yticks(place, _literal(shown), fontsize=8 if len(order) > 12 else 10)
    panel.invert_yaxis()
    panel.set_xlabel("effect of one sd of the feature: posterior mean ± 2 sd")
    if len(order) < len(names):
        panel.set_title(f"the {len(order)} largest of {len(names)} features", fontsize=10)
    if labels is not None:
        figure.legend(title="class", fontsize=8, loc="outside right upper")
    return figure


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
                axis.plot(history[column], history["elbo"], "--", color="0.5", label="training")
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
    upper, lower = figure.subplots(2, 1, sharex=True)
    seconds, values = trace["seconds"], trace["value"]
    finite = np.isfinite(values)
    upper.plot(seconds[finite], values[finite], marker=".", markersize=3, color="tab:blue")
    upper.set_ylabel("objective on the step's sample")
    if finite.any():  # a few first values may be far above the rest
        low, high = values[finite].min(), np.quantile(values[finite], 0.95)
        margin = 0.05 * (high - low) + 1e-6 * max(abs(low), 1.0)
        upper.set_ylim(low - margin, high + 2 * margin)
    norms = np.where(trace["grad_norm"] > 0, trace["grad_norm"], np.nan)
    lower.plot(seconds, norms, marker=".", markersize=3, color="tab:orange")
    if np.isfinite(norms).any():
        lower.set_yscale("log")
    lower.set_ylabel("norm of the gradient")
    lower.set_xlabel("wall-clock time [s], without compilation")
    figure.suptitle(title)
    return figure


def plot_codes(
    codes: np.ndarray, labels: np.ndarray | None = None, *, names: tuple[str, str] = ("z1", "z2")
) -> Any:
    """Scatter two coordinates of codes, coloured by labels or values.

    Parameters
    ----------
    codes : array, (rows, 2)
        Coordinates to draw.
    labels : array, (rows,), optional
        Classes, which get a colour and a line of the legend each up to twenty, or real values,
        which get a colour bar.
    names : pair of str
        Names of the two coordinates.

    Returns
    -------
    matplotlib Figure
        One panel.
    """
    figure = new_figure(6, 5)
    axis = figure.subplots()
    style: dict[str, Any] = {"s": 12, "alpha": 0.8, "linewidths": 0}
    kinds = np.unique(labels) if labels is not None else np.zeros(0)
    if labels is None:
        axis.scatter(*codes.T, **style)
    elif labels.dtype.kind == "f" or len(kinds) > _MOST_CLASSES:
        _, order = np.unique(labels, return_inverse=True)
        shade = labels if labels.dtype.kind in "fiub" else order
        figure.colorbar(axis.scatter(*codes.T, c=shade, **style))
    else:
        for number, kind in enumerate(kinds):
            chosen = codes[labels == kind]
            colour = f"C{number}" if len(kinds) <= 10 else None
            axis.scatter(*chosen.T, color=colour, label=_literal([str(kind)])[0], **style)
        figure.legend(loc="outside right upper", fontsize=8)
    axis.set_xlabel(names[0])
    axis.set_ylabel(names[1])
    return figure


def plot_images(rows: dict[str, np.ndarray], image_shape: tuple[int, int]) -> Any:
    """Draw rows of grey images, each row with its name.

    Parameters
    ----------
    rows : dict of arrays, (images, pixels)
        Grey levels in [0, 1], by the name of the row; rows may differ in length.
    image_shape : pair of int
        Height and width of an image in pixels.

    Returns
    -------
    matplotlib Figure
        One axis per image.
    """
    count = max(len(images) for images in rows.values())
    height = 0.9 * image_shape[0] / image_shape[1]
    figure = new_figure(0.9 * count + 1.6, height * len(rows) + 0.2)
    axes = figure.subplots(len(rows), count, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for axis in line:
            axis.set_axis_off()
        for axis, image in zip(line, images, strict=False):
            axis.imshow(np.reshape(image, image_shape), cmap="gray", vmin=0, vmax=1)
        line[0].set_title(name, loc="left", fontsize=8)
    return figure


def plot_sheet(images: np.ndarray, image_shape: tuple[int, int]) -> Any:
    """Draw grey images as one sheet without gaps.

    Parameters
    ----------
    images : array, (rows, columns, pixels)
        Grey levels in [0, 1].
    image_shape : pair of int
        Height and width of an image in pixels.

    Returns
    -------
    matplotlib Figure
        One axis that fills the figure.
    """
    rows, columns = images.shape[:2]
    height, width = image_shape
    sheet = images.reshape(rows, columns, height, width).transpose(0, 2, 1, 3)
    whole = sheet.reshape(rows * height, columns * width)
    figure = new_figure(6, 6 * whole.shape[0] / whole.shape[1], layout=None)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    axis.imshow(whole, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    return figure


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
    axes.plot(steps, shown, ".", color="0.6", markersize=3, label="observed")
    future = len(series) + np.arange(len(ahead[0].mean)) if ahead and not absolute else None
    for bands, place, color, label in (
        (smoothed, steps, "tab:blue", "smoothed"),
        (ahead, future, "tab:orange", "forecast"),
    ):
        if place is None:
            continue
        for band in bands:
            axes.fill_between(place, band.lower, band.upper, color=color, alpha=0.25, linewidth=0)
        axes.plot(place, bands[0].mean, color=color, label=label)
    axes.set_xlabel("step")
    axes.legend(loc="upper left", frameon=False)
    return figure
