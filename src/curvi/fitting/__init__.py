"""The one loop: chunks on device, stopping, progress; ``fit`` and ``minimise`` on top of it."""

from curvi.fitting.calibrate import Calibration, calibrate
from curvi.fitting.fit import fit
from curvi.fitting.laplace import LaplaceResult, laplace
from curvi.fitting.minimise import OptimiseResult, minimise

__all__ = [
    "Calibration",
    "LaplaceResult",
    "OptimiseResult",
    "calibrate",
    "fit",
    "laplace",
    "minimise",
]
