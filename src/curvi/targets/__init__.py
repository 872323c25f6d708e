"""What is inferred: a log density, or a likelihood over rows of data with a prior."""

from curvi.targets._density import Density
from curvi.targets._targets import AbstractTarget, DataTarget, Labels, Target

__all__ = ["AbstractTarget", "DataTarget", "Density", "Labels", "Target"]
