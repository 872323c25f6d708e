r"""What the maps of conditional families share: noise whose local scales follow the globals.

.. math:: v_g = \epsilon_g, \qquad v_l = \exp(B \epsilon_g - |B|^2)\,\epsilon_l,
    \qquad z = \mu + R v

A map adds how R acts: by a matrix, or by substitution.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import numpy as np


class Moved(NamedTuple):
    """Noise on its way: v, the scales of the locals, positions, ``log |det dz / d epsilon|``."""

    v: np.ndarray
    scales: np.ndarray
    positions: np.ndarray
    log_det: np.ndarray


class WarpedMap(abc.ABC):
    """The part of a map that B decides; draws are rows."""

    warp: np.ndarray

    @property
    @abc.abstractmethod
    def log_det(self) -> float:
        """``log det R``."""

    @abc.abstractmethod
    def _placed(self, v: np.ndarray) -> np.ndarray:
        """Positions ``mu + R v``."""

    @abc.abstractmethod
    def linear_back(self, gradients: np.ndarray) -> np.ndarray:
        """``R' g``: gradients in v for gradients in the positions."""

    @abc.abstractmethod
    def _linear_noise_of(self, positions: np.ndarray) -> np.ndarray:
        """``v = R^-1 (z - mu)``."""

    @property
    def num_globals(self) -> int:
        """Coordinates of the noise that scales follow."""
        return int(self.warp.shape[1])

    def forward(self, noise: np.ndarray, *, largest_log: float = 30.0) -> Moved:
        """Move draws, one per row.

        ``largest_log``: of a scale: a draw further out is as good as infinitely far.
        """
        logs = self._log_scales(noise)
        scales = np.exp(np.minimum(logs, largest_log))
        v = noise.copy()
        v[:, self.num_globals :] *= scales
        with np.errstate(over="ignore", invalid="ignore"):  # q of an improper posterior
            positions = self._placed(v)
        return Moved(v, scales, positions, self.log_det + logs.sum(axis=1))

    def back(self, moved: Moved, gradients: np.ndarray) -> np.ndarray:
        r"""Gradients of :math:`\log p(z) + \log |\det dz/d\epsilon|` in the noise."""
        count, scores = self.num_globals, np.ascontiguousarray(self.linear_back(gradients))
        if count:
            local = scores[:, count:]
            scores[:, :count] += (local * moved.v[:, count:] + 1.0) @ self.warp
            scores[:, count:] = local * moved.scales
        return scores

    def noise_of(self, positions: np.ndarray) -> np.ndarray:
        """The noise that is mapped to the positions."""
        noise = self._linear_noise_of(positions)
        noise[:, self.num_globals :] *= np.exp(-self._log_scales(noise))
        return noise

    def _log_scales(self, noise: np.ndarray) -> np.ndarray:
        """``B epsilon_g - |B|^2``, from the noise or from v, which share their globals."""
        return noise[:, : self.num_globals] @ self.warp.T - np.sum(self.warp**2, axis=1)
