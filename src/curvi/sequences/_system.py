r"""The linear algebra behind q: a chain of states, bordered by regression coefficients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from curvi.sequences._block_tridiagonal import Factor
from curvi.sequences._structure import Structure


class Noise(NamedTuple):
    """Standard normal noise of draws: of the chain, and of the coefficients."""

    chain: np.ndarray
    coef: np.ndarray


class State(NamedTuple):
    """Components of the state: means and variances (points, times, components), and beta."""

    mean: np.ndarray
    variance: np.ndarray
    coef: np.ndarray  # (points, columns)
    coef_covariance: np.ndarray


class Solved(NamedTuple):
    """Means and variances of predictors, and the log determinant of the precision."""

    mean: np.ndarray
    variance: np.ndarray
    log_det: np.ndarray


class System:
    """The linear algebra of one structure at several theta: a chain with a border for beta."""

    def __init__(
        self,
        structure: Structure,
        design: np.ndarray,
        design_sd: np.ndarray,
        natural: dict[str, np.ndarray],
    ) -> None:
        self.structure, self.design = structure, design
        self.diagonal, self.below, log_det = structure.precision(
            {name: value for name, value in natural.items() if name != "noise"}
        )
        self.prior = np.diag(design_sd**-2.0)
        self.prior_log_det = log_det - 2 * np.log(design_sd).sum()

    def _blocked(self, rows: np.ndarray) -> np.ndarray:
        """(points, times, columns) as (points, blocks, group, columns), padded with zeros."""
        structure = self.structure
        extra = structure.times - rows.shape[1]
        padded = np.pad(rows, ((0, 0), (0, extra), (0, 0)))
        return padded.reshape(len(rows), structure.num_blocks, -1, rows.shape[2])

    def _times(self, blocked: np.ndarray) -> np.ndarray:
        """Back to (points, times, columns)."""
        flat = blocked.reshape(len(blocked), -1, blocked.shape[-1])
        return flat[:, : self.structure.length]

    def _factor(self, w: np.ndarray) -> Factor:
        blocked = self._blocked(w[:, :, None])[..., 0]
        seen = (blocked @ self._squares()).reshape(self.diagonal.shape)
        return Factor(self.diagonal + seen, self.below)

    def _squares(self) -> np.ndarray:
        """(group, width * width): the outer product of each row of the reading with itself."""
        read = self.structure.read
        squares: np.ndarray = (read[:, :, None] * read[:, None, :]).reshape(len(read), -1)
        return squares

    def _border(self, w: np.ndarray, r: np.ndarray) -> tuple[Any, ...]:
        """Factor of the chain, its solutions, and the system of the coefficients."""
        factor, read, X = self._factor(w), self.structure.read, self.design
        columns = np.concatenate([r[:, :, None], w[:, :, None] * X[None]], axis=2)
        solved = factor.solve(np.einsum("gi,kngc->knic", read, self._blocked(columns)))
        predictors = self._times(np.einsum("gi,knic->kngc", read, solved))
        schur = self.prior + np.einsum("tp,ktq->kpq", X, columns[:, :, 1:])
        schur = schur - np.einsum("ktp,ktq->kpq", columns[:, :, 1:], predictors[:, :, 1:])
        given = r @ X - np.einsum("ktp,kt->kp", columns[:, :, 1:], predictors[:, :, 0])
        inverse = np.linalg.inv(schur) if X.shape[1] else schur
        coef = np.einsum("kpq,kq->kp", inverse, given)
        return factor, solved, predictors, schur, inverse, coef

    def solve(self, w: np.ndarray, r: np.ndarray) -> Solved:
        """Means and variances of the predictors, and the log determinant of the precision."""
        factor, _, predictors, schur, inverse, coef = self._border(w, r)
        X = self.design
        rest = X[None] - predictors[:, :, 1:]
        mean = predictors[:, :, 0] + np.einsum("ktp,kp->kt", rest, coef)
        inverses = factor.selected_inverse()
        blocks = inverses.reshape(*inverses.shape[:2], -1) @ self._squares().T
        variance = self._times(blocks[..., None])[..., 0]
        variance = variance + np.einsum("ktp,ktp->kt", rest @ inverse, rest)
        log_det = factor.log_det + (np.linalg.slogdet(schur)[1] if X.shape[1] else 0.0)
        return Solved(mean, variance, log_det)

    def states(self, w: np.ndarray, r: np.ndarray) -> State:
        """Every component of the state instead of their sum."""
        factor, solved, _, _, inverse, coef = self._border(w, r)
        structure = self.structure

        def components(blocked: np.ndarray) -> np.ndarray:
            flat = blocked.reshape(len(blocked), structure.times, structure.states, -1)
            return flat[:, : structure.length]

        moved = components(solved)
        mean = moved[..., 0] - np.einsum("ktsp,kp->kts", moved[..., 1:], coef)
        own = np.diagonal(factor.selected_inverse(), axis1=-2, axis2=-1)[..., None]
        shared = np.einsum("ktsp,ktsp->kts", moved[..., 1:] @ inverse[:, None], moved[..., 1:])
        return State(mean, components(own)[..., 0] + shared, coef, inverse)

    def noise(
        self, rng: np.random.Generator, points: int, num_draws: int, dtype: Any = np.float64
    ) -> Noise:
        """What :meth:`draw` turns into draws; with one point, all points share it."""
        structure = self.structure
        shape = (points, structure.num_blocks, structure.width, num_draws)
        chain = rng.standard_normal(shape, dtype)
        return Noise(chain, rng.standard_normal((points, self.design.shape[1], num_draws), dtype))

    def draw(self, w: np.ndarray, noise: Noise) -> np.ndarray:
        """Centred draws of the predictors: the chain given beta, and beta; as precise as noise."""
        factor, _, predictors, _, inverse, _ = self._border(w, np.zeros_like(w))
        dtype = noise.chain.dtype
        read = self.structure.read.astype(dtype)
        drawn = self._times(read[None, None] @ factor.sample(noise.chain))
        if self.design.shape[1]:
            rest = (self.design[None] - predictors[:, :, 1:]) @ np.linalg.cholesky(inverse)
            drawn = drawn + rest.astype(dtype) @ noise.coef
        return drawn
