"""Pictures: rows of grey images, sheets of them, and the codes that belong to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from curvi.plots._style import (
    COLOURS,
    MARKERS,
    QUIET,
    house_style,
    literal,
    new_figure,
)


@house_style
def plot_codes(
    codes: np.ndarray, labels: np.ndarray | None = None, *, names: tuple[str, str] = ("z1", "z2"),
    most_classes: int = 20,
) -> Any:  # fmt: skip
    """Scatter two coordinates of codes, coloured by labels or values.

    Parameters
    ----------
    codes : array, (rows, 2)
        Coordinates to draw.
    labels : array, (rows,), optional
        Classes, which get a colour, a marker and a line of the legend each up to twenty, or real
        values, which get a colour bar.
    names : pair of str
        Names of the two coordinates.
    most_classes : int
        With colours of their own.

    Returns
    -------
    matplotlib Figure
        One panel.
    """
    figure = new_figure(6.5, 5)
    axis = figure.subplots()
    style: dict[str, Any] = {"s": 14, "alpha": 0.8, "linewidths": 0}
    kinds = np.unique(labels) if labels is not None else np.zeros(0)
    if labels is None:
        axis.scatter(*codes.T, color=COLOURS[0], **style)
    elif labels.dtype.kind == "f" or len(kinds) > most_classes:
        _, order = np.unique(labels, return_inverse=True)
        shade = labels if labels.dtype.kind in "fiub" else order
        figure.colorbar(axis.scatter(*codes.T, c=shade, cmap="cividis", **style))
    else:
        for number, kind in enumerate(kinds):
            axis.scatter(
                *codes[labels == kind].T, color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)], label=literal([str(kind)])[0], **style,
            )  # fmt: skip
        figure.legend(loc="outside right upper", markerscale=2)
    axis.set_xlabel(names[0])
    axis.set_ylabel(names[1])
    return figure


@house_style
def plot_images(rows: dict[str, np.ndarray], image_shape: tuple[int, int]) -> Any:
    """Draw rows of grey images, each row with its name.

    The ground is transparent and names are grey, so that the figure suits a light or dark page.

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
    figure = new_figure(0.9 * count + 0.2, (height + 0.25) * len(rows) + 0.1)
    figure.patch.set_alpha(0.0)
    axes = figure.subplots(len(rows), count, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for axis in line:
            axis.set_axis_off()
        for axis, image in zip(line, images, strict=False):
            axis.imshow(np.reshape(image, image_shape), cmap="gray", vmin=0, vmax=1)
        line[0].set_title(literal([name])[0], loc="left", fontsize=9, color=QUIET)
    return figure


@house_style
def plot_sheet(images: np.ndarray, image_shape: tuple[int, int], *, quantiles: bool = False) -> Any:
    """Draw grey images as one sheet without gaps.

    Parameters
    ----------
    images : array, (rows, columns, pixels)
        Grey levels in [0, 1].
    image_shape : pair of int
        Height and width of an image in pixels.
    quantiles : bool
        The images are decoded from a net of two codes at equally spaced quantiles of their prior,
        the first from left to right, the second from bottom to top: label the axes with them.

    Returns
    -------
    matplotlib Figure
        One axis, which fills the figure where there are no quantiles.
    """
    rows, columns = images.shape[:2]
    height, width = image_shape
    sheet = images.reshape(rows, columns, height, width).transpose(0, 2, 1, 3)
    whole = sheet.reshape(rows * height, columns * width)
    aspect = whole.shape[0] / whole.shape[1]
    figure = new_figure(6, 6 * aspect, layout="constrained" if quantiles else None)
    figure.patch.set_alpha(0.0)
    axis = figure.subplots() if quantiles else figure.add_axes((0, 0, 1, 1))
    axis.imshow(whole, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    if not quantiles:
        axis.set_axis_off()
        return figure
    axis.grid(visible=False)
    across, down = (np.unique(np.linspace(0, n - 1, 5).round()) for n in (columns, rows))
    axis.set_xticks((across + 0.5) * width - 0.5, [f"{(i + 0.5) / columns:.2f}" for i in across])
    axis.set_yticks((down + 0.5) * height - 0.5, [f"{1 - (i + 0.5) / rows:.2f}" for i in down])
    axis.set_xlabel("quantile of the first code", color=QUIET)
    axis.set_ylabel("quantile of the second code", color=QUIET)
    axis.tick_params(colors=QUIET)
    return figure


@house_style
def plot_rolls(sequences: list[np.ndarray], titles: list[str]) -> Any:
    """Draw sequences of vectors as sheets of grey: time to the right, coordinates upwards.

    Parameters
    ----------
    sequences : list of arrays, shape (steps, width)
        What is drawn, for example notes that sound; columns that are blank in all are left out at
        both ends.
    titles : list of str
        One for each.

    Returns
    -------
    matplotlib Figure
        One panel per sequence, two in a row.
    """
    used = np.flatnonzero(sum(np.abs(s).sum(axis=0) for s in sequences))
    low, high = (used[0], used[-1]) if len(used) else (0, sequences[0].shape[1] - 1)
    rows = -(-len(sequences) // 2)
    figure = new_figure(9, 0.6 + 1.9 * rows)
    panels = np.ravel(figure.subplots(rows, min(2, len(sequences)), sharey=True))
    top = max(float(s.max()) for s in sequences)
    bottom = min(float(s.min()) for s in sequences)
    for axis, sequence, title in zip(panels, sequences, titles, strict=False):
        axis.imshow(
            sequence.T, origin="lower", aspect="auto", cmap="Greys", interpolation="none",
            vmin=bottom, vmax=top,
        )  # fmt: skip
        axis.set_ylim(low - 1.5, high + 1.5)
        axis.set_title(literal([title])[0])
        axis.grid(visible=False)
    for axis in panels[len(sequences) :]:
        axis.set_axis_off()
    figure.supxlabel("step")
    figure.supylabel("coordinate")
    return figure
