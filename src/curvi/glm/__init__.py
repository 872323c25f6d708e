"""Generalised linear models: exact one-dimensional expectations, exact Newton."""

from curvi.glm._bound import GLMProblem, Rows, SampledGLMProblem, predictor_variance
from curvi.glm._dense import DenseBound
from curvi.glm._design import DenseDesign, Design, SparseDesign
from curvi.glm._fit import LARGEST_DENSE, GLMFit, Options, fit_glm
from curvi.glm._likelihoods import Bernoulli, Gaussian, Likelihood, Poisson
from curvi.glm._linear import BayesianLinearRegression
from curvi.glm._logistic import BayesianLogisticRegression
from curvi.glm._poisson import BayesianPoissonRegression
from curvi.glm._rows import StreamedRows, StreamedTables, WholeTable
from curvi.glm._softmax import SoftmaxBound, SoftmaxProblem, fit_softmax

__all__ = [
    "LARGEST_DENSE",
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianPoissonRegression",
    "Bernoulli",
    "DenseBound",
    "DenseDesign",
    "Design",
    "GLMFit",
    "GLMProblem",
    "Gaussian",
    "Likelihood",
    "Options",
    "Poisson",
    "Rows",
    "SampledGLMProblem",
    "SoftmaxBound",
    "SoftmaxProblem",
    "SparseDesign",
    "StreamedRows",
    "StreamedTables",
    "WholeTable",
    "fit_glm",
    "fit_softmax",
    "predictor_variance",
]
