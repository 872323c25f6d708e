"""FitResult: the verdict, moments, draws and pictures of a fit."""

from curvi.diagnostics._evaluate import evaluate, evaluate_elbo
from curvi.diagnostics._evidence import Evidence
from curvi.diagnostics._fit_result import FitResult
from curvi.diagnostics._importance import ImportanceWeights, Moments
from curvi.diagnostics._monte_carlo import Replicates

__all__ = [
    "Evidence",
    "FitResult",
    "ImportanceWeights",
    "Moments",
    "Replicates",
    "evaluate",
    "evaluate_elbo",
]
