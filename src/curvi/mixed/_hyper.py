r"""Hyperparameters: scales and correlations of group effects, noise and dispersion.

The effects of a group are :math:`v = \Lambda(\theta)\,\xi` with :math:`\xi \sim N(0, I)` and
:math:`\Lambda = \mathrm{diag}(\sigma)\,L`, where L is the Cholesky factor of a correlation matrix.
In these coordinates nothing is singular where a standard deviation vanishes. The unconstrained
vector :math:`\theta` holds log sds, the inverse hyperbolic tangents of the canonical partial
correlations (which are independent beta variables under the LKJ prior), and the logarithm of what
the likelihood needs. All functions take any number of leading axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg, special

from curvi._core.errors import InputError
from curvi.likelihoods import Extra
from curvi.mixed._origins import Entries, at_zero

INTERCEPT = "Intercept"
LKJ = 2.0  # concentration of the prior of correlations
_STEP = 1e-5  # of central differences of a factor, whose error is then below 1e-9


@dataclass(frozen=True)
class Block:
    """Columns of one bar: correlated with each other, independent of all other bars.

    Sds and correlations are those of the effects where every column is at its ``origin``; slopes
    are the same anywhere, the intercept of a level is not.
    """

    columns: tuple[str, ...]
    scales: tuple[float, ...]  # of the half-normal priors of their sds
    correlated: bool = True
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

    @property
    def size(self) -> int:
        """Number of columns."""
        return len(self.columns)

    @property
    def correlations(self) -> int:
        """Number of correlations."""
        return self.size * (self.size - 1) // 2 if self.correlated else 0

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
        return sum(b.size + b.correlations for b in blocks) + len(self.extras)

    def start(self, extras: Sequence[float]) -> np.ndarray:
        """Sds at a tenth of their prior scales, no correlation, and given values of the extras."""
        parts = [
            np.concatenate([np.log(0.1 * np.asarray(b.scales)), np.zeros(b.correlations)])
            for factor in self.factors
            for b in factor
        ]
        return np.concatenate([*parts, np.log(np.asarray(extras, np.float64).reshape(-1))])

    def extra_values(self, theta: np.ndarray) -> np.ndarray:
        """Noise and dispersion: the last entries, no longer as logarithms."""
        return np.exp(theta[..., theta.shape[-1] - len(self.extras) :])

    def scale_factors(self, theta: np.ndarray) -> list[np.ndarray]:
        """``Lambda`` of every factor, block diagonal over its bars."""
        out, at = [], 0
        for blocks in self.factors:
            size = sum(block.size for block in blocks)
            whole = np.zeros((*theta.shape[:-1], size, size))
            place = 0
            for block in blocks:
                sds = np.exp(theta[..., at : at + block.size])
                partial = theta[..., at + block.size : at + block.size + block.correlations]
                at += block.size + block.correlations
                part = slice(place, place + block.size)
                whole[..., part, part] = sds[..., None] * _cholesky(np.tanh(partial), block.size)
                place += block.size
            out.append(whole)
        return out

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
        total, at = np.zeros(theta.shape[:-1]), 0
        for block in (block for factor in self.factors for block in factor):
            logs = theta[..., at : at + block.size]
            total = total + _half_normal(logs, np.asarray(block.scales)).sum(axis=-1)
            if block.correlations:
                partial = theta[..., at + block.size : at + block.size + block.correlations]
                total = total + _lkj(partial, block.size)
            at += block.size + block.correlations
        for index, extra in enumerate(self.extras):
            log = theta[..., at + index]
            if extra.prior == "gamma":
                total = total + 2 * (log - math.log(extra.scale)) - np.exp(log) / extra.scale
            else:
                total = total + _half_normal(log, np.asarray(extra.scale))
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


def _half_normal(log: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Log density of the logarithm of a half-normal variable."""
    constant = 0.5 * math.log(2 / math.pi) - np.log(scale)
    return constant - 0.5 * np.exp(2 * (log - np.log(scale))) + log


def _cholesky(partial: np.ndarray, size: int) -> np.ndarray:
    """Cholesky factor of the correlation matrix with these canonical partial correlations."""
    root = np.zeros((*partial.shape[:-1], size, size))
    root[..., 0, 0] = 1
    if not partial.shape[-1]:  # uncorrelated, or a single column
        root[..., np.arange(size), np.arange(size)] = 1
        return root
    at = 0
    for row in range(1, size):
        left = np.ones(partial.shape[:-1])
        for column in range(row):
            root[..., row, column] = partial[..., at] * np.sqrt(left)
            left = left - root[..., row, column] ** 2
            at += 1
        root[..., row, row] = np.sqrt(np.maximum(left, 0.0))
    return root


def _lkj(unconstrained: np.ndarray, size: int) -> np.ndarray:
    """Log density of the tangents: ``(1 - p^2)^b``, b = eta + (size - 1 - column - 1) / 2 + ..."""
    total, at = np.zeros(unconstrained.shape[:-1]), 0
    for row in range(1, size):
        for column in range(row):
            power = LKJ + 0.5 * (size - 2 - column)
            value = unconstrained[..., at]
            # log(1 - tanh(x)^2), without cancellation where the tangent is one
            log_gap = 2 * (math.log(2.0) - np.abs(value) - np.log1p(np.exp(-2 * np.abs(value))))
            constant = (2 * power - 1) * math.log(2.0) + special.betaln(power, power)
            total = total + power * log_gap - constant
            at += 1
    return total
