"""Figures that only the experiments draw."""

from __future__ import annotations

from typing import Any

import numpy as np

from curvi.plots import house_style, new_figure


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
