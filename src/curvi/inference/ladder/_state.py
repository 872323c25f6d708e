"""A fitted q among the rungs of the ladder, and how it compares with the target."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from curvi.diagnostics._evaluation import raw_relative_ess
from curvi.families import Family, Params
from curvi.families._host import HostMap, host_map
from curvi.families._sparse_host import SparseMap

CLOSE = 0.8  # relative ESS from which weights are enough
_HEAVIEST, _TAIL = 0.5, 64  # shape of the tail of weights, and the share of draws that are it


class Candidate(NamedTuple):
    """A fitted q, and how it compares with the target."""

    family: Family
    params: Params
    elbo: float
    elbo_se: float
    log_ratio: np.ndarray

    @property
    def relative_ess(self) -> float:
        """Of the raw ratios: Pareto smoothing needs a library that takes seconds to import."""
        return raw_relative_ess(self.log_ratio)

    @property
    def close(self) -> bool:
        """Whether importance weights make up for the rest."""
        return self.relative_ess >= CLOSE and self.tail_shape <= _HEAVIEST

    @property
    def tail_shape(self) -> float:
        """Hill's estimate of k: from 1/2 on weights have no variance, and their ESS deceives."""
        logs = np.sort(self.log_ratio[np.isfinite(self.log_ratio)])
        tail = max(len(logs) // _TAIL, 8)
        return float(np.mean(logs[-tail:] - logs[-tail - 1])) if len(logs) > tail else np.inf

    @property
    def map(self) -> HostMap | SparseMap:
        """On the host."""
        return host_map(self.family, self.params)
