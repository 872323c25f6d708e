"""What is inferred: a log density, or a likelihood over rows of data with a prior."""

from curvi.targets._data import DataTarget
from curvi.targets._density import Density, RowDensity
from curvi.targets._labels import Labels
from curvi.targets._log_density import Target

__all__ = ["DataTarget", "Density", "Labels", "RowDensity", "Target"]
