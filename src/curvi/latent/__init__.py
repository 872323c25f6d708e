"""Latent Gaussian models: rows that see Gaussian effects through one linear predictor each.

A sum of components gives the columns A and the precision Q(theta) of the effects. Given theta, the
best Gaussian follows from one-dimensional expectations per row; the few theta are integrated.
"""

from curvi.latent._anderson import Anderson as Anderson
from curvi.latent._assembly import Assembly as Assembly
from curvi.latent._component import Component, Precision
from curvi.latent._gap import GapRule as GapRule
from curvi.latent._gap import Reweighted as Reweighted
from curvi.latent._gap import gap as gap
from curvi.latent._gap import reweight as reweight
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
from curvi.latent._lattice import Lattice as Lattice
from curvi.latent._lattice import integrate as integrate
from curvi.latent._series import Autoregression, LocalTrend, RandomWalk, Season
from curvi.latent._sites import Effects as Effects
from curvi.latent._sites import SiteFit as SiteFit
from curvi.latent._sites import SiteModel as SiteModel
from curvi.latent._skewness import skewed as skewed
from curvi.latent._whitened import JointDraws as JointDraws
from curvi.latent._whitened import Trajectories as Trajectories
from curvi.latent._whitened import run_chains as run_chains

__all__ = ["Autoregression", "Component", "LocalTrend", "Precision", "RandomWalk", "Season"]
