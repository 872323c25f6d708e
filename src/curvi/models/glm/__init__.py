"""Generalised linear models: exact one-dimensional expectations, exact Newton."""

from curvi.models.glm.bound import GLMProblem, Rows, predictor_variance
from curvi.models.glm.dense import DenseBound
from curvi.models.glm.design import DenseDesign, Design, SparseDesign
from curvi.models.glm.fit import LARGEST_DENSE, GLMFit, Options, fit_glm
from curvi.models.glm.likelihoods import Bernoulli, Gaussian, Likelihood, Poisson
from curvi.models.glm.sampled import SampledGLMProblem
from curvi.models.glm.softmax import SoftmaxProblem
from curvi.models.glm.softmax_dense import SoftmaxBound
from curvi.models.glm.softmax_fit import fit_softmax
from curvi.models.glm.tables import StreamedRows, StreamedTables, WholeTable

__all__ = [
    "LARGEST_DENSE",
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
