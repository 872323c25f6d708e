r"""The exact bound of a dense table with a diagonal R, with its dense Hessian, on the host.

In :math:`(\mu, s = \sigma^2)` the expected log likelihood has the Hessian blocks
:math:`X' c_{mm} X`, :math:`X' c_{mv} X^2` and :math:`{X^2}' c_{vv} X^2` by equations (1)-(3):
three weighted Gram matrices.

NumPy releases the interpreter's lock inside its loops and products, so plain threads keep all
cores busy on blocks of rows that fit into their caches. Blocks are gathered in a fixed number of
groups and added in a fixed order: the number of threads changes the time, never the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from curvi._core.threads import available_threads, one_blas_thread
from curvi.glm._diagonal_bound import DiagonalBound, Energy
from curvi.glm._rows import Tables
from curvi.glm._sparse_rows import SparseTable
from curvi.likelihoods import Likelihood, RowTerms


@dataclass(frozen=True)
class DensePasses:
    """How passes over the rows of a dense table are cut, and how many rows its first steps see."""

    coarse_rows: int = 4000  # on which the first steps towards a solution are taken, at least
    # Hessians of a coarse stage take a share of the rows: each k-th, k at most LARGEST_STRIDE, and
    # at least so many per parameter.
    rows_per_parameter: int = 32
    largest_stride: int = 4
    # nats that a start on few rows may leave: the optimum of all rows is further away
    rough_gain: float = 0.1
    cached_rows: int = 2**20  # rows whose terms are kept from one pass to the next
    rows_of_part: int = 2**18  # rows whose terms are held together
    rows_at_once: int = 2048  # rows of a product of matrices whose factors stay in the cache
    groups: int = 16  # of blocks, whatever the number of threads


PASSES = DensePasses()

Terms = list[np.ndarray]


def summed(
    function: Callable[[Any], Terms],
    blocks: Sequence[Any],
    threads: int,
    *,
    policy: DensePasses = PASSES,
) -> Terms:
    """The sum of the terms of all blocks."""
    size = max(1, -(-len(blocks) // policy.groups))
    groups = [blocks[start : start + size] for start in range(0, len(blocks), size)]

    def of_group(group: Sequence[Any]) -> Terms:
        with np.errstate(all="ignore"):  # the caller checks that the sum is finite
            return added(function(block) for block in group)

    # One thread of the BLAS for each of ours: its own would wait for each other.
    with one_blas_thread():
        if threads == 1 or len(groups) == 1:
            return added(of_group(group) for group in groups)
        with ThreadPoolExecutor(threads) as pool:
            return added(pool.map(of_group, groups))


def added(parts: Iterable[Terms]) -> Terms:
    """Term by term, in order, without keeping the parts."""
    total: Terms = []
    for part in parts:
        if not total:
            total = [np.array(term) for term in part]
            continue
        for place, term in enumerate(part):
            total[place] += term
    return total


@dataclass(frozen=True)
class DenseBound(DiagonalBound):
    """The negative ELBO of one linear predictor.

    ``noise`` is the noise variance of a Gaussian likelihood where it is positive; otherwise it
    is maximised in the bound, but not below ``-noise``. With ``single`` the Hessian, and it
    alone, is made of float32 products: good enough for steps, not for the last digits. So is a
    Hessian of each ``every``-th row. Sums over rows run on ``threads`` threads. With four times
    ``coarse_rows`` rows or more the first steps are taken on about so many.
    """

    likelihood: Likelihood
    tables: Tables
    noise: float = 1.0
    threads: int = field(default_factory=available_threads)
    every: int = 1
    coarse_rows: int = PASSES.coarse_rows

    @property
    def work(self) -> float:
        """Multiplications of one Hessian, roughly."""
        if isinstance(self.tables, SparseTable):
            return self.tables.hessian_work
        return 3.0 * self.tables.num_rows * self.precision.shape[0] ** 2

    def coarser(self) -> list[DiagonalBound]:
        """A share of the rows, then all rows with single-precision Hessians.

        Under a relevance prior few rows would switch off too much.
        """
        every = self.tables.num_rows // self.coarse_rows
        if every == 0:
            return super().coarser()
        finer = self.finer()
        stages = super(DenseBound, self._sparing(*finer)).coarser()
        if every >= 4 and not self.relevant.any():
            few = replace(self, single=bool(finer), tables=self.tables.thinned(every))
            stages.append(replace(few, has_all_rows=False, rough=PASSES.rough_gain))
        return [*stages, *finer]

    def finer(self) -> list[DenseBound]:
        """All rows with single-precision Hessians, of a long table; sparse ones are exact."""
        exact = isinstance(self.tables, SparseTable) or self.tables.num_rows < self.coarse_rows
        return [] if exact else [replace(self, single=True)]

    def _sparing(self, single: DenseBound | None = None) -> DenseBound:
        """With Hessians of a share of the rows, where these are dense."""
        if single is None:
            return self
        share = self.tables.num_rows // (PASSES.rows_per_parameter * 2 * self.precision.shape[0])
        return replace(single, every=min(max(share, 1), PASSES.largest_stride))

    def energy(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """Minus the expected log likelihood."""
        nothing = np.zeros(0)
        return self._profiled(Energy(self._unit_energy(mu, sd), nothing, nothing)).value

    def energy_first_order(self, mu: np.ndarray, sd: np.ndarray) -> Energy:
        """The same with its slopes."""
        value, by_mean, by_variance = self._over_rows(
            lambda table: self._slopes(table, self._terms(table, mu, sd))
        )
        return self._profiled(Energy(float(value), by_mean, by_variance))

    def energy_second_order(self, mu: np.ndarray, sd: np.ndarray) -> Energy:
        """The same with its derivatives in (mu, s): three Gram matrices, or one."""
        unit = added(
            self._parts(part, mu, sd)
            for table in self.tables
            for part in table.blocks(PASSES.rows_of_part)
        )
        value, by_mean, by_variance, *grams = unit
        return self._profiled(Energy(float(value), by_mean, by_variance, *grams))  # type: ignore[arg-type]

    def noise_variance(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """The noise variance in use."""
        if not self.likelihood.conjugate or self.noise > 0:
            return self.noise
        return max(2 * self._unit_energy(mu, sd) / self._total, -self.noise)

    def _unit_energy(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """The energy, of unit noise where there is noise."""

        def of_rows(table: Any) -> Terms:
            return [np.asarray(-(table.weight @ self._terms(table, mu, sd).value))]

        return float(self._over_rows(of_rows)[0])

    def _over_rows(self, function: Callable[[Any], Terms]) -> Terms:
        """The sum of the terms of all rows, block by block."""
        return added(
            function(part) for table in self.tables for part in table.blocks(PASSES.rows_at_once)
        )

    @cached_property
    def _total(self) -> float:
        return float(sum(table.weight.sum(dtype=np.float64) for table in self.tables))

    def _terms(self, table: Any, mu: np.ndarray, sd: np.ndarray) -> RowTerms:
        """Terms of some rows, of unit noise where there is noise.

        Those of the last parameters are kept: an accepted step needs its slopes after its value.
        """
        params, key = np.concatenate([mu, sd]), (self.likelihood, table.first)
        last, terms = self._cache.get(key, (None, None))
        if last is not None and np.array_equal(last, params):
            return terms
        mean, variance = table.predictor(mu, sd**2)
        terms = self.likelihood.row_terms(mean, variance, table.y)
        self._cache[key] = (params, terms)
        return terms

    @property
    def _cache(self) -> dict[Any, Any]:
        """Where terms are kept; nowhere for rows that are many or come in a stream."""
        kept = self.tables.cache if self.tables.num_rows <= PASSES.cached_rows else None
        return {} if kept is None else kept

    def _parts(self, table: Any, mu: np.ndarray, sd: np.ndarray) -> Terms:
        """Value, slopes and Hessian blocks of some rows; of unit noise where there is noise.

        Only the Gram matrices are shared among threads: their products are long enough for it,
        the many short operations of the terms would wait for each other.
        """
        blocks = table.blocks(PASSES.rows_at_once)
        terms = [self._terms(block, mu, sd) for block in blocks]
        slopes = added(map(self._slopes, blocks, terms))
        pairs = list(zip(blocks, terms, strict=True))
        return [*slopes, *summed(lambda pair: self._curvature(*pair), pairs, self.threads)]

    def _curvature(self, table: Any, terms: RowTerms) -> Terms:
        """Hessian blocks of some rows."""
        weight = table.weight.astype(np.float64)
        second = (term for term in terms[3:] if term is not None)
        weights = [-(weight * term)[:: self.every] for term in second]
        rows = table if self.every == 1 else table.thinned(self.every)
        grams = rows.grams(weights, single=self.single)
        return [self.every * gram for gram in grams] if self.every > 1 else grams

    def _slopes(self, table: Any, terms: RowTerms) -> Terms:
        """Value and slopes of some rows."""
        weight = table.weight.astype(np.float64)
        value = np.asarray(-(weight @ terms.value))
        return [value, *table.pull(weight * terms.by_mean, weight * terms.by_variance)]

    def _profiled(self, energy: Energy) -> Energy:
        r"""With the noise of a Gaussian likelihood put in, or maximised.

        With :math:`Q = \sum_i w_i((y_i - m_i)^2 + v_i)`, half of which is the energy of unit
        noise, the profile is :math:`\tfrac W2 \log Q`, whose Hessian is
        :math:`\tfrac W2 (Q''/Q - Q'Q'^\top/Q^2)`: free noise adds ``-2 / W`` times the outer
        product of the gradient.
        """
        if not self.likelihood.conjugate:
            return energy
        best = 2 * energy.value / self._total
        free = self.noise <= 0 and best > -self.noise
        noise = best if free else abs(self.noise)
        return Energy(
            energy.value / noise + 0.5 * self._total * float(np.log(2 * np.pi * noise)),
            energy.by_mean / noise,
            energy.by_variance / noise,
            None if energy.mean_mean is None else energy.mean_mean / noise,
            rank_one=-2 / self._total if free else 0.0,
        )
