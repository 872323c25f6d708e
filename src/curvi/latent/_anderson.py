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
        self._moves: list[np.ndarray] = []
        self._changes: list[np.ndarray] = []
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
        if self._last is None:
            self.used = np.zeros(len(w), bool)
            self._valid = np.zeros(len(w), int)
        else:
            self._moves = [*self._moves, here - self._last[0]][-self._memory :]
            self._changes = [*self._changes, plain - self._last[1]][-self._memory :]
        self._last = here, plain
        self.used = self._valid > 0
        out = plain
        if self._moves and self.used.any():
            unit = np.concatenate([variance, np.sqrt(variance)], axis=1)
            count = len(self._changes)
            recent = np.arange(count)[None] >= count - self._valid[:, None]
            changes = np.stack(self._changes, axis=2) * recent[:, None, :]
            moves = np.stack(self._moves, axis=2) * recent[:, None, :]
            scaled = changes * unit[:, :, None]
            gram = np.einsum("kti,ktj->kij", scaled, scaled)
            ridge = self._ridge * np.trace(gram, axis1=1, axis2=2)[:, None, None] + 1e-300
            gram = gram + ridge * np.eye(count) + (~recent)[:, :, None] * np.eye(count)
            right = np.einsum("kti,kt->ki", scaled, plain * unit)
            gamma = np.linalg.solve(gram, right[..., None])
            out = plain - ((moves + changes) @ gamma)[..., 0]
        self._valid = np.minimum(self._valid + 1, self._memory)
        return out[:, :times], out[:, times:]

    def forget(self, where: np.ndarray) -> None:
        """Start again from a plain step where an accelerated one was no good."""
        self._valid = np.where(where, 0, self._valid)

    def restrict(self, kept: np.ndarray) -> None:
        """Go on with some of the problems."""
        self._valid, self.used = self._valid[kept], self.used[kept]
        self._moves = [move[kept] for move in self._moves]
        self._changes = [change[kept] for change in self._changes]
        if self._last is not None:
            self._last = self._last[0][kept], self._last[1][kept]
