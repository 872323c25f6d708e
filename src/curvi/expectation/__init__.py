"""Theorem 1 of the paper: draws, the stochastic objective, its gradient, Hessian and products."""

from curvi.expectation.diagonal import (
    diagonal_gradient,
    diagonal_hessian,
    diagonal_hessian_vector_product,
)
from curvi.expectation.draws import (
    Draws,
    fixed_draws,
    host_sample,
    normalise,
    plan_draws,
    sample_draws,
    whiten,
)
from curvi.expectation.gaussian import (
    covariance_covariance_hessian,
    covariance_gradient,
    mean_covariance_hessian,
    mean_gradient,
    mean_mean_hessian,
    tie_covariance_covariance_hessian,
    tie_covariance_gradient,
    tie_mean_covariance_hessian,
)
from curvi.expectation.location_scale import (
    gradient,
    hessian,
    hessian_vector_product,
    mean_scale_hessian,
    scale_scale_hessian,
)
from curvi.expectation.objective import draw_noise, energies, neg_elbo
from curvi.expectation.parameters import (
    parameter_gradient,
    parameter_hessian,
    parameter_hessian_vector_product,
)

__all__ = [
    "Draws",
    "covariance_covariance_hessian",
    "covariance_gradient",
    "diagonal_gradient",
    "diagonal_hessian",
    "diagonal_hessian_vector_product",
    "draw_noise",
    "energies",
    "fixed_draws",
    "gradient",
    "hessian",
    "hessian_vector_product",
    "host_sample",
    "mean_covariance_hessian",
    "mean_gradient",
    "mean_mean_hessian",
    "mean_scale_hessian",
    "neg_elbo",
    "normalise",
    "parameter_gradient",
    "parameter_hessian",
    "parameter_hessian_vector_product",
    "plan_draws",
    "sample_draws",
    "scale_scale_hessian",
    "tie_covariance_covariance_hessian",
    "tie_covariance_gradient",
    "tie_mean_covariance_hessian",
    "whiten",
]
