"""The stochastic objective: draws, and the negative evidence lower bound on them."""

from curvi.objective._draws import (
    Draws,
    fixed_draws,
    host_sample,
    normalise,
    plan_draws,
    sample_draws,
    whiten,
)
from curvi.objective._elbo import draw_noise, energies, neg_elbo

__all__ = [
    "Draws",
    "draw_noise",
    "energies",
    "fixed_draws",
    "host_sample",
    "neg_elbo",
    "normalise",
    "plan_draws",
    "sample_draws",
    "whiten",
]
