r"""The map of a dense family on the host: many draws forward, and gradients back to the noise.

.. math:: z = \mu + R\,v(\epsilon), \qquad
    v_l = \exp(B \epsilon_g - |B|^2)\,\epsilon_l

as :class:`~curvi.families.Conditional` has it; without globals, v is the noise itself and the map
that of :class:`~curvi.families.FullRank`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from curvi._core.trees import on_device
from curvi.families._bases import Normal
from curvi.families._conditional import Conditional
from curvi.families._family import Family, Params
from curvi.families._scales import LowerTriangular
from curvi.families._sparse_host import SparseMap
from curvi.families._sparse_precision import SparsePrecision
from curvi.families._warp import WarpedMap


def has_host_map(family: Family) -> bool:
    """Whether the family is a Gaussian with a dense R, or one that is conditional on globals."""
    if isinstance(family, SparsePrecision):
        return family.elimination is not None
    if isinstance(family, Conditional):
        return bool(family.order) and not family.blocks
    return isinstance(family.scale, LowerTriangular) and isinstance(family.base, Normal)


def host_map(family: Family, params: Params) -> HostMap | SparseMap:
    """The map of a family that has one."""
    if isinstance(family, SparsePrecision):
        return SparseMap.of(family, params)
    return HostMap.of(family, params)


@dataclass(frozen=True, eq=False)
class HostMap(WarpedMap):
    """mu, R and B as NumPy arrays, the coordinates in the order (globals, locals).

    Parameters
    ----------
    mean, factor, warp : array
        mu, R and B, of shapes (d,), (d, d) and (locals, globals).
    order : array
        Which coordinate of the position stands where.
    """

    mean: np.ndarray
    factor: np.ndarray
    warp: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, family: Family, params: Params) -> HostMap:
        """The map of a family that has one."""
        mean = np.asarray(params.mean, np.float64)
        if isinstance(family, Conditional):
            raw = np.asarray(params.scale_params["scale"], np.float64)
            warp = np.asarray(params.scale_params["warp"], np.float64)
            order = np.asarray(family.order)
        else:
            raw = np.asarray(params.scale_params, np.float64)
            warp, order = np.zeros((len(mean), 0)), np.arange(len(mean))
        return cls(mean[order], LowerTriangular().factor(raw, np), warp, order)

    @classmethod
    def matching(cls, positions: np.ndarray) -> HostMap | None:
        """The Gaussian with mean and covariance of positions; None where there is none."""
        if not np.isfinite(positions).all():
            return None
        try:
            factor = np.linalg.cholesky(np.atleast_2d(np.cov(positions.T, ddof=0)))
        except np.linalg.LinAlgError:
            return None
        dimension = positions.shape[1]
        warp, order = np.zeros((dimension, 0)), np.arange(dimension)
        return cls(positions.mean(axis=0), factor, warp, order)

    def params(self, family: Family, dtype: Any) -> Params:
        """The parameters of the family whose map this is."""
        mean = np.empty_like(self.mean)
        mean[self.order] = self.mean
        raw = np.tril(self.factor, -1) + np.diag(np.log(np.diagonal(self.factor)))
        scale: Any = on_device(raw, dtype)
        if isinstance(family, Conditional):
            scale = {"scale": scale, "warp": on_device(self.warp, dtype)}
        return Params(on_device(mean, dtype), scale)

    @property
    def sds(self) -> np.ndarray:
        """Marginal sds of q, in the order of the coordinates here."""
        return np.sqrt(np.sum(self.factor**2, axis=1))

    @property
    def log_det(self) -> float:
        """``log det R``."""
        return float(np.sum(np.log(np.diagonal(self.factor))))

    def astype(self, dtype: Any) -> HostMap:
        """The same map in another precision."""
        mean, factor, warp = (part.astype(dtype) for part in (self.mean, self.factor, self.warp))
        return HostMap(mean, factor, warp, self.order)

    def _placed(self, v: np.ndarray) -> np.ndarray:
        """Positions ``mu + R v``."""
        positions = np.empty_like(v)
        positions[:, self.order] = self.mean + v @ self.factor.T
        return positions

    def linear_back(self, gradients: np.ndarray) -> np.ndarray:
        """``R' g``: gradients in v for gradients in the positions."""
        return gradients[:, self.order] @ self.factor

    def matched_to(self, positions: np.ndarray, weight: float) -> HostMap:
        """The map with mean and covariance moved towards those of positions, by ``weight``."""
        v = self._linear_noise_of(positions)
        mean = v.mean(axis=0)
        covariance = weight * np.cov(v.T) + (1 - weight) * np.eye(len(mean))
        factor = self.factor @ np.linalg.cholesky(covariance)
        return replace(self, mean=self.mean + self.factor @ mean, factor=factor)

    def _linear_noise_of(self, positions: np.ndarray) -> np.ndarray:
        """``v = R^-1 (z - mu)``."""
        centred = positions[:, self.order] - self.mean
        return linalg.solve_triangular(self.factor, centred.T, lower=True, check_finite=False).T
