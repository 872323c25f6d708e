"""Figures of mixed models: functions of arrays, drawn with `curvi.plots`."""

from __future__ import annotations

from typing import Any

import numpy as np

from curvi.plots import draw_intervals, house_style, literal, new_figure


@house_style
def plot_estimates(rows: list[dict[str, Any]]) -> Any:
    """Draw estimates with intervals, one panel per kind, since kinds have their own units.

    Parameters
    ----------
    rows : list of dict
        ``kind``, ``name``, ``mean``, ``lower`` and ``upper`` of every estimate.

    Returns
    -------
    matplotlib Figure
        One panel per kind.
    """
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    counts = [sum(row["kind"] == kind for row in rows) for kind in kinds]
    figure = new_figure(7.5, 0.8 * len(kinds) + 0.28 * sum(counts))
    panels = figure.subplots(
        len(kinds), 1, squeeze=False, gridspec_kw={"height_ratios": [c + 1 for c in counts]}
    )[:, 0]
    for kind, panel in zip(kinds, panels, strict=True):
        mine = [row for row in rows if row["kind"] == kind]
        mean = np.array([row["mean"] for row in mine])
        ends = np.array([[row["lower"] for row in mine], [row["upper"] for row in mine]])
        sides = np.maximum(np.stack([mean - ends[0], ends[1] - mean]), 0.0)
        draw_intervals(panel, mean, sides, names=[row["name"] or kind for row in mine])
        panel.set_title(literal([kind])[0], fontsize=9, loc="left")
    panels[-1].set_xlabel("posterior mean and 90 % interval")
    return figure


@house_style
def plot_groups(
    mean: np.ndarray, sd: np.ndarray, *, labels: list[str], effects: list[str], title: str = ""
) -> Any:
    """Draw the effects of groups in order of size, with intervals of two sds.

    Parameters
    ----------
    mean, sd : arrays, (levels, effects)
        Posterior means and standard deviations.
    labels : list of str
        Names of the levels, written up to sixty.
    effects : list of str
        Names of the effects, one panel each.
    title : str
        Title of the figure.

    Returns
    -------
    matplotlib Figure
        A caterpillar plot per effect.
    """
    levels = len(labels)
    named = levels <= 60
    figure = new_figure(1.5 + 3.2 * len(effects), min(2.0 + 0.16 * levels, 10.0))
    panels = figure.subplots(1, len(effects), squeeze=False)[0]
    for index, panel in enumerate(panels):
        order = np.argsort(mean[:, index], kind="stable")
        draw_intervals(
            panel, mean[order, index], 2 * sd[order, index],
            names=[labels[i] for i in order] if named else None, size=3.5 if named else 1.2,
        )  # fmt: skip
        if not named:
            panel.set_ylabel(f"{levels} levels")
        panel.set_title(literal([effects[index]])[0], fontsize=9)
        panel.set_xlabel("posterior mean ± 2 sd")
    figure.suptitle(literal([title])[0])
    return figure
