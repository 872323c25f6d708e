r"""The bound of a multiclass table with a diagonal R, with its dense Hessian, on the host.

The logits of a row are :math:`t_k \sim N(m_k, v_k)`, independent given the independent blocks of
the classes, and :math:`E[\log p(y)] = m_y - E[\log \sum_k e^{t_k}]` is averaged over fixed
normalised draws :math:`t_k = m_k + \sqrt{v_k}\,\epsilon_k`, the same for every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy import special

from curvi.glm._diagonal_bound import DiagonalBound, Energy

_NUMBERS_AT_ONCE = 2_000_000  # of a table of draws x rows x classes


@dataclass(frozen=True)
class SoftmaxBound(DiagonalBound):
    """The negative bound; mu and sd are flattened from (classes, columns).

    ``y`` holds class numbers, ``draws`` (draws, classes) the normalised noise of the logits.
    """

    matrix: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    draws: np.ndarray
    squares: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Square the design once."""
        object.__setattr__(self, "squares", self.matrix * self.matrix)

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.draws.shape[1])

    @property
    def work(self) -> float:
        """Multiplications of one Hessian, roughly."""
        return 3.0 * self.matrix.shape[0] * (self.num_classes * self.matrix.shape[1]) ** 2

    def energy(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """Minus the expected log likelihood."""
        mean, width = self._logits(mu, sd)
        total = 0.0
        for part in self._parts():
            t = mean[part] + width[part] * self.draws[:, None, :]
            spread = special.logsumexp(t, axis=2).mean(axis=0)
            total += float(self.weight[part] @ (spread - self._own(mean, part)))
        return total

    def energy_second_order(self, mu: np.ndarray, sd: np.ndarray) -> Energy:
        """The same with its derivatives: Gram matrices for every pair of classes."""
        mean, width = self._logits(mu, sd)
        rows, classes = mean.shape
        value, slope_m, slope_v = 0.0, np.empty((rows, classes)), np.empty((rows, classes))
        mm, mv, vv = (np.empty((rows, classes, classes)) for _ in range(3))
        for part in self._parts():
            spread, *terms = _row_terms(mean[part], width[part], self.draws)
            value += float(self.weight[part] @ (spread - self._own(mean, part)))
            slope_m[part], slope_v[part], mm[part], mv[part], vv[part] = terms
        slope_m[np.arange(rows), self.y] -= 1
        weight = self.weight[:, None]
        X, squares = self.matrix, self.squares
        return Energy(
            value,
            ((weight * slope_m).T @ X).ravel(),
            ((weight * slope_v).T @ squares).ravel(),
            self._blocks(X, mm, X),
            self._blocks(X, mv, squares),
            self._blocks(squares, vv, squares),
        )

    def _own(self, mean: np.ndarray, part: slice) -> np.ndarray:
        """The mean logit of each row's own class."""
        return np.take_along_axis(mean[part], self.y[part, None], axis=1)[:, 0]

    def _logits(self, mu: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        dtype, shape = self.matrix.dtype, (self.num_classes, -1)
        mean = self.matrix @ mu.reshape(shape).T.astype(dtype)
        variance = self.squares @ (sd**2).reshape(shape).T.astype(dtype)
        floor = float(np.finfo(dtype).tiny) ** 0.5  # a row of zeros has no width
        return mean.astype(np.float64), np.sqrt(np.maximum(variance.astype(np.float64), floor))

    def _parts(self) -> Iterator[slice]:
        size = max(1, _NUMBERS_AT_ONCE // self.draws.size)
        for start in range(0, self.matrix.shape[0], size):
            yield slice(start, start + size)

    def _blocks(self, left: np.ndarray, slope: np.ndarray, right: np.ndarray) -> np.ndarray:
        classes, columns = self.num_classes, left.shape[1]
        out = np.empty((classes, columns, classes, columns))
        for k in range(classes):
            for other in range(classes):
                weights = (self.weight * slope[:, k, other]).astype(left.dtype)
                out[k, :, other, :] = left.T @ (weights[:, None] * right)
        return out.reshape(classes * columns, classes * columns)


def _row_terms(mean: np.ndarray, width: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, ...]:
    """``E[logsumexp(t)]`` of rows, its slopes in (m, v), and second derivatives in both.

    Derivatives are those of the average over the draws itself, so that Newton steps on fixed
    draws converge quadratically.
    """
    noise = draws[:, None, :]
    t = mean + width * noise
    spread = special.logsumexp(t, axis=2)
    p = np.exp(t - spread[:, :, None])
    count = draws.shape[0]
    pulled = (p * noise).sum(axis=0) / count
    half = 0.5 / width
    mm, mv, vv = (
        -np.einsum("mnk,mnl->nkl", p * a, p * b, optimize=True) / count
        for a, b in ((1.0, 1.0), (1.0, noise), (noise, noise))
    )
    index = np.arange(mean.shape[1])
    slope = p.sum(axis=0) / count
    mm[:, index, index] += slope
    mv[:, index, index] += pulled
    vv[:, index, index] += (p * noise**2).sum(axis=0) / count
    mv = mv * half[:, None, :]
    vv = vv * half[:, :, None] * half[:, None, :]
    vv[:, index, index] -= pulled * 2 * half**3
    return spread.mean(axis=0), slope, pulled * half, mm, mv, vv
