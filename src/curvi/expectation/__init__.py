"""Theorem 1 of the paper: draws, the stochastic objective, its gradient, Hessian and products."""

from curvi.expectation.draws import Draws, normalise, plan_draws, sample_draws, whiten
from curvi.expectation.objective import draw_noise, energies, neg_elbo

__all__ = [
    "Draws",
    "draw_noise",
    "energies",
    "neg_elbo",
    "normalise",
    "plan_draws",
    "sample_draws",
    "whiten",
]
