"""Variational auto-encoders: networks, likelihoods, the bound, and how it is trained."""

from curvi.vae._estimator import VAE
from curvi.vae._networks import MLPObjective, VAEParams, initial_params
from curvi.vae._objective import Bernoulli, Gaussian, Outputs, VAEObjective
from curvi.vae._semi_supervised import SemiSupervisedVAE
from curvi.vae._training import Schedule, Trained, train
from curvi.vae._variance import best_num_draws

__all__ = [
    "VAE",
    "Bernoulli",
    "Gaussian",
    "MLPObjective",
    "Outputs",
    "Schedule",
    "SemiSupervisedVAE",
    "Trained",
    "VAEObjective",
    "VAEParams",
    "best_num_draws",
    "initial_params",
    "train",
]
