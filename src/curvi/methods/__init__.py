"""One file per method: HFSGVI, TrustRegion, LBFGS, KFAC, first order (any optax), DSVI."""

from curvi.methods.averaging import Averaged
from curvi.methods.dsvi import DSVI
from curvi.methods.first_order import FirstOrder
from curvi.methods.hessian_free import HessianFree
from curvi.methods.hfsgvi import HFSGVI
from curvi.methods.kfac import KFAC
from curvi.methods.layered import Layer, Layered, Pass
from curvi.methods.lbfgs import LBFGS
from curvi.methods.method import Info, Method
from curvi.methods.optax_door import hessian_free
from curvi.methods.problem import Problem
from curvi.methods.trust_region import TrustRegion

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
    "Pass",
    "Problem",
    "TrustRegion",
    "hessian_free",
]
