"""Variational auto-encoders: networks, likelihoods, the bound, and how it is trained."""

from curvi.vae._estimator import VAE
from curvi.vae._likelihoods import Bernoulli, Gaussian
from curvi.vae._mlp import MLPObjective
from curvi.vae._networks import VAEParams, initial_params
from curvi.vae._objective import Outputs, VAEObjective
from curvi.vae._semi_supervised import SemiSupervisedVAE
from curvi.vae._train import Schedule, Trained, train
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
