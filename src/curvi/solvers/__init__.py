"""One file per method: HFSGVI, TrustRegion, LBFGS, KFAC, first order (any optax), DSVI."""

from curvi.solvers._averaging import Averaged
from curvi.solvers._dense_subproblem import solve_dense as solve_dense
from curvi.solvers._dsvi import DSVI
from curvi.solvers._first_order import FirstOrder
from curvi.solvers._flat import FlatObjective as FlatObjective
from curvi.solvers._hessian_free import HessianFree
from curvi.solvers._hfsgvi import HFSGVI
from curvi.solvers._kfac import KFAC
from curvi.solvers._lbfgs import LBFGS
from curvi.solvers._method import Info, Layer, Layered, Method, Pass, Problem
from curvi.solvers._method import Stepper as Stepper
from curvi.solvers._natural_gradient import NaturalGradient
from curvi.solvers._newton import step_info as step_info
from curvi.solvers._newton import tangent_metric as tangent_metric
from curvi.solvers._step import REGION as REGION
from curvi.solvers._step import LocalModel as LocalModel
from curvi.solvers._step import Step as Step
from curvi.solvers._step import agreement as agreement
from curvi.solvers._step import next_damping as next_damping
from curvi.solvers._step import rounding_of as rounding_of
from curvi.solvers._step import trust_region_step as trust_region_step
from curvi.solvers._traced_layers import TracedLayers as TracedLayers
from curvi.solvers._traced_layers import with_layers as with_layers
from curvi.solvers._trust_region import TrustRegion

__all__ = [
    "DSVI",
    "HFSGVI",
    "KFAC",
    "LBFGS",
    "Averaged",
    "FirstOrder",
    "HessianFree",
    "Info",
    "Layer",
    "Layered",
    "Method",
    "NaturalGradient",
    "Pass",
    "Problem",
    "TrustRegion",
]
