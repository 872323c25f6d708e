"""Variational auto-encoders: estimators, networks, likelihoods and the objective."""

from curvi.likelihoods import BernoulliPixels as Bernoulli
from curvi.likelihoods import GaussianPixels as Gaussian
from curvi.vae._estimator import VAE
from curvi.vae._model import VAEModel
from curvi.vae._networks import MLPObjective, VAEParams, initial_params
from curvi.vae._objective import Rows, VAEObjective
from curvi.vae._own_networks import fit_networks
from curvi.vae._semi_supervised import SemiSupervisedVAE
from curvi.vae._variance import best_num_draws

__all__ = [
    "VAE",
    "Bernoulli",
    "Gaussian",
    "MLPObjective",
    "Rows",
    "SemiSupervisedVAE",
    "VAEModel",
    "VAEObjective",
    "VAEParams",
    "best_num_draws",
    "fit_networks",
    "initial_params",
]
