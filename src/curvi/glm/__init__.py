"""Generalised linear models: exact one-dimensional expectations, exact Newton steps."""

from curvi.glm._bound import GLMProblem as GLMProblem
from curvi.glm._bound import Rows as Rows
from curvi.glm._bound import SampledGLMProblem as SampledGLMProblem
from curvi.glm._design import DenseDesign as DenseDesign
from curvi.glm._design import SparseDesign as SparseDesign
from curvi.glm._design import is_selected as is_selected
from curvi.glm._fit import neg_elbo as neg_elbo
from curvi.glm._logistic import BayesianLogisticRegression
from curvi.glm._regressors import BayesianLinearRegression, BayesianPoissonRegression
from curvi.glm._report import RegressionPage as RegressionPage

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianPoissonRegression",
]
