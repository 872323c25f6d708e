"""What is inferred: a log density, rows of data with a prior, or a model of another library."""

from curvi.targets.data import DataTarget
from curvi.targets.density import Density, RowDensity
from curvi.targets.labels import Labels
from curvi.targets.log_density import Target
from curvi.targets.numpyro_door import from_numpyro
from curvi.targets.pymc_door import from_pymc

__all__ = [
    "DataTarget",
    "Density",
    "Labels",
    "RowDensity",
    "Target",
    "from_numpyro",
    "from_pymc",
]
