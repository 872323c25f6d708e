"""Variational auto-encoders: estimators, networks, likelihoods and the objective."""

from curvi.vae._estimator import VAE
from curvi.vae._networks import MLPObjective, VAEParams, initial_params
from curvi.vae._objective import Bernoulli, Gaussian, VAEObjective
from curvi.vae._semi_supervised import SemiSupervisedVAE
from curvi.vae._variance import best_num_draws

__all__ = [
    "VAE",
    "Bernoulli",
    "Gaussian",
    "MLPObjective",
    "SemiSupervisedVAE",
    "VAEObjective",
    "VAEParams",
    "best_num_draws",
    "initial_params",
]
