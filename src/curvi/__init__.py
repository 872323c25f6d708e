"""Second-order stochastic variational inference on JAX.

No learning rate to tune, an answer that says whether it converged, and error bars that can be
trusted. The public names are imported when they are first used, so that ``import curvi`` costs
little more than ``import jax``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curvi import datasets as datasets
    from curvi import diagnostics as diagnostics
    from curvi import engine as engine
    from curvi import families as families
    from curvi import glm as glm
    from curvi import inference as inference
    from curvi import interop as interop
    from curvi import io as io
    from curvi import latent as latent
    from curvi import likelihoods as likelihoods
    from curvi import linalg as linalg
    from curvi import mixed as mixed
    from curvi import objective as objective
    from curvi import paper as paper
    from curvi import plots as plots
    from curvi import sequences as sequences
    from curvi import solvers as solvers
    from curvi import targets as targets
    from curvi import vae as vae
    from curvi._core.compilation import clear_caches as clear_caches
    from curvi._core.errors import CurviError as CurviError
    from curvi._core.errors import InputError as InputError
    from curvi._core.errors import Interrupted as Interrupted
    from curvi._core.errors import MemoryBudgetError as MemoryBudgetError
    from curvi._core.errors import MisfitWarning as MisfitWarning
    from curvi._core.errors import MissingDependencyError as MissingDependencyError
    from curvi._core.errors import NotConvergedWarning as NotConvergedWarning
    from curvi._core.errors import NumericalError as NumericalError
    from curvi._core.errors import Outcome as Outcome
    from curvi._core.errors import Terminated as Terminated
    from curvi._core.memory import memory_budget as memory_budget
    from curvi._core.meshes import data_mesh as data_mesh
    from curvi._core.validation import PrecisionWarning as PrecisionWarning
    from curvi.diagnostics import FitResult as FitResult
    from curvi.engine import Checkpoint as Checkpoint
    from curvi.families import Chain as Chain
    from curvi.families import Conditional as Conditional
    from curvi.families import FullRank as FullRank
    from curvi.families import LocationScale as LocationScale
    from curvi.families import LowRank as LowRank
    from curvi.families import MeanField as MeanField
    from curvi.families import SparsePrecision as SparsePrecision
    from curvi.families import StudentT as StudentT
    from curvi.glm import BayesianLinearRegression as BayesianLinearRegression
    from curvi.glm import BayesianLogisticRegression as BayesianLogisticRegression
    from curvi.glm import BayesianPoissonRegression as BayesianPoissonRegression
    from curvi.inference import OptimiseResult as OptimiseResult
    from curvi.inference import calibrate as calibrate
    from curvi.inference import fit as fit
    from curvi.inference import laplace as laplace
    from curvi.inference import minimise as minimise
    from curvi.interop import SVI as SVI
    from curvi.interop import from_bambi as from_bambi
    from curvi.interop import from_numpyro as from_numpyro
    from curvi.interop import from_pymc as from_pymc
    from curvi.io import load as load
    from curvi.latent import LatentGaussian as LatentGaussian
    from curvi.likelihoods import Likelihood as Likelihood
    from curvi.mixed import MixedModel as MixedModel
    from curvi.objective import Draws as Draws
    from curvi.sequences import StateSpace as StateSpace
    from curvi.solvers import DSVI as DSVI
    from curvi.solvers import HFSGVI as HFSGVI
    from curvi.solvers import KFAC as KFAC
    from curvi.solvers import LBFGS as LBFGS
    from curvi.solvers import Averaged as Averaged
    from curvi.solvers import FirstOrder as FirstOrder
    from curvi.solvers import HessianFree as HessianFree
    from curvi.solvers import NaturalGradient as NaturalGradient
    from curvi.solvers import TrustRegion as TrustRegion
    from curvi.targets import DataTarget as DataTarget
    from curvi.targets import Target as Target
    from curvi.vae import VAE as VAE
    from curvi.vae import DeepMarkovModel as DeepMarkovModel
    from curvi.vae import SemiSupervisedVAE as SemiSupervisedVAE

__version__ = "0.1.0"

_NAMES = {
    "_core.errors": (
        "CurviError",
        "InputError",
        "Interrupted",
        "MemoryBudgetError",
        "MisfitWarning",
        "MissingDependencyError",
        "NotConvergedWarning",
        "NumericalError",
        "Outcome",
        "Terminated",
    ),
    "_core.compilation": ("clear_caches",),
    "_core.memory": ("memory_budget",),
    "_core.meshes": ("data_mesh",),
    "_core.validation": ("PrecisionWarning",),
    "targets": ("DataTarget", "Target"),
    "families": (
        "Chain", "Conditional", "FullRank", "LocationScale", "LowRank", "MeanField",
        "SparsePrecision", "StudentT",
    ),
    "objective": ("Draws",),
    "solvers": (
        "DSVI",
        "HFSGVI",
        "KFAC",
        "LBFGS",
        "Averaged",
        "FirstOrder",
        "HessianFree",
        "NaturalGradient",
        "TrustRegion",
    ),
    "inference": ("OptimiseResult", "calibrate", "fit", "laplace", "minimise"),
    "diagnostics": ("FitResult",),
    "engine": ("Checkpoint",),
    "interop": ("SVI", "from_bambi", "from_numpyro", "from_pymc"),
    "io": ("load",),
    "glm": ("BayesianLinearRegression", "BayesianLogisticRegression", "BayesianPoissonRegression"),
    "latent": ("LatentGaussian",),
    "likelihoods": ("Likelihood",),
    "mixed": ("MixedModel",),
    "vae": ("VAE", "DeepMarkovModel", "SemiSupervisedVAE"),
    "sequences": ("StateSpace",),
}  # fmt: skip
_HOME = {name: room for room, names in _NAMES.items() for name in names}
_ROOMS = (
    "datasets", "diagnostics", "engine", "families", "glm", "inference",
    "interop", "io", "latent", "likelihoods", "linalg", "mixed", "objective", "paper", "plots",
    "sequences", "solvers", "targets", "vae",
)  # fmt: skip

__all__ = ["__version__", *_HOME, *_ROOMS]  # noqa: PLE0604  names are resolved by __getattr__


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"curvi.{_HOME[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"curvi.{name}")
    raise AttributeError(f"module 'curvi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
