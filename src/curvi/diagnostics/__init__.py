"""How far to trust an answer: the result of a fit, and the functions that judge it."""

from curvi.diagnostics._evaluation import ImportanceWeights, Moments, evaluate, evaluate_elbo
from curvi.diagnostics._modes import Mode
from curvi.diagnostics._monte_carlo import Replicates
from curvi.diagnostics._record import FitRecord
from curvi.diagnostics._result import FitResult

__all__ = [
    "FitRecord",
    "FitResult",
    "ImportanceWeights",
    "Mode",
    "Moments",
    "Replicates",
    "evaluate",
    "evaluate_elbo",
]
