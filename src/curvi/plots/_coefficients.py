"""The picture of a linear model: one stem per coefficient."""

from __future__ import annotations

from typing import Any

import numpy as np

_MOST_LABELS = 40


def plot_coefficients(
    coefficients: np.ndarray, *, names: list[str] | None = None, labels: list[str] | None = None
) -> Any:
    """Draw estimated coefficients (blocks, features) as stems, one panel per block.

    ``names`` are those of the features and ``labels`` those of the blocks (classes).
    """
    from matplotlib.figure import Figure

    blocks, features = coefficients.shape
    figure = Figure(figsize=(8, 1.2 + 2.4 * blocks), layout="constrained")
    panels = figure.subplots(blocks, 1, sharex=True, squeeze=False)[:, 0]
    place = np.arange(features)
    marker = "." if features <= 10 * _MOST_LABELS else " "
    for block, panel in enumerate(panels):
        panel.stem(place, coefficients[block], linefmt="tab:blue", markerfmt=marker, basefmt="0.8")
        panel.set_ylabel("estimated coefficient")
        if labels is not None:
            panel.set_title(f"class {labels[block]}")
    if names is not None and features <= _MOST_LABELS:
        panels[-1].set_xticks(place, names, rotation=60, ha="right", fontsize=8)
        panels[-1].set_xlabel("feature")
    else:
        panels[-1].set_xlabel("index of the feature")
    return figure
