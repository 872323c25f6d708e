r"""The sparse Hessian of a log density, from a few Hessian-vector products.

Columns that share no row can share a product: with a colour for every local coordinate and one for
each coordinate of the dense block, as many products as colours give all entries. Where the zeros
are is found by products, too: coordinates are put into random groups, and a row that a group does
not touch has no entry in any of its columns. A few such partitions leave the entries, and hardly
any others. Products at fresh positions then check what was found; nothing is taken on trust.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from scipy import sparse

from curvi._core.compilation import SizedJit
from curvi._core.run import check_deadline
from curvi.linalg import MOST_DENSE_ROWS, Elimination, SparseSymmetric, eliminate
from curvi.targets import AbstractTarget, Density


@dataclass(frozen=True)
class Probe:
    """How the zeros of a Hessian are found by its products.

    Parameters
    ----------
    spreads : tuple of float
        Around the start, the first where the log density is finite.
    columns : int
        Single columns that show which rows are dense.
    dense_hits : int
        Of these, from which a row belongs to the dense block.
    few, most_dense
        Entries of a column, and their share, above which a Hessian is dense.
    groups, partitions : int
        Random groups of coordinates that are told apart together, and how often.
    most_candidates : int
        Entries that they leave in question.
    most_colours : int
        Products that a Hessian may take.
    checks : int
        Positions at which the pattern is verified.
    products : int
        In one call.
    """

    spreads: tuple[float, ...] = (0.1, 0.01, 1e-4)
    columns: int = 128
    dense_hits: int = 13
    few: int = 16
    most_dense: float = 0.2
    groups: int = 128
    partitions: int = 4
    most_candidates: int = 2**24
    most_colours: int = 96
    checks: int = 3
    products: int = 128


PROBE = Probe()


def _products(
    density: Density,
    rows: PyTree,
    positions: Float[Array, "batch dimension"],
    tangents: Float[Array, "colours dimension"],
) -> Float[Array, "batch colours dimension"]:
    def at(z: Array) -> Array:
        _, along = jax.linearize(jax.grad(lambda x: density.log_prob(x, rows)), z)
        return jax.vmap(along)(tangents)

    return jax.vmap(at)(positions)


_compiled = SizedJit(_products)


def products(
    density: Density, rows: PyTree, positions: np.ndarray, tangents: np.ndarray
) -> np.ndarray:
    """Hessian-vector products of the log density, shape (positions, tangents, dimension)."""
    check_deadline()
    work = 8 * len(positions) * len(tangents) * density.cost.numbers * 20
    given = (jnp.asarray(part.astype(density.dtype)) for part in (positions, tangents))
    return np.asarray(_compiled(work, density, rows, *given))


@dataclass(frozen=True, eq=False)
class Curvature:
    """The Hessian of a log density on the entries of an elimination.

    Parameters
    ----------
    density, rows : Density, pytree
        What is inferred, and all rows of its data.
    structure : Elimination
        The order, and the entries.
    """

    density: Density
    rows: PyTree
    structure: Elimination

    @cached_property
    def colours(self) -> np.ndarray:
        """A colour for every local: no two of a colour have an entry in the same row."""
        structure = self.structure
        size = structure.num_locals
        rows, columns = structure.rows[structure.own], structure.columns[structure.own]
        where = np.concatenate([rows, columns]), np.concatenate([columns, rows])
        ones = sparse.csr_matrix((np.ones(len(where[0]), np.int8), where), (size, size))
        # A chain in the order of its coordinates needs least.
        along = np.argsort(structure.order[structure.num_dense :])
        return colouring(ones + sparse.identity(size, np.int8), along)

    @property
    def num_products(self) -> int:
        """Products that give one Hessian."""
        return int(self.colours.max(initial=-1)) + 1 + self.structure.num_dense

    @cached_property
    def _tangents(self) -> np.ndarray:
        structure = self.structure
        count, colours = structure.num_dense, int(self.colours.max(initial=-1)) + 1
        seeds = np.zeros((colours + count, structure.dimension))
        seeds[self.colours, structure.order[count:]] = 1.0
        seeds[colours + np.arange(count), structure.order[:count]] = 1.0
        return seeds

    def _products(self, positions: np.ndarray, tangents: np.ndarray) -> np.ndarray:
        """Products in one shape for a number of tangents: a single function is compiled for it."""
        short = self._batch(tangents) - len(positions)
        padded = np.concatenate([positions, np.repeat(positions[-1:], short, axis=0)])
        return products(self.density, self.rows, padded, tangents)[: len(positions)]

    @staticmethod
    def _batch(tangents: np.ndarray) -> int:
        return max(1, PROBE.products // max(len(tangents), 1))

    def negative_mean(self, positions: np.ndarray, locals_only: bool = False) -> SparseSymmetric:
        """The average of ``-Hessian`` over positions, one per row.

        With ``locals_only`` the dense block and its columns are left zero, and cost nothing.
        """
        colours = len(self._tangents) - self.structure.num_dense
        tangents = self._tangents[:colours] if locals_only else self._tangents
        total = np.zeros(self._tangents.shape)
        batch = self._batch(tangents)
        for begin in range(0, len(positions), batch):
            products = self._products(positions[begin : begin + batch], tangents)
            total[: len(tangents)] -= products.astype(np.float64).sum(axis=0)
        return SparseSymmetric(self.structure, *self._read(total / len(positions)))

    def _read(self, products: np.ndarray) -> tuple[np.ndarray, ...]:
        """The parts of a matrix from its products with all colours."""
        products = products[:, self.structure.order]
        count = self.structure.num_dense
        colours = len(products) - count
        rest = products[:colours, count:]
        own = self.structure.own
        rows, columns = self.structure.rows[own], self.structure.columns[own]
        low = np.zeros(len(own))
        low[own] = 0.5 * (rest[self.colours[columns], rows] + rest[self.colours[rows], columns])
        diagonal = rest[self.colours, np.arange(self.structure.num_locals)]
        block = products[colours:, :count]
        return 0.5 * (block + block.T), products[colours:, count:].T, low, diagonal

    def verified(self, positions: np.ndarray, rng: np.random.Generator) -> bool:
        """Whether products along dense vectors agree with the sparse Hessian at the positions."""
        precise = float(np.finfo(self.density.dtype).eps) ** 0.5
        order, places = self.structure.order, self.structure.places
        for position in positions:
            vectors = np.zeros_like(self._tangents)
            vectors[0] = rng.normal(size=self.structure.dimension)
            exact = self._products(position[None], vectors)[0, 0]
            matrix = self.negative_mean(position[None])
            claimed = -matrix.dot(vectors[0, order, None])[places, 0]
            size = matrix.magnitude().dot(np.abs(vectors[0, order, None]))[places, 0]
            wrong = ~(np.abs(exact - claimed) <= 10 * precise * np.maximum(size, np.abs(exact)))
            if wrong.any():
                return False
        return True


def colouring(pattern: sparse.csr_matrix, along: np.ndarray) -> np.ndarray:
    """Greedy colours for columns, different for any two with an entry in the same row.

    Parameters
    ----------
    pattern : sparse matrix
        Where the entries are.
    along : array of int
        The columns in the order in which they choose.
    """
    wide = pattern.astype(np.int32)  # products count common rows, which may be many
    near = (wide.T @ wide).tocsr()
    begins, neighbours = near.indptr.tolist(), near.indices.tolist()
    colours = [-1] * pattern.shape[1]
    for column in along.tolist():
        taken = {colours[other] for other in neighbours[begins[column] : begins[column + 1]]}
        colour = 0
        while colour in taken:
            colour += 1
        colours[column] = colour
    return np.asarray(colours, int)


def find_curvature(target: AbstractTarget, rng: np.random.Generator) -> Curvature | None:
    """The sparse Hessian of a target; None where it is not sparse, or not the same everywhere.

    Parameters
    ----------
    target : AbstractTarget
        What is inferred.
    rng : numpy Generator
        Chooses positions and groups.
    """
    position = _finite_place(target, rng)
    if position is None:
        return None
    pattern = _found_pattern(target, position, rng)
    if pattern is None:
        return None
    structure = eliminate(pattern, _dense_rows(pattern))
    if structure is None:
        return None
    curvature = Curvature(target.density, target.rows, structure)
    if int(curvature.colours.max(initial=-1)) + 1 > PROBE.most_colours:
        return None
    fresh = [_finite_place(target, rng) for _ in range(PROBE.checks)]
    places = np.stack([position if one is None else one for one in fresh])
    return curvature if curvature.verified(places, rng) else None


def _finite_place(target: AbstractTarget, rng: np.random.Generator) -> np.ndarray | None:
    """A position near the start at which no two coordinates are equal, and the Hessian finite."""
    start = np.asarray(target.start, np.float64)
    tangents = np.zeros((PROBE.columns, len(start)))
    tangents[0] = rng.normal(size=len(start))
    for spread in PROBE.spreads:
        position = start + spread * rng.normal(size=len(start))
        if np.isfinite(products(target.density, target.rows, position[None], tangents)[0, 0]).all():
            return position
    return None


def _found_pattern(
    target: AbstractTarget, position: np.ndarray, rng: np.random.Generator
) -> sparse.csr_matrix | None:
    """Where the Hessian is not zero; None where that is nearly everywhere."""
    dimension = len(position)
    count = min(PROBE.columns, dimension)
    chosen = rng.permutation(dimension)[:count]
    tangents = np.zeros((PROBE.columns, dimension))
    tangents[np.arange(count), chosen] = 1.0
    columns = products(target.density, target.rows, position[None], tangents)[0, :count] != 0
    if (
        np.median(columns.sum(axis=1))
        > max(PROBE.few, PROBE.most_dense * dimension) + MOST_DENSE_ROWS
    ):
        return None
    hits = columns.sum(axis=0)
    dense = np.flatnonzero(hits >= min(PROBE.dense_hits, count))
    if len(dense) > MOST_DENSE_ROWS:
        return None
    inside = np.ones(dimension, bool)
    inside[dense] = False
    touched, groups = [], []
    for _ in range(PROBE.partitions):
        group = rng.integers(PROBE.groups, size=dimension)
        weights = np.where(inside, rng.uniform(0.5, 1.5, dimension), 0.0)
        tangents = np.zeros((PROBE.groups, dimension))
        tangents[group, np.arange(dimension)] = weights * rng.choice([-1.0, 1.0], dimension)
        touched.append(products(target.density, target.rows, position[None], tangents)[0].T != 0)
        groups.append(group)
    local = _decoded(np.flatnonzero(inside), touched, groups)
    if local is None:
        return None
    both = local.multiply(local.T)
    rows = sparse.lil_matrix((dimension, dimension), dtype=np.int8)
    rows[dense] = 1
    joined = both + rows.tocsr() + rows.T.tocsr() + sparse.identity(dimension, np.int8)
    return sparse.csr_matrix(joined != 0, dtype=np.int8)


def _decoded(
    inside: np.ndarray, touched: list[np.ndarray], groups: list[np.ndarray]
) -> sparse.csr_matrix | None:
    """Rows and columns whose groups touch in every partition."""
    dimension = len(groups[0])
    ones = np.ones(len(inside), np.int8)
    members = sparse.csr_matrix((ones, (groups[0][inside], inside)), (PROBE.groups, dimension))
    sizes = np.bincount(groups[0][inside], minlength=PROBE.groups)
    expected = touched[0] @ sizes  # candidates of every row
    expected[np.setdiff1d(np.arange(dimension), inside)] = 0
    kept_rows, kept_columns = [np.empty(0, int)], [np.empty(0, int)]
    blocks = np.searchsorted(
        np.cumsum(expected), np.arange(0, expected.sum() + 1, PROBE.most_candidates)
    )
    for begin, end in zip(blocks, [*blocks[1:], dimension], strict=True):
        index = np.arange(begin, end)[expected[begin:end] > 0]
        hits = (sparse.csr_matrix(touched[0][index], dtype=np.int8) @ members).tocoo()
        rows, columns = index[hits.row], hits.col
        for touches, group in zip(touched[1:], groups[1:], strict=True):
            good = touches[rows, group[columns]]
            rows, columns = rows[good], columns[good]
        kept_rows.append(rows)
        kept_columns.append(columns)
        if sum(map(len, kept_rows)) > PROBE.most_candidates:
            return None
    where = np.concatenate(kept_rows), np.concatenate(kept_columns)
    ones = np.ones(len(where[0]), np.int8)
    return sparse.csr_matrix((ones, where), (dimension, dimension))


def _dense_rows(pattern: sparse.csr_matrix) -> np.ndarray:
    """The rows whose removal makes a Hessian cheapest: each costs a product, and so does a colour.

    A row with k entries needs at least k colours as long as it is there.
    """
    degree = np.diff(pattern.indptr)
    order = np.argsort(-degree, kind="stable")
    removed = np.arange(min(len(order), MOST_DENSE_ROWS) + 1)
    left = degree[order][np.minimum(removed, len(order) - 1)] - removed
    best = int(np.argmin(removed + np.maximum(left, 1)))
    return np.sort(order[:best])


def work_of(target: AbstractTarget) -> float:
    """Numbers that looking for a structure computes."""
    tried: Any = (PROBE.partitions + 2) * PROBE.products
    return float(tried * target.density.cost.of_product().numbers)
