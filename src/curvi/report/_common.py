"""Parts that every report has: how a run went, and how to repeat it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi.io import versions
from curvi.report._blocks import Code, Facts
from curvi.report._chart import Chart, Layer
from curvi.report._numbers import plain
from curvi.report._page import Tab, Tile

_DIRECT = "Read an estimate with its interval: with 90 % probability the value is inside. "
READ = (
    _DIRECT + "\u201cDirection\u201d is the probability that the sign is right; a hollow marker "
    "means that zero is inside the interval."
)
READ_PLAIN = _DIRECT.strip()


def bound_chart(x: Any, elbo: Any, x_label: str, *, per_row: bool = False) -> Chart:
    """The bound along a run; the first values may lie far below and are cut off."""
    x, elbo = np.asarray(x, float), np.asarray(elbo, float)
    finite = np.isfinite(elbo)
    ends = None
    sentence = "The bound was not finite at any step."
    if finite.any():
        low, high = float(np.quantile(elbo[finite], 0.25)), float(elbo[finite].max())
        margin = 0.1 * (high - low) + 1e-6 * max(abs(high), 1.0)
        ends = (max(low - 5 * margin, float(elbo[finite].min()) - margin), high + margin)
        first, last = float(elbo[finite][0]), float(elbo[finite][-1])
        sentence = f"The bound went from {plain(first)} to {plain(last)}."
    unit = "nats per row" if per_row else "nats"
    return Chart(
        title="Convergence",
        sentence=sentence,
        x_label=x_label,
        y_label=f"ELBO on the step's sample [{unit}]",
        layers=(Layer("line", x, elbo, "ELBO"),),
        note="The quantity that is maximised, the evidence lower bound. A curve that has become "
        "flat has arrived.",
        y_ends=ends,
    )


def bound_tile(elbo: float, note: str = "nats") -> Tile:
    """The bound, to a tenth of a nat: less makes no difference between models."""
    return Tile("Bound (ELBO)", f"{elbo:,.1f}".replace("-", "\N{MINUS SIGN}"), note)


def repeat_tab(call: str, configuration: dict[str, Any]) -> Tab:
    """The card: the call, its configuration, and the versions that the numbers depend on."""
    shown = json.dumps(configuration, indent=2, default=str, ensure_ascii=False)
    return Tab(
        "repeat",
        "Repeat it",
        (
            Code("The call", call),
            Code("Configuration", shown),
            Facts("Versions", versions()),
        ),
    )


def checked_title(title: Any, otherwise: str) -> str:
    """A title that was given, or another one; refuses what is no text."""
    if title is None:
        return otherwise
    if not isinstance(title, str) or not title.strip():
        raise InputError(f"title is {title!r}; give a text")
    return title
