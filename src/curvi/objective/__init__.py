"""The stochastic objective: draws, and the negative evidence lower bound on them."""

from curvi.objective._batch import BatchedDensity as BatchedDensity
from curvi.objective._curvature import Curvature as Curvature
from curvi.objective._curvature import find_curvature as find_curvature
from curvi.objective._curvature import work_of as work_of
from curvi.objective._draws import (
    Draws,
    fixed_draws,
    host_sample,
    normalise,
    plan_draws,
    sample_draws,
    whiten,
)
from curvi.objective._draws import host_generator as host_generator
from curvi.objective._elbo import Stream as Stream
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
