"""FitResult: the verdict, moments, draws and pictures of a fit."""

from curvi.results.evaluate import evaluate, evaluate_elbo
from curvi.results.evidence import Evidence
from curvi.results.fit_result import FitResult
from curvi.results.importance import ImportanceWeights, Moments
from curvi.results.monte_carlo import Replicates

__all__ = [
    "Evidence",
    "FitResult",
    "ImportanceWeights",
    "Moments",
    "Replicates",
    "evaluate",
    "evaluate_elbo",
]
