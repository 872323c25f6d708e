"""Generalised linear models: exact one-dimensional expectations, exact Newton steps."""

from curvi.glm._linear import BayesianLinearRegression
from curvi.glm._logistic import BayesianLogisticRegression
from curvi.glm._poisson import BayesianPoissonRegression

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianPoissonRegression",
]
