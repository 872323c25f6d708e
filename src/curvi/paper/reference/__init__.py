"""Reference formulas: equations (1)-(6), Theorem 1 and Algorithm 1 of the paper, as functions.

They are oracles, written to be read beside the paper and to check the engine in tests. The engine
computes the same quantities by differentiating the sampled ELBO.

====================  =============================================================
equations (1)-(3)     Gaussian, in the mean and the covariance; ``tie_...`` for a
                      symmetric covariance
Theorem 1             any location-scale family, in the mean and the scale matrix
its diagonal form     the same for independent coordinates, in the mean and the sds
equations (4)-(6)     mean and scale as functions of any parameters theta; the appendix's
                      gradient by way of the covariance, and its six terms of the Hessian
Algorithm 1           HFSGVI in plain JAX, line by line
====================  =============================================================
"""

from curvi.paper.reference._algorithm import hfsgvi, hfsgvi_step
from curvi.paper.reference._gaussian import (
    covariance_covariance_hessian,
    covariance_gradient,
    mean_covariance_hessian,
    mean_gradient,
    mean_mean_hessian,
    tie_covariance_covariance_hessian,
    tie_covariance_gradient,
    tie_mean_covariance_hessian,
)
from curvi.paper.reference._location_scale import (
    diagonal_gradient,
    diagonal_hessian,
    diagonal_hessian_vector_product,
    gradient,
    hessian,
    hessian_vector_product,
    mean_scale_hessian,
    scale_scale_hessian,
)
from curvi.paper.reference._parameters import (
    parameter_gradient,
    parameter_gradient_by_covariance,
    parameter_hessian,
    parameter_hessian_terms,
    parameter_hessian_vector_product,
)

__all__ = [
    "covariance_covariance_hessian", "covariance_gradient", "diagonal_gradient",
    "diagonal_hessian", "diagonal_hessian_vector_product", "gradient", "hessian",
    "hessian_vector_product", "hfsgvi", "hfsgvi_step", "mean_covariance_hessian",
    "mean_gradient", "mean_mean_hessian", "mean_scale_hessian", "parameter_gradient",
    "parameter_gradient_by_covariance", "parameter_hessian", "parameter_hessian_terms",
    "parameter_hessian_vector_product", "scale_scale_hessian",
    "tie_covariance_covariance_hessian", "tie_covariance_gradient",
    "tie_mean_covariance_hessian",
]  # fmt: skip
