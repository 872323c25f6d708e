"""Figures with matplotlib: functions of arrays that return figures and use no other room."""

from __future__ import annotations

from curvi.plots._curves import draw_run as draw_run
from curvi.plots._curves import plot_bands, plot_trace, plot_training
from curvi.plots._images import plot_codes, plot_images, plot_rolls, plot_sheet
from curvi.plots._intervals import draw_intervals as draw_intervals
from curvi.plots._intervals import plot_coefficients, plot_effects, plot_fit
from curvi.plots._style import COLOURS as COLOURS
from curvi.plots._style import LINES as LINES
from curvi.plots._style import QUIET as QUIET
from curvi.plots._style import RULE as RULE
from curvi.plots._style import house_style as house_style
from curvi.plots._style import literal as literal
from curvi.plots._style import new_figure as new_figure
from curvi.plots._style import png_bytes as png_bytes

__all__ = [
    "plot_bands", "plot_codes", "plot_coefficients", "plot_effects", "plot_fit", "plot_images",
    "plot_rolls", "plot_sheet", "plot_trace", "plot_training",
]  # fmt: skip
