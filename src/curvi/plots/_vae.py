"""Pictures of auto-encoders: training curves, rows of images, sheets of images."""

from __future__ import annotations

from typing import Any

import numpy as np


def plot_training(histories: dict[str, dict[str, np.ndarray]], *, title: str = "") -> Any:
    """The bound per row against seconds and against epochs, one line per method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    tops: list[float] = []
    for name, history in histories.items():
        bound = history["validation_elbo"]
        bound = history["elbo"] if np.all(np.isnan(bound)) else bound
        for axis, column in zip(axes, ("seconds", "epoch"), strict=True):
            axis.plot(history[column], bound, marker=".", markersize=3, label=name)
        tops += [float(v) for v in bound if np.isfinite(v)]
    axes[0].set_xlabel("training time [s], without compilation")
    axes[1].set_xlabel("epoch")
    axes[0].set_ylabel("bound per image [nats]")
    if tops:
        high, low = max(tops), np.quantile(tops, 0.1)
        axes[0].set_ylim(low - 0.2 * (high - low) - 1e-6, high + 0.1 * (high - low) + 1e-6)
    axes[1].legend()
    figure.suptitle(title)
    return figure


def plot_images(rows: dict[str, np.ndarray], image_shape: tuple[int, int]) -> Any:
    """Rows of images, each with its name."""
    from matplotlib.figure import Figure

    count = max(len(images) for images in rows.values())
    height = 0.9 * image_shape[0] / image_shape[1]
    figure = Figure(figsize=(0.9 * count + 1.6, height * len(rows) + 0.2), layout="constrained")
    axes = figure.subplots(len(rows), count, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for axis in line:
            axis.set_axis_off()
        for axis, image in zip(line, images, strict=False):
            axis.imshow(np.reshape(image, image_shape), cmap="gray", vmin=0, vmax=1)
        line[0].set_title(name, loc="left", fontsize=8)
    return figure


def plot_sheet(images: np.ndarray, image_shape: tuple[int, int]) -> Any:
    """A (rows, columns, pixels) array of images as one sheet."""
    from matplotlib.figure import Figure

    rows, columns = images.shape[:2]
    height, width = image_shape
    sheet = images.reshape(rows, columns, height, width).transpose(0, 2, 1, 3)
    whole = sheet.reshape(rows * height, columns * width)
    figure = Figure(figsize=(6, 6 * whole.shape[0] / whole.shape[1]))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    axis.imshow(whole, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    return figure
