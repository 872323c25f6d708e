"""Anderson acceleration of a fixed-point iteration, for many problems side by side."""

from __future__ import annotations

import numpy as np


class Anderson:
    r"""Combine the last few steps so that their residuals cancel.

    With differences :math:`\Delta\Lambda` of iterates and :math:`\Delta F` of residuals the next
    step is :math:`f - (\Delta\Lambda + \Delta F)\gamma` with the least-squares
    :math:`\gamma = \arg\min |f - \Delta F \gamma|`. Residuals of precisions and of linear terms are
    measured in the units of q: times its variance, times its standard deviation.

    Parameters
    ----------
    memory : int
        Steps that are remembered.
    ridge : float
        Added to the least squares, relative to their trace.
    """

    def __init__(self, memory: int = 4, ridge: float = 1e-10) -> None:
        self._memory, self._ridge = memory, ridge
        self._last: tuple[np.ndarray, np.ndarray] | None = None
        self._count = 0
        self.used = np.zeros(0, bool)

    def step(
        self,
        w: np.ndarray,
        r: np.ndarray,
        step_w: np.ndarray,
        step_r: np.ndarray,
        variance: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The accelerated step; plain where there is no memory (``used`` says where)."""
        times = w.shape[1]
        here = np.concatenate([w, r], axis=1)
        plain = np.concatenate([step_w, step_r], axis=1)
        if self._last is None:  # differences of the last steps, each in the place of the oldest
            self._moves, self._changes = np.zeros((2, len(w), self._memory, 2 * times))
            self._valid = np.zeros(len(w), int)
        else:
            place = self._count % self._memory
            np.subtract(here, self._last[0], out=self._moves[:, place])
            np.subtract(plain, self._last[1], out=self._changes[:, place])
            self._count += 1
        self._last = here, plain
        self.used = self._valid > 0
        out = plain
        if self.used.any():
            unit = np.concatenate([variance, np.sqrt(variance)], axis=1)
            age = (self._count - 1 - np.arange(self._memory)) % self._memory
            recent = age < self._valid[:, None]
            scaled = self._changes * unit[:, None]
            both = recent[:, :, None] & recent[:, None]
            gram = np.where(both, scaled @ np.swapaxes(scaled, 1, 2), 0.0)
            ridge = self._ridge * np.trace(gram, axis1=1, axis2=2)[:, None] + 1e-300
            gram[:, np.arange(self._memory), np.arange(self._memory)] += ridge + ~recent
            right = np.where(recent, (scaled @ (plain * unit)[:, :, None])[..., 0], 0.0)
            gamma = np.swapaxes(np.linalg.solve(gram, right[..., None]), 1, 2)
            out = plain - (gamma @ self._moves + gamma @ self._changes)[:, 0]
        self._valid = np.minimum(self._valid + 1, self._memory)
        return out[:, :times], out[:, times:]

    def forget(self, where: np.ndarray) -> None:
        """Start again from a plain step where an accelerated one was no good."""
        self._valid = np.where(where, 0, self._valid)

    def restrict(self, kept: np.ndarray) -> None:
        """Go on with some of the problems."""
        self._valid, self.used = self._valid[kept], self.used[kept]
        self._moves, self._changes = self._moves[kept], self._changes[kept]
        if self._last is not None:
            self._last = self._last[0][kept], self._last[1][kept]
