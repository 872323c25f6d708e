"""The house style: sizes, and colours that colour blindness and grey print leave apart."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# The palette of Okabe and Ito, so that neighbours differ in grey print, and a grey.
COLOURS = ("#0072B2", "#D55E00", "#56B4E9", "#CC79A7", "#009E73", "#E69F00", "#4D4D4D")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
INK, QUIET, RULE = "#222222", "#808080", "#D9D9D9"
WIDTH = 7.5  # inches of a figure with one panel; two panels take ten


def settings() -> dict[Any, Any]:
    """The style as parameters of matplotlib."""
    from cycler import cycler

    return {
        "axes.prop_cycle": cycler(color=COLOURS) + cycler(linestyle=LINES),
        "axes.axisbelow": True,
        "axes.edgecolor": QUIET,
        "axes.grid": True,
        "axes.labelcolor": INK,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 10,
        "figure.facecolor": "white",
        "figure.titlesize": 11,
        "font.size": 10,
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }


def house_style(draw: Callable[P, R]) -> Callable[P, R]:
    """Draw in the style of curvi, and leave matplotlib's settings as they were."""

    @wraps(draw)
    def styled(*arguments: P.args, **options: P.kwargs) -> R:
        import matplotlib as mpl

        with mpl.rc_context(settings()):
            return draw(*arguments, **options)

    return styled


def new_figure(width: float, height: float, *, layout: Any = "constrained") -> Any:
    """An empty figure; matplotlib is imported when the first one is drawn."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


def png_bytes(figure: Any, dpi: int = 120) -> bytes:
    """The figure as PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi)
    return stream.getvalue()


def literal(texts: list[str]) -> list[str]:
    """Names as they are written: matplotlib would read a formula between dollar signs."""
    return [text.replace("$", r"\$") for text in texts]
