"""Second-order stochastic variational inference on JAX.

No learning rate to tune, an answer that says whether it converged, and error bars that can be
trusted. The public names are imported when they are first used, so that ``import curvi`` costs
little more than ``import jax``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curvi import bounds as bounds
    from curvi import curvature as curvature
    from curvi import expectation as expectation
    from curvi import families as families
    from curvi.core.errors import CurviError as CurviError
    from curvi.core.errors import InputError as InputError
    from curvi.core.errors import MisfitWarning as MisfitWarning
    from curvi.core.errors import NotConvergedWarning as NotConvergedWarning
    from curvi.core.errors import NumericalError as NumericalError
    from curvi.core.outcomes import Outcome as Outcome
    from curvi.estimators import BayesianLinearRegression as BayesianLinearRegression
    from curvi.estimators import BayesianLogisticRegression as BayesianLogisticRegression
    from curvi.estimators import BayesianPoissonRegression as BayesianPoissonRegression
    from curvi.estimators.vae import VAE as VAE
    from curvi.estimators.vae_classes import SemiSupervisedVAE as SemiSupervisedVAE
    from curvi.expectation import Draws as Draws
    from curvi.families import FullRank as FullRank
    from curvi.families import LocationScale as LocationScale
    from curvi.families import LowRank as LowRank
    from curvi.families import MeanField as MeanField
    from curvi.families import StudentT as StudentT
    from curvi.fitting import SVI as SVI
    from curvi.fitting import OptimiseResult as OptimiseResult
    from curvi.fitting import calibrate as calibrate
    from curvi.fitting import fit as fit
    from curvi.fitting import laplace as laplace
    from curvi.fitting import minimise as minimise
    from curvi.methods import DSVI as DSVI
    from curvi.methods import HFSGVI as HFSGVI
    from curvi.methods import KFAC as KFAC
    from curvi.methods import LBFGS as LBFGS
    from curvi.methods import Averaged as Averaged
    from curvi.methods import FirstOrder as FirstOrder
    from curvi.methods import HessianFree as HessianFree
    from curvi.methods import TrustRegion as TrustRegion
    from curvi.results import FitResult as FitResult
    from curvi.targets import DataTarget as DataTarget
    from curvi.targets import Target as Target
    from curvi.targets import from_numpyro as from_numpyro
    from curvi.targets import from_pymc as from_pymc

__version__ = "0.1.0"

_HOME = {
    "Target": "curvi.targets",
    "DataTarget": "curvi.targets",
    "from_numpyro": "curvi.targets",
    "from_pymc": "curvi.targets",
    "MeanField": "curvi.families",
    "FullRank": "curvi.families",
    "LowRank": "curvi.families",
    "StudentT": "curvi.families",
    "LocationScale": "curvi.families",
    "Draws": "curvi.expectation",
    "TrustRegion": "curvi.methods",
    "HFSGVI": "curvi.methods",
    "LBFGS": "curvi.methods",
    "KFAC": "curvi.methods",
    "HessianFree": "curvi.methods",
    "Averaged": "curvi.methods",
    "DSVI": "curvi.methods",
    "FirstOrder": "curvi.methods",
    "fit": "curvi.fitting",
    "minimise": "curvi.fitting",
    "SVI": "curvi.fitting",
    "laplace": "curvi.fitting",
    "calibrate": "curvi.fitting",
    "FitResult": "curvi.results",
    "OptimiseResult": "curvi.fitting",
    "BayesianLogisticRegression": "curvi.estimators",
    "BayesianPoissonRegression": "curvi.estimators",
    "BayesianLinearRegression": "curvi.estimators",
    "VAE": "curvi.estimators.vae",
    "SemiSupervisedVAE": "curvi.estimators.vae_classes",
    "Outcome": "curvi.core.outcomes",
    "CurviError": "curvi.core.errors",
    "InputError": "curvi.core.errors",
    "NumericalError": "curvi.core.errors",
    "NotConvergedWarning": "curvi.core.errors",
    "MisfitWarning": "curvi.core.errors",
}
_STAGES = (
    "core",
    "targets",
    "families",
    "expectation",
    "bounds",
    "curvature",
    "methods",
    "plots",
    "results",
    "fitting",
    "models",
    "estimators",
    "datasets",
    "experiments",
)

__all__ = ["__version__", *_HOME, *_STAGES]  # noqa: PLE0604  names are resolved by __getattr__


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _STAGES:
        return importlib.import_module(f"curvi.{name}")
    raise AttributeError(f"module 'curvi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
