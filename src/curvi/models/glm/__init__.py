"""Generalised linear models: exact one-dimensional expectations, exact Newton."""

from curvi.models.glm.bound import GLMProblem, Rows, dense_second_order, predictor_variance
from curvi.models.glm.design import DenseDesign, Design, SparseDesign
from curvi.models.glm.likelihoods import Bernoulli, Gaussian, Likelihood, Poisson

__all__ = [
    "Bernoulli",
    "DenseDesign",
    "Design",
    "GLMProblem",
    "Gaussian",
    "Likelihood",
    "Poisson",
    "Rows",
    "SparseDesign",
    "dense_second_order",
    "predictor_variance",
]
