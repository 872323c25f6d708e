"""What is inferred: a log density, or a likelihood over rows of data with a prior."""

from curvi.targets.data import DataTarget
from curvi.targets.density import Density, RowDensity
from curvi.targets.log_density import Target

__all__ = ["DataTarget", "Density", "RowDensity", "Target"]
