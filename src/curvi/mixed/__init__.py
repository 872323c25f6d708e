"""Mixed models: formulas with groups, exact expectations per row, integrated hyperparameters."""

from curvi.mixed._estimator import MixedModel
from curvi.mixed._formula import column_names as column_names
from curvi.mixed._formula import parse as parse
from curvi.mixed._page import MixedPage as MixedPage

__all__ = ["MixedModel"]
