"""One file per method: HFSGVI, TrustRegion, LBFGS, KFAC, first order (any optax), DSVI."""

from curvi.solvers._averaging import Averaged
from curvi.solvers._dsvi import DSVI
from curvi.solvers._first_order import FirstOrder
from curvi.solvers._hessian_free import HessianFree
from curvi.solvers._hfsgvi import HFSGVI
from curvi.solvers._kfac import KFAC
from curvi.solvers._lbfgs import LBFGS
from curvi.solvers._method import Info, Layer, Layered, Method, Pass, Problem
from curvi.solvers._natural_gradient import NaturalGradient
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
