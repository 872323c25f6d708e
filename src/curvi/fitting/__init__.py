"""The one loop: chunks on device, stopping, progress; ``fit`` and ``minimise`` on top of it."""

from curvi.fitting.calibrate import Calibration, calibrate
from curvi.fitting.fit import fit
from curvi.fitting.laplace import LaplaceResult, laplace
from curvi.fitting.minimise import OptimiseResult, minimise
from curvi.fitting.numpyro_svi import SVI, SVIRunResult

__all__ = [
    "SVI",
    "Calibration",
    "LaplaceResult",
    "OptimiseResult",
    "SVIRunResult",
    "calibrate",
    "fit",
    "laplace",
    "minimise",
]
