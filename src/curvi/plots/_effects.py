"""The picture of a regression: the effect of each feature, with its interval."""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_SHOWN = 40


def plot_effects(
    mean: np.ndarray, sd: np.ndarray, *, names: list[str], labels: list[str] | None = None
) -> Any:
    """Draw effects (blocks, features) with intervals of two sds, the largest features first.

    An effect is that of one sd of a feature on the linear predictor; ``labels`` name the blocks
    (classes). At most forty features are drawn.
    """
    from matplotlib.figure import Figure

    order = np.argsort(-np.abs(mean).max(axis=0), kind="stable")[:MOST_SHOWN]
    place = np.arange(len(order))
    figure = Figure(figsize=(7.5, 1.3 + 0.24 * max(len(order), 4)), layout="constrained")
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
            label=labels[block].replace("$", r"\$") if labels is not None else None,
        )
    shown = [names[i].replace("$", r"\$") for i in order]  # else matplotlib reads a formula
    panel.set_yticks(place, shown, fontsize=8 if len(order) > 12 else 10)
    panel.invert_yaxis()
    panel.set_xlabel("effect of one sd of the feature: posterior mean ± 2 sd")
    if len(order) < len(names):
        panel.set_title(f"the {len(order)} largest of {len(names)} features", fontsize=10)
    if labels is not None:
        figure.legend(title="class", fontsize=8, loc="outside right upper")
    return figure
