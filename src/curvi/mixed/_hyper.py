"""Hyperparameters: scales and correlations of group effects, noise and dispersion.

In the coordinates of `curvi.latent.Covariance` nothing is singular where a standard deviation
vanishes. All functions take any number of leading axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from curvi._core.errors import InputError
from curvi.latent import Covariance, block_root, of_extra
from curvi.likelihoods import Extra
from curvi.mixed._origins import Entries, at_zero

INTERCEPT = "Intercept"
_STEP = 1e-5  # of central differences of a factor, whose error is then below 1e-9


@dataclass(frozen=True)
class Block(Covariance):
    """Columns of one bar: correlated with each other, independent of all other bars.

    Sds and correlations are those of the effects where every column is at its ``origin``; slopes
    are the same anywhere, the intercept of a level is not.
    """

    origin: tuple[float, ...] = ()  # nothing: zero
    within: Entries = ()  # how columns of products are moved before

    _claims = {  # noqa: RUF012  of no instance
        "columns": "texts columns", "scales": "positive columns", "origin": "real origin",
    }  # fmt: skip

    def _check_stored(self) -> None:
        """Refuse what a file says of an origin that these columns cannot have."""
        if len(self.origin) not in (0, len(self.columns)):
            raise InputError("its columns and origin differ in length")
        if any(self.origin) and INTERCEPT not in self.columns:
            raise InputError(f"its columns have no {INTERCEPT}, and its origin is not zero")
        for *places, weight in self.within:
            if not (all(0 <= p < len(self.columns) for p in places) and math.isfinite(weight)):
                raise InputError("its within names a column that is not there, or is not finite")

    def to_zero(self) -> np.ndarray:
        """The matrix that turns effects at the origin into those where the columns are zero."""
        out = np.eye(self.size)
        if any(self.origin):
            out[self.columns.index(INTERCEPT)] -= self.origin
        return at_zero(out.T, self.within).T


@dataclass(frozen=True)
class Layout:
    """Which entry of theta means what; ``factors`` has the blocks of every grouping factor."""

    factors: tuple[tuple[Block, ...], ...]
    extras: tuple[Extra, ...] = ()

    @property
    def size(self) -> int:
        """Length of theta."""
        blocks = [block for factor in self.factors for block in factor]
        return sum(block.parameters for block in blocks) + len(self.extras)

    def start(self, extras: Sequence[float]) -> np.ndarray:
        """Sds at a tenth of their prior scales, no correlation, and given values of the extras."""
        parts = [block.start() for factor in self.factors for block in factor]
        return np.concatenate([*parts, np.log(np.asarray(extras, np.float64).reshape(-1))])

    def extra_values(self, theta: np.ndarray) -> np.ndarray:
        """Noise and dispersion: the last entries, no longer as logarithms."""
        return np.exp(theta[..., theta.shape[-1] - len(self.extras) :])

    def _parts(self, theta: np.ndarray) -> Iterator[list[tuple[Block, np.ndarray]]]:
        """The blocks of every factor with their entries of theta."""
        at = 0
        for blocks in self.factors:
            ends = at + np.cumsum([0, *(block.parameters for block in blocks)])
            pairs = zip(blocks, ends, strict=False)
            yield [(block, theta[..., one : one + block.parameters]) for block, one in pairs]
            at = ends[-1]

    def scale_factors(self, theta: np.ndarray) -> list[np.ndarray]:
        """``Lambda`` of every factor, block diagonal over its bars."""
        return [block_root(pairs) for pairs in self._parts(theta)]

    def to_zero(self) -> list[np.ndarray]:
        """`Block.to_zero` of every factor, block diagonal over its bars."""
        return [linalg.block_diag(*(b.to_zero() for b in blocks)) for blocks in self.factors]

    def derivatives(self, theta: np.ndarray) -> list[list[np.ndarray]]:
        """Derivatives of every ``Lambda`` in each entry of theta, at one theta."""
        out = []
        for index in range(self.size):
            step = np.zeros(self.size)
            step[index] = _STEP
            ends = zip(
                self.scale_factors(theta + step), self.scale_factors(theta - step), strict=True
            )
            out.append([(up - down) / (2 * _STEP) for up, down in ends])
        return out

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Log density of theta, with the Jacobians of its logarithms and tangents."""
        total = np.zeros(theta.shape[:-1])
        for block, part in (pair for pairs in self._parts(theta) for pair in pairs):
            total = total + block.log_prior(part)
        first = self.size - len(self.extras)
        for index, extra in enumerate(self.extras, first):
            total = total + of_extra(theta[..., index], extra)
        return total

    def slopes_of_prior(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of `log_prior` at one theta, by central differences."""
        steps = _STEP * np.eye(self.size)
        ends = self.log_prior(np.concatenate([theta + steps, theta - steps]))
        return (ends[: self.size] - ends[self.size :]) / (2 * _STEP)

    def natural(self, theta: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Sds and correlation matrices where the columns are zero, for each block in order."""
        out = []
        for blocks, root in zip(self.factors, self.scale_factors(theta), strict=True):
            at = 0
            for block in blocks:
                part = slice(at, at + block.size)
                turned = block.to_zero() @ root[..., part, part]
                sds = np.sqrt((turned**2).sum(axis=-1))
                unit = turned / sds[..., None]
                out.append((sds, unit @ np.swapaxes(unit, -1, -2)))
                at += block.size
        return out
