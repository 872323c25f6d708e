r"""The map of a sparse precision on the host: many draws forward, and gradients back to the noise.

The twin of :class:`~curvi.families._host.HostMap`, with R by substitution instead of a matrix. The
coordinates are columns here, draws are rows outside: sparse products are fast along them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import linalg, sparse

from curvi._core.trees import precision_of
from curvi.families._family import Params
from curvi.families._scales import LowerTriangular
from curvi.families._sparse_precision import SparsePrecision
from curvi.families._warp import WarpedMap
from curvi.linalg import Elimination, InverseFactor, SparseSymmetric


@dataclass(frozen=True, eq=False)
class SparseMap(WarpedMap):
    r"""``z = mu + R v(epsilon)`` with a sparse inverse of R.

    Parameters
    ----------
    structure : Elimination
        The order of the coordinates, and the entries of N.
    mean : array, shape (d,)
        mu, in the order of the elimination.
    block, coupling, links, scale : array
        G, K, the entries of N, and the diagonal of S.
    warp : array, shape (locals, dense) or (d, 0)
        B.
    """

    structure: Elimination
    mean: np.ndarray
    block: np.ndarray
    coupling: np.ndarray
    links: np.ndarray
    scale: np.ndarray
    warp: np.ndarray

    @classmethod
    def of(cls, family: SparsePrecision, params: Params) -> SparseMap:
        """The map of a family with these parameters."""
        structure, inner = family.elimination, params.scale_params["scale"]
        assert structure is not None  # noqa: S101  for the type checker
        raw, coupling, links, logs = (
            np.asarray(inner[name], np.float64)
            for name in ("block", "coupling", "links", "log_scale")
        )
        mean = np.asarray(params.mean, np.float64)[structure.order]
        factor = LowerTriangular().factor(raw, np)
        warp = np.asarray(params.scale_params["warp"], np.float64)
        return cls(structure, mean, factor, coupling, links, np.exp(logs), warp)

    def params(self, dtype: Any) -> Params:
        """The parameters of the family whose map this is."""
        with np.errstate(over="ignore", divide="ignore"):
            raw = np.tril(self.block, -1) + np.diag(np.log(np.diagonal(self.block)))
            inner = {
                "block": raw,
                "coupling": self.coupling,
                "links": self.links,
                "log_scale": np.log(self.scale),
            }
            scale = {name: jnp.asarray(part, dtype) for name, part in inner.items()}
            warp = jnp.asarray(self.warp, dtype)
            mean = jnp.asarray(self.mean[self.structure.places], dtype)
        return Params(mean, {"scale": scale, "warp": warp})

    @property
    def order(self) -> np.ndarray:
        """Which coordinate of the position stands where."""
        return self.structure.order

    @property
    def log_det(self) -> float:
        """``log det R``."""
        return float(np.sum(np.log(self.scale)) + np.sum(np.log(np.diagonal(self.block))))

    @cached_property
    def _down(self) -> list[sparse.csr_matrix]:
        """The rows of N of every round."""
        structure, blocks = self.structure, []
        for one in structure.rounds():
            begin, end = one.locals.start, one.locals.stop
            starts = structure.starts[begin : end + 1] - structure.starts[begin]
            entries = self.links[one.entries], structure.columns[one.entries], starts
            blocks.append(sparse.csr_matrix(entries, (end - begin, begin)))
        return blocks

    @cached_property
    def _up(self) -> list[sparse.csr_matrix]:
        return [block.T.tocsr() for block in self._down]

    @cached_property
    def sds(self) -> np.ndarray:
        """Marginal sds of q, in the order of the elimination."""
        family = SparsePrecision(elimination=self.structure)
        with_plain = replace(self, warp=np.zeros((len(self.mean), 0)))
        with precision_of(np.float64):
            return np.asarray(family.sd(with_plain.params(np.float64)))[self.order]

    def astype(self, dtype: Any) -> SparseMap:
        """The same map in another precision."""
        names = ("mean", "block", "coupling", "links", "scale", "warp")
        return replace(self, **{name: getattr(self, name).astype(dtype) for name in names})

    def precision(self) -> SparseSymmetric:
        """``(R R')^-1``, on the entries of N and the diagonal."""
        structure, own = self.structure, self.scale**-2
        links = self._links
        whole = (links + sparse.identity(structure.num_locals)).tocsr()
        weighted = whole.T.multiply(own).tocsr()
        product = (weighted @ whole).tocoo()
        below = product.row > product.col
        low = np.zeros(len(structure.rows))
        slots = structure.slots(product.row[below].astype(int), product.col[below].astype(int))
        low[slots] = product.data[below]
        diagonal = own.copy()
        np.add.at(diagonal, structure.columns, own[structure.rows] * self.links**2)
        block = np.empty_like(self.block)
        if len(block):
            inverse = linalg.solve_triangular(self.block, np.eye(len(block)), lower=True)
            block = inverse.T @ inverse + self.coupling.T @ (own[:, None] * self.coupling)
        return SparseSymmetric(structure, block, weighted @ self.coupling, low, diagonal)

    def links_dot(self, vectors: np.ndarray) -> np.ndarray:
        """``N x`` for columns of the locals."""
        products: np.ndarray = self._links @ vectors
        return products

    def with_root(self, root: InverseFactor) -> SparseMap:
        """The map with another R."""
        return replace(
            self, block=root.block, coupling=root.coupling, links=root.links, scale=root.scale
        )

    @cached_property
    def _links(self) -> sparse.csr_matrix:
        structure = self.structure
        shape = (structure.num_locals, structure.num_locals)
        return sparse.csr_matrix((self.links, structure.columns, structure.starts), shape)

    def apply(self, noise: np.ndarray) -> np.ndarray:
        """``R v``, both with a column for every draw."""
        count = self.structure.num_dense
        displacement = np.empty_like(noise)
        top, rest = displacement[:count], displacement[count:]
        np.matmul(self.block, noise[:count], out=top)
        np.multiply(self.scale[:, None], noise[count:], out=rest)
        rest -= self.coupling @ top
        for one, block in zip(self.structure.rounds(), self._down, strict=True):
            if block.nnz:
                rest[one.locals] -= block @ rest[: one.locals.start]
        return displacement

    def transposed(self, vectors: np.ndarray) -> np.ndarray:
        """``R' g``, both with a column for every draw."""
        count = self.structure.num_dense
        product = vectors.copy()
        top, rest = product[:count], product[count:]
        rounds = list(self.structure.rounds())
        for one, block in zip(rounds[::-1], self._up[::-1], strict=True):
            if block.nnz:
                rest[: one.locals.start] -= block @ rest[one.locals]
        top -= self.coupling.T @ rest
        product[:count] = self.block.T @ top
        rest *= self.scale[:, None]
        return product

    def _placed(self, v: np.ndarray) -> np.ndarray:
        """Positions ``mu + R v``."""
        positions = self.apply(np.ascontiguousarray(v.T)) + self.mean[:, None]
        return np.ascontiguousarray(positions[self.structure.places].T)

    def linear_back(self, gradients: np.ndarray) -> np.ndarray:
        """``R' g``: gradients in v for gradients in the positions."""
        return self.transposed(np.ascontiguousarray(gradients.T[self.order])).T

    def matched_to(self, positions: np.ndarray, weight: float) -> SparseMap:
        """The map with mean, dense block and scales of locals moved to those of positions.

        A whole covariance of the noise would not be sparse; the weight of one is of no use here.
        """
        noise, count = self.noise_of(positions), self.structure.num_dense
        draws = len(noise)
        v = self._linear_noise_of(positions).mean(axis=0)
        top = noise[:, :count] - noise[:, :count].mean(axis=0)
        shrinkage = draws / (draws + 2.0 * count)
        covariance = shrinkage * top.T @ top / draws + (1 - shrinkage) * np.eye(count)
        scale = self.scale * noise[:, count:].std(axis=0).astype(self.scale.dtype)
        mean = self.mean + self.apply(v[:, None])[:, 0]
        block = self.block @ np.linalg.cholesky(covariance) if count else self.block
        block = block.astype(self.block.dtype)
        return replace(self, mean=mean.astype(self.mean.dtype), block=block, scale=scale)

    def _linear_noise_of(self, positions: np.ndarray) -> np.ndarray:
        """``v = R^-1 (z - mu)``."""
        count = self.structure.num_dense
        centred = positions.T[self.order] - self.mean[:, None]
        top, rest = centred[:count], centred[count:]
        own = (rest + self.coupling @ top + self._links @ rest) / self.scale[:, None]
        if count:
            top = linalg.solve_triangular(self.block, top, lower=True, check_finite=False)
        return np.concatenate([top, own]).T
