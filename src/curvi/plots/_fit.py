"""The picture of a fit: how the bound rose, and what was estimated."""

from __future__ import annotations

from typing import Any

import numpy as np

_MOST_LABELS = 40


def plot_fit(
    trace: dict[str, np.ndarray],
    *,
    names: list[str],
    mean: np.ndarray,
    sd: np.ndarray,
    title: str = "",
) -> Any:
    """Draw the bound against wall-clock time, and each mean with an interval of two sds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
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
        right.set_yticks(place, names, fontsize=8 if len(names) > 12 else 10)
    else:
        right.set_ylabel("coordinate")
    right.invert_yaxis()
    right.set_xlabel("posterior mean ± 2 sd")
    figure.suptitle(title)
    return figure
