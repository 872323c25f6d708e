"""Generalised linear models: exact one-dimensional expectations, exact Newton."""

from curvi.models.glm.bound import GLMProblem, Rows, dense_second_order, predictor_variance
from curvi.models.glm.design import DenseDesign, Design, SparseDesign
from curvi.models.glm.fit import GLMFit, fit_glm
from curvi.models.glm.likelihoods import Bernoulli, Gaussian, Likelihood, Poisson
from curvi.models.glm.sampled import SampledGLMProblem

__all__ = [
    "Bernoulli",
    "DenseDesign",
    "Design",
    "GLMFit",
    "GLMProblem",
    "Gaussian",
    "Likelihood",
    "Poisson",
    "Rows",
    "SampledGLMProblem",
    "SparseDesign",
    "dense_second_order",
    "fit_glm",
    "predictor_variance",
]
