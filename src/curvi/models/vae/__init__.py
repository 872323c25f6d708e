"""Variational auto-encoders: networks, likelihoods, the bound, and how it is trained."""

from curvi.models.vae.likelihoods import Bernoulli, Gaussian
from curvi.models.vae.mlp import MLPObjective
from curvi.models.vae.networks import VAEParams, initial_params
from curvi.models.vae.objective import Outputs, VAEObjective
from curvi.models.vae.train import Schedule, Trained, train
from curvi.models.vae.variance import best_num_draws

__all__ = [
    "Bernoulli",
    "Gaussian",
    "MLPObjective",
    "Outputs",
    "Schedule",
    "Trained",
    "VAEObjective",
    "VAEParams",
    "best_num_draws",
    "initial_params",
    "train",
]
