"""What is inferred: a log density, or a likelihood over rows of data with a prior."""

from curvi.targets._centring import Centring as Centring
from curvi.targets._centring import Degrees as Degrees
from curvi.targets._density import Density
from curvi.targets._stored import NoLogDensityError as NoLogDensityError
from curvi.targets._stored import StoredTarget as StoredTarget
from curvi.targets._targets import AbstractTarget, DataTarget, Labels, Target

__all__ = ["AbstractTarget", "DataTarget", "Density", "Labels", "Target"]
