"""Linear maps and their solvers.

A symmetric linear map on pytrees (the exact Hessian by the R-operator, the Gauss-Newton matrix, a
dense matrix, or one built from these by damping, preconditioning or projection) knows its product
and what is certain about its definiteness. Truncated conjugate gradients solves systems with such
a map by products alone, in the metric of a preconditioner, inside a trust region if asked, and
stops at a direction of negative curvature. Its coefficients estimate the condition number. Nothing
here knows about probability, data or optimisation steps.
"""

from curvi.linalg._cg import CGResult, conjugate_gradient
from curvi.linalg._cg_iteration import CGOutcome
from curvi.linalg._cg_path import CGPath, conjugate_gradient_path
from curvi.linalg._lanczos import (
    condition_estimate,
    lanczos_tridiagonal,
    relative_error_bound,
)
from curvi.linalg._operators import (
    Definiteness,
    DenseMap,
    FunctionMap,
    LinearMap,
    damped,
    gauss_newton,
    hessian,
    preconditioned,
    projected,
)
from curvi.linalg._preconditioners import (
    DiagonalMetric,
    FunctionMetric,
    Identity,
    Metric,
    hutchinson_diagonal,
    martens_diagonal,
)
from curvi.linalg._secant import SecantMemory, apply_inverse, empty_memory, remember

__all__ = [
    "CGOutcome",
    "CGPath",
    "CGResult",
    "Definiteness",
    "DenseMap",
    "DiagonalMetric",
    "FunctionMap",
    "FunctionMetric",
    "Identity",
    "LinearMap",
    "Metric",
    "SecantMemory",
    "apply_inverse",
    "condition_estimate",
    "conjugate_gradient",
    "conjugate_gradient_path",
    "damped",
    "empty_memory",
    "gauss_newton",
    "hessian",
    "hutchinson_diagonal",
    "lanczos_tridiagonal",
    "martens_diagonal",
    "preconditioned",
    "projected",
    "relative_error_bound",
    "remember",
]
