"""One file per method: HFSGVI, TrustRegion, LBFGS, first order (any optax), DSVI."""

from curvi.methods.dsvi import DSVI
from curvi.methods.first_order import FirstOrder
from curvi.methods.hfsgvi import HFSGVI
from curvi.methods.lbfgs import LBFGS
from curvi.methods.method import Info, Method
from curvi.methods.optax_door import hessian_free
from curvi.methods.problem import Problem
from curvi.methods.trust_region import TrustRegion

__all__ = [
    "DSVI",
    "HFSGVI",
    "LBFGS",
    "FirstOrder",
    "Info",
    "Method",
    "Problem",
    "TrustRegion",
    "hessian_free",
]
