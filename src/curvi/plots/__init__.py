"""Figures with matplotlib: they take arrays and return figures, and know no other stage."""

from curvi.plots._coefficients import plot_coefficients
from curvi.plots._effects import plot_effects
from curvi.plots._fit import plot_fit

__all__ = ["plot_coefficients", "plot_effects", "plot_fit"]
