"""Equations (1)-(6) and Theorem 1 of the paper, each as one pure function.

They are written to be read beside the paper and to serve as oracles in tests. The engine computes
the same quantities by differentiating the sampled bound.
"""

from curvi.reference._diagonal import (
    diagonal_gradient,
    diagonal_hessian,
    diagonal_hessian_vector_product,
)
from curvi.reference._gaussian import (
    covariance_covariance_hessian,
    covariance_gradient,
    mean_covariance_hessian,
    mean_gradient,
    mean_mean_hessian,
    tie_covariance_covariance_hessian,
    tie_covariance_gradient,
    tie_mean_covariance_hessian,
)
from curvi.reference._location_scale import (
    gradient,
    hessian,
    hessian_vector_product,
    mean_scale_hessian,
    scale_scale_hessian,
)
from curvi.reference._parameters import (
    parameter_gradient,
    parameter_hessian,
    parameter_hessian_vector_product,
)

__all__ = [
    "covariance_covariance_hessian",
    "covariance_gradient",
    "diagonal_gradient",
    "diagonal_hessian",
    "diagonal_hessian_vector_product",
    "gradient",
    "hessian",
    "hessian_vector_product",
    "mean_covariance_hessian",
    "mean_gradient",
    "mean_mean_hessian",
    "mean_scale_hessian",
    "parameter_gradient",
    "parameter_hessian",
    "parameter_hessian_vector_product",
    "scale_scale_hessian",
    "tie_covariance_covariance_hessian",
    "tie_covariance_gradient",
    "tie_mean_covariance_hessian",
]
