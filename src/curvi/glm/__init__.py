"""Generalised linear models: exact one-dimensional expectations, exact Newton steps."""

from curvi.glm._logistic import BayesianLogisticRegression
from curvi.glm._regressors import BayesianLinearRegression, BayesianPoissonRegression

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianPoissonRegression",
]
