"""What the engine sees of a target: programs of a flat position, without the rows of data.

A density is a pytree: the arrays that the user's functions read are its leaves, and the structure
of their programs is the rest. Compiled code takes it as an argument, so that a second fit with the
same functions and shapes compiles nothing, whatever data they read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from curvi._core import validation
from curvi._core.compilation import Cost
from curvi._core.errors import InputError
from curvi._core.programs import Program, trace
from curvi._core.trees import Unravel, stable_sum
from curvi.io import Stream


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Density:
    r"""A log density of a flat position, with or without a likelihood over rows of data.

    .. math:: \log p(z, y) = \frac NB \sum_{b=1}^B \log p(y_b \mid z) + \log p(z)

    A density without rows consists of the last term alone; ``num_rows`` is then 0.

    Parameters
    ----------
    prior : Program
        The log prior of a flat position; without rows, the whole log density.
    unravel : Unravel
        From a flat position to the pytree that the user's functions take.
    dtype : dtype
        Precision of the position and of every value.
    num_rows : int, optional
        N, the number of rows that a batch stands for; 0 without rows.
    likelihoods : dict, optional
        The log likelihood of each row, as a program for each number of rows that is met.
    block_rows : int, optional
        Rows that are evaluated at once, where they come in blocks; 0 for all of them.
    """

    prior: Program
    unravel: Unravel
    dtype: Any
    num_rows: int = 0
    likelihoods: dict[int, Program] | None = None
    block_rows: int = 0

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The programs, and the rest."""
        rest = (self.unravel, self.dtype, self.num_rows, self.block_rows)
        return (self.prior, self.likelihoods), rest

    @classmethod
    def tree_unflatten(cls, rest: tuple[Any, ...], programs: tuple[Any, ...]) -> Density:
        """The density with other arrays, or with tracers in their place."""
        prior, likelihoods = programs
        unravel, dtype, num_rows, block_rows = rest
        return cls(prior, unravel, dtype, num_rows, likelihoods, block_rows)

    def log_prior_prob(self, z: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log prior of a flat position; without rows, its whole log density."""
        value: Array = self.prior(z)
        return value

    def log_likelihood_rows(
        self, z: Float[Array, " dimension"], rows: PyTree
    ) -> Float[Array, " rows"]:
        """Log likelihood of each row at a flat position.

        Raises
        ------
        InputError
            If there are no rows, or if the likelihood was not traced for so many.
        """
        if self.likelihoods is None:
            raise InputError("a Target has no rows; give a DataTarget")
        count = _count(rows)
        if count not in self.likelihoods:
            known = ", ".join(map(str, sorted(self.likelihoods)))
            raise InputError(
                f"the likelihood was traced for batches of {known} row(s), not of {count}; use "
                f"target.with_batches([{count}]).density"
            )
        values: Array = self.likelihoods[count](z, rows)
        return values

    def log_prob(
        self, z: Float[Array, " dimension"], rows: PyTree | None = None
    ) -> Float[Array, ""]:
        """Log joint density, the rows given standing for all ``num_rows``."""
        if not self.num_rows:
            return self.log_prior_prob(z)
        if isinstance(rows, Stream):
            return streamed_sum(z, self, rows) + self.log_prior_prob(z)
        log_likelihood = self.log_likelihood_rows(z, rows)
        weight = self.num_rows / min(log_likelihood.shape[0], self.num_rows)
        return weight * stable_sum(self.counted(log_likelihood)) + self.log_prior_prob(z)

    def counted(self, values: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """Values of rows; zero for those that only fill up the shards of a mesh."""
        if values.shape[0] <= self.num_rows:
            return values
        return jnp.where(jnp.arange(values.shape[0]) < self.num_rows, values, 0)

    @property
    def cost(self) -> Cost:
        """What one evaluation on all rows costs."""
        prior, rows = self.prior.structure.cost, self._at_once
        blocks = -(-self.num_rows // self.block_rows) if self.block_rows else 1
        numbers = prior.numbers + blocks * rows.numbers
        return Cost(numbers, prior.operations + blocks * rows.operations)

    @property
    def numbers_at_once(self) -> float:
        """What one evaluation keeps in memory: that of a block, where rows come in blocks."""
        return float(self.prior.structure.cost.numbers + self._at_once.numbers)

    @property
    def _at_once(self) -> Cost:
        """Of all rows, or of a block of them."""
        if self.likelihoods is None:
            return Cost(0.0, 0.0)
        return self.likelihoods[self.block_rows or self.num_rows].structure.cost


@jax.custom_jvp
def streamed_sum(z: Float[Array, " dimension"], density: Density, rows: Stream) -> Float[Array, ""]:
    """The log likelihood of all rows, a block at a time.

    Its derivative comes from the same pass, and that of its gradient from one more: a reverse pass
    would need the blocks in reverse, or all of them at once.
    """
    return _over_blocks(z, density, rows, lambda value: value, jnp.zeros((), density.dtype))


@streamed_sum.defjvp
def _streamed_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    z, density, rows = primals
    zero = jnp.zeros((), density.dtype), jnp.zeros_like(z)
    value, gradient = _over_blocks(z, density, rows, jax.value_and_grad, zero)
    return value, gradient @ tangents[0]


def _over_blocks(
    z: Array, density: Density, rows: Stream, transformed: Callable[..., Any], zero: Any
) -> Any:
    @jax.checkpoint  # what a block gives is computed again rather than kept for all of them
    def body(total: Any, number: Array) -> tuple[Any, None]:
        block, counts = rows.block(number), rows.counted(number)

        def value(at: Array) -> Array:
            values = density.log_likelihood_rows(at, block)
            return stable_sum(jnp.where(counts, values, 0))

        return jax.tree.map(jnp.add, total, transformed(value)(z)), None

    return jax.lax.scan(body, zero, jnp.arange(rows.num_blocks, dtype=jnp.int32))[0]


def _count(rows: PyTree) -> int:
    return int(jax.tree.leaves(rows)[0].shape[0])


def traced_prior(
    log_prior: Callable[[PyTree], Any], name: str, like: Array, unravel: Unravel
) -> Program:
    """The program of a log prior, or of a whole log density.

    Raises
    ------
    InputError
        If the user's function cannot be traced, or returns anything but a real scalar.
    """

    def prior(z: Array) -> Array:
        value = validation.user_call(log_prior, name, unravel(z))
        validation.require_float_of_shape(value, (), name, "one scalar")
        return jnp.asarray(value, like.dtype)

    return trace(prior, like)


def traced_likelihoods(
    log_likelihood: Callable[[PyTree, PyTree], Any],
    like: Array,
    unravel: Unravel,
    rows: PyTree,
    counts: Iterable[int],
) -> dict[int, Program]:
    """The programs of a log likelihood for these numbers of rows.

    Raises
    ------
    InputError
        If the user's function cannot be traced, or does not return one real number per row.
    """

    def likelihood(z: Array, some: PyTree) -> Array:
        count = _count(some)
        value = validation.user_call(log_likelihood, "log_likelihood", unravel(z), some)
        name = f"log_likelihood on {count} row(s)"
        validation.require_float_of_shape(value, (count,), name, "one value per row")
        return jnp.asarray(value, like.dtype)

    def shapes(count: int) -> PyTree:
        if isinstance(rows, Stream):
            return rows.shape_of(count)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), rows
        )

    return {count: trace(likelihood, like, shapes(count)) for count in sorted(set(counts))}
