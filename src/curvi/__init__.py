"""Second-order stochastic variational inference on JAX.

No learning rate to tune, an answer that says whether it converged, and error bars that can be
trusted. The public names are imported when they are first used, so that ``import curvi`` costs
little more than ``import jax``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curvi import curvature as curvature
    from curvi import expectation as expectation
    from curvi import families as families
    from curvi.families import FullRank as FullRank
    from curvi.families import LowRank as LowRank
    from curvi.families import MeanField as MeanField
    from curvi.families import StudentT as StudentT
    from curvi.targets import DataTarget as DataTarget
    from curvi.targets import Target as Target

__version__ = "0.1.0"

_HOME = {
    "Target": "curvi.targets",
    "DataTarget": "curvi.targets",
    "MeanField": "curvi.families",
    "FullRank": "curvi.families",
    "LowRank": "curvi.families",
    "StudentT": "curvi.families",
}
_STAGES = ("core", "targets", "families", "expectation", "curvature")

__all__ = ["__version__", *_HOME, *_STAGES]  # noqa: PLE0604  names are resolved by __getattr__


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _STAGES:
        return importlib.import_module(f"curvi.{name}")
    raise AttributeError(f"module 'curvi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
