"""Latent variables behind networks: auto-encoders, and deep Markov models of sequences."""

from curvi.likelihoods import BernoulliPixels as Bernoulli
from curvi.likelihoods import GaussianPixels as Gaussian
from curvi.vae._deep_markov import DeepMarkovModel
from curvi.vae._estimator import VAE
from curvi.vae._markov import MarkovObjective
from curvi.vae._model import VAEModel
from curvi.vae._networks import MLPObjective, VAEParams, initial_params
from curvi.vae._objective import Rows, VAEObjective
from curvi.vae._own_networks import fit_networks
from curvi.vae._semi_supervised import SemiSupervisedVAE
from curvi.vae._training import Schedule as Schedule
from curvi.vae._training import Trained as Trained
from curvi.vae._training import train as train
from curvi.vae._variance import best_num_draws
from curvi.vae._variance import reconstruction_variance as reconstruction_variance
from curvi.vae._variance import relative_gradient_error as relative_gradient_error

__all__ = [
    "VAE",
    "Bernoulli",
    "DeepMarkovModel",
    "Gaussian",
    "MLPObjective",
    "MarkovObjective",
    "Rows",
    "SemiSupervisedVAE",
    "VAEModel",
    "VAEObjective",
    "VAEParams",
    "best_num_draws",
    "fit_networks",
    "initial_params",
]
