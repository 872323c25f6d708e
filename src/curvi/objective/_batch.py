"""A log density and its gradient at many positions, on the host, behind one compiled function."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from curvi._core.compilation import SizedJit
from curvi._core.run import check_deadline
from curvi.targets import AbstractTarget, Density


@dataclass(frozen=True)
class BatchSizes:
    """How many positions go into one call.

    Parameters
    ----------
    smallest, usual, largest : int
        Where they are expensive, mostly, and where a call costs more than what it computes.
    cheap : float
        Numbers of one call up to which that is so.
    numbers : float
        That one call computes at most, as far as fewer positions allow it.
    calls : int
        By which the work is judged that a compilation is worth.
    """

    smallest: int = 8
    usual: int = 128
    largest: int = 256
    cheap: float = 3e5
    numbers: float = 2e7
    calls: int = 6


def _values_and_gradients(
    density: Density, rows: PyTree, positions: Float[Array, "batch dimension"]
) -> tuple[Float[Array, " batch"], Float[Array, "batch dimension"]]:
    return jax.vmap(jax.value_and_grad(lambda z: density.log_prob(z, rows)))(positions)


_compiled = SizedJit(_values_and_gradients)


@dataclass(eq=False)
class BatchedDensity:
    """log p and its gradient at the rows of a matrix, in double precision on the host.

    Positions are evaluated in batches of one size, so that a single function is compiled whatever
    their number. Everything that needs nothing but values and gradients can share it: natural
    gradients, the search for a start, importance ratios and HMC.

    Parameters
    ----------
    density : Density
        What is inferred.
    rows : pytree or None
        All rows of its data.
    sizes : BatchSizes
        Of the batches.
    evaluations : int
        Positions that have been evaluated.
    """

    density: Density
    rows: PyTree = None
    sizes: BatchSizes = BatchSizes()
    evaluations: int = field(default=0, init=False)

    @classmethod
    def of(cls, target: AbstractTarget) -> BatchedDensity:
        """That of a target with all its rows."""
        return cls(target.density, target.rows)

    @property
    def batch(self) -> int:
        """Positions in one call."""
        sizes, numbers = self.sizes, max(self.density.numbers_at_once, 1.0)
        if sizes.largest * numbers <= sizes.cheap:
            return sizes.largest
        size = 2 ** int(np.log2(max(sizes.numbers / numbers, 1.0)))
        return int(np.clip(size, sizes.smallest, sizes.usual))

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log p, shape (n,), and its gradient, shape (n, dimension).

        Both are NaN where the log density is not finite; nothing is raised.
        """
        count, batch = len(positions), self.batch
        work = self.sizes.calls * batch * self.density.cost.numbers
        values, gradients = np.empty(count), np.empty(positions.shape, positions.dtype)
        for begin in range(0, count, batch):
            check_deadline()
            with np.errstate(over="ignore"):  # q widens beyond all numbers where p is improper
                part = positions[begin : begin + batch].astype(self.density.dtype)
            padded = np.concatenate([part, np.repeat(part[-1:], batch - len(part), axis=0)])
            # JAX moves an array of NumPy itself, in half the time of an explicit device_put.
            outputs = _compiled(work, self.density, self.rows, padded)
            values[begin : begin + batch] = np.asarray(outputs[0])[: len(part)]
            gradients[begin : begin + batch] = np.asarray(outputs[1])[: len(part)]
        self.evaluations += count
        return values, gradients
