"""FitResult: the verdict, moments, draws and pictures of a fit."""

from curvi.results.evaluate import evaluate_elbo
from curvi.results.fit_result import FitResult

__all__ = ["FitResult", "evaluate_elbo"]
