"""Linear maps and their solvers.

A symmetric linear map on pytrees (the exact Hessian by the R-operator, the Gauss-Newton matrix, a
dense matrix, or one built from these by damping, preconditioning or projection) knows its product
and what is certain about its definiteness. Truncated conjugate gradients solves systems with such
a map by products alone, in the metric of a preconditioner, inside a trust region if asked, and
stops at a direction of negative curvature. Its coefficients estimate the condition number. A
structured precision knows where it is not zero, and is factorised, solved, inverted and drawn from
at many hyperparameters side by side. Nothing here knows about optimisation steps.
"""

from curvi.linalg._arithmetic import Scalar as Scalar
from curvi.linalg._arithmetic import Vector as Vector
from curvi.linalg._arithmetic import all_finite as all_finite
from curvi.linalg._arithmetic import namespace as namespace
from curvi.linalg._arithmetic import select as select
from curvi.linalg._arithmetic import vdot as vdot
from curvi.linalg._cg import CGResult, conjugate_gradient
from curvi.linalg._cg import eager_conjugate_gradient as eager_conjugate_gradient
from curvi.linalg._cg_iteration import KEEP as KEEP
from curvi.linalg._cg_iteration import CGOutcome
from curvi.linalg._cg_path import CGPath, conjugate_gradient_path
from curvi.linalg._constrained import ConstrainedFactor
from curvi.linalg._elimination import MOST_DENSE_ROWS as MOST_DENSE_ROWS
from curvi.linalg._elimination import Elimination as Elimination
from curvi.linalg._elimination import eliminate as eliminate
from curvi.linalg._factor import Factor
from curvi.linalg._lanczos import (
    condition_estimate,
    lanczos_tridiagonal,
    relative_error_bound,
)
from curvi.linalg._modes import Density as Density
from curvi.linalg._modes import ascent as ascent
from curvi.linalg._modes import differences as differences
from curvi.linalg._modes import find_mode as find_mode
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
from curvi.linalg._ordering import distinct as distinct
from curvi.linalg._pattern import Pattern
from curvi.linalg._preconditioners import (
    DiagonalMetric,
    FunctionMetric,
    Identity,
    Metric,
    hutchinson_diagonal,
    martens_diagonal,
)
from curvi.linalg._row_products import RowProducts, gram_entries
from curvi.linalg._secant import SecantMemory, apply_inverse, empty_memory, remember
from curvi.linalg._sparse_symmetric import InverseFactor as InverseFactor
from curvi.linalg._sparse_symmetric import SparseSymmetric as SparseSymmetric
from curvi.linalg._sparse_symmetric import inverse_root as inverse_root

__all__ = [
    "CGOutcome",
    "CGPath",
    "CGResult",
    "ConstrainedFactor",
    "Definiteness",
    "DenseMap",
    "DiagonalMetric",
    "Factor",
    "FunctionMap",
    "FunctionMetric",
    "Identity",
    "LinearMap",
    "Metric",
    "Pattern",
    "RowProducts",
    "SecantMemory",
    "apply_inverse",
    "condition_estimate",
    "conjugate_gradient",
    "conjugate_gradient_path",
    "damped",
    "empty_memory",
    "gauss_newton",
    "gram_entries",
    "hessian",
    "hutchinson_diagonal",
    "lanczos_tridiagonal",
    "martens_diagonal",
    "preconditioned",
    "projected",
    "relative_error_bound",
    "remember",
]
