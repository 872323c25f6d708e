"""Latent Gaussian models: rows that see Gaussian effects through one linear predictor each.

A sum of components gives the columns A and the precision Q(theta) of the effects. Given theta, the
best Gaussian follows from one-dimensional expectations per row; the few theta are integrated.
"""

from curvi.latent._anderson import Anderson as Anderson
from curvi.latent._ascent import Ascent as Ascent
from curvi.latent._assembly import Assembly as Assembly
from curvi.latent._component import Component, Precision
from curvi.latent._estimator import LatentGaussian
from curvi.latent._fixed import Fixed
from curvi.latent._gap import Gap as Gap
from curvi.latent._gap import in_doubt as in_doubt
from curvi.latent._given import FromPrecision
from curvi.latent._given_rest import GivenRest as GivenRest
from curvi.latent._groups import Covariance, Groups
from curvi.latent._groups import block_root as block_root
from curvi.latent._groups import level_columns as level_columns
from curvi.latent._importance import Mixture as Mixture
from curvi.latent._importance import Proposal as Proposal
from curvi.latent._importance import Weighted as Weighted
from curvi.latent._importance import explore as explore
from curvi.latent._importance import kernels as kernels
from curvi.latent._importance import root_of_precision as root_of_precision
from curvi.latent._importance import shared as shared
from curvi.latent._importance import two_piece as two_piece
from curvi.latent._importance import weigh as weigh
from curvi.latent._importance import white_points as white_points
from curvi.latent._integral import Integral as Integral
from curvi.latent._integral import Integration as Integration
from curvi.latent._lattice import Lattice as Lattice
from curvi.latent._lattice import integrate as integrate
from curvi.latent._mixtures import Band as Band
from curvi.latent._mixtures import quantile as quantile
from curvi.latent._mixtures import smooth_quantiles as smooth_quantiles
from curvi.latent._posterior import LatentDraws, LatentPosterior
from curvi.latent._priors import of_extra as of_extra
from curvi.latent._series import Autoregression, LocalTrend, RandomWalk, Season
from curvi.latent._site_steps import Effects as Effects
from curvi.latent._site_steps import Iteration as Iteration
from curvi.latent._site_steps import SiteFit as SiteFit
from curvi.latent._sites import SiteModel as SiteModel
from curvi.latent._skewness import skewed as skewed
from curvi.latent._star import Parabolas as Parabolas
from curvi.latent._star import Star as Star
from curvi.latent._summed import RowSums as RowSums
from curvi.latent._summed import SummedModel as SummedModel
from curvi.latent._whitened import JointDraws, Trajectories
from curvi.latent._whitened import run_chains as run_chains

__all__ = [
    "Autoregression",
    "Component",
    "Covariance",
    "Fixed",
    "FromPrecision",
    "Groups",
    "JointDraws",
    "LatentDraws",
    "LatentGaussian",
    "LatentPosterior",
    "LocalTrend",
    "Precision",
    "RandomWalk",
    "Season",
    "Trajectories",
]
