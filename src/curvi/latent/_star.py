r"""Hyperparameters on a small design of points, where an evaluation is dear.

Points on a star, the centre and two points on every axis, give gradient and curvature of the log
density; the same points, with weights, have the mean and the covariance of a normal density.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class Parabolas(NamedTuple):
    """What a parabola on each axis says: the mode from the centre, and sds, in units of the axes.

    Both are zero and one where the star stands well.
    """

    shift: np.ndarray
    sds: np.ndarray

    def far(self, most: float) -> bool:
        """Whether the star should move, or change its size."""
        away = np.abs(self.shift / self.sds).max(initial=0.0)
        return bool(max(away, np.abs(np.log(self.sds)).max(initial=0.0)) >= most)


@dataclass(frozen=True)
class Star(Generic[T]):
    """Points around a centre.

    Attributes
    ----------
    evaluate : callable
        A log density, and what to keep, of theta; it is also given what the centre left, or None.
    arm : float
        Length of an axis, in units of sqrt(dimension) sds.
    """

    evaluate: Callable[[np.ndarray, T | None], tuple[float, T]]
    arm: float = 1.1

    def points(
        self, centre: np.ndarray, root: np.ndarray
    ) -> tuple[list[T], np.ndarray, np.ndarray, Parabolas]:
        """What is kept of each point, theta and log densities, and where the mode is.

        ``root`` times its transpose is about the covariance of theta.
        """
        size = len(centre)
        arm = self.arm * np.sqrt(size)
        ends = arm * np.concatenate([[column, -column] for column in root.T])
        thetas = centre + np.concatenate([np.zeros((1, size)), ends])
        value, middle = self.evaluate(centre, None)
        values, kept = [value], [middle]
        for theta in thetas[1:]:
            found = self.evaluate(theta, middle)
            values.append(found[0])
            kept.append(found[1])
        up, down = np.asarray(values[1::2]), np.asarray(values[2::2])
        sds = np.clip((2 * value - up - down) / arm**2, 0.05, 20.0) ** -0.5
        shift = np.clip((up - down) / (2 * arm) * sds**2, -5, 5)
        return kept, thetas, np.asarray(values), Parabolas(shift, sds)

    def weights(self, values: np.ndarray) -> np.ndarray:
        """Of the points, from their log densities: exact for moments of a normal density."""
        size = (len(values) - 1) // 2
        outer = 1 / (2 * self.arm**2 * size)
        plain = np.array([1 - 2 * size * outer] + [outer] * (2 * size))
        normal = np.concatenate([[0.0], np.full(2 * size, 0.5 * self.arm**2 * size)])
        weights = plain * np.exp(values - values[0] + normal)
        found: np.ndarray = weights / weights.sum()
        return found
