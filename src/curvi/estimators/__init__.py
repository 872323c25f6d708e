"""The scikit-learn faces of models."""

from curvi.estimators.linear import BayesianLinearRegression
from curvi.estimators.logistic import BayesianLogisticRegression
from curvi.estimators.poisson import BayesianPoissonRegression

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianPoissonRegression",
]
