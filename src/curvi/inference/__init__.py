"""From a target to an answer: ``fit``, ``minimise``, ``laplace`` and ``calibrate``."""

from curvi.inference._calibrate import Calibration, calibrate
from curvi.inference._fit import fit
from curvi.inference._laplace import LaplaceResult, laplace
from curvi.inference._minimise import OptimiseResult, minimise

__all__ = [
    "Calibration",
    "LaplaceResult",
    "OptimiseResult",
    "calibrate",
    "fit",
    "laplace",
    "minimise",
]
