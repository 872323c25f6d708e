"""The scikit-learn faces of models."""

from curvi.estimators.linear import BayesianLinearRegression
from curvi.estimators.logistic import BayesianLogisticRegression
from curvi.estimators.poisson import BayesianPoissonRegression
from curvi.estimators.vae import VAE
from curvi.estimators.vae_classes import SemiSupervisedVAE

__all__ = [
    "VAE",
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianPoissonRegression",
    "SemiSupervisedVAE",
]
