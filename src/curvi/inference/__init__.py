"""From a target to an answer: ``fit``, ``minimise``, ``laplace`` and ``calibrate``."""

from curvi.inference._calibrate import Calibration, calibrate
from curvi.inference._fit import fit
from curvi.inference._inputs import default_tolerance as default_tolerance
from curvi.inference._laplace import LaplaceResult, laplace
from curvi.inference._minimise import OptimiseResult, minimise
from curvi.inference.ladder._climb import LADDER
from curvi.inference.ladder._other_modes import OtherModes, Restarts
from curvi.inference.ladder._rungs import (
    HMC,
    AllEntries,
    ConditionalOnGlobals,
    FollowDenseRows,
    FreshStart,
    ImportanceWeights,
    Recentre,
)
from curvi.inference.ladder._state import Candidate, Rung, State

__all__ = [
    "HMC",
    "LADDER",
    "AllEntries",
    "Calibration",
    "Candidate",
    "ConditionalOnGlobals",
    "FollowDenseRows",
    "FreshStart",
    "ImportanceWeights",
    "LaplaceResult",
    "OptimiseResult",
    "OtherModes",
    "Recentre",
    "Restarts",
    "Rung",
    "State",
    "calibrate",
    "fit",
    "laplace",
    "minimise",
]
