"""Mixed models: formulas with groups, exact expectations per row, integrated hyperparameters."""

from curvi.mixed._estimator import MixedModel

__all__ = ["MixedModel"]
