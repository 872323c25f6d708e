"""The Kalman filter and the Rauch-Tung-Striebel smoother, as textbooks write them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class LinearGaussian(NamedTuple):
    """``x_1 ~ N(0, start)``, ``x_{t+1} = F x_t + N(0, Q)``, ``y_t = H x_t + N(0, R)``."""

    transition: np.ndarray
    process: np.ndarray
    emission: np.ndarray
    noise: np.ndarray
    start: np.ndarray


def smoothed(model: LinearGaussian, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Means, covariances and the log marginal likelihood; rows of NaN are missing."""
    F, Q, H, R, start = model
    mean, covariance, evidence = np.zeros(len(F)), start, 0.0
    filtered, predicted = [], []
    for row in y:
        predicted.append((mean, covariance))
        seen = np.isfinite(row)
        if seen.any():
            h, innovation = H[seen], row[seen] - H[seen] @ mean
            S = h @ covariance @ h.T + R[np.ix_(seen, seen)]
            gain = np.linalg.solve(S, h @ covariance).T
            square = innovation @ np.linalg.solve(S, innovation)
            evidence -= 0.5 * (square + np.linalg.slogdet(2 * np.pi * S)[1])
            mean, covariance = mean + gain @ innovation, covariance - gain @ h @ covariance
        filtered.append((mean, covariance))
        mean, covariance = F @ mean, F @ covariance @ F.T + Q
    means, covariances = [filtered[-1][0]], [filtered[-1][1]]
    for (m, c), (m_next, c_next) in zip(filtered[-2::-1], predicted[:0:-1], strict=True):
        gain = np.linalg.solve(c_next, F @ c).T
        means.append(m + gain @ (means[-1] - m_next))
        covariances.append(c + gain @ (covariances[-1] - c_next) @ gain.T)
    return np.asarray(means[::-1]), np.asarray(covariances[::-1]), evidence
