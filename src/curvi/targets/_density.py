"""What the engine sees of a target: functions of a flat position, without the data.

A density compares and hashes by value, what its functions read from outside included, so it can
be a static argument of a compiled loop: a second fit with the same functions and shapes compiles
nothing. The user's functions are wrapped in ``jax.jit`` and therefore traced once per shape,
however often they are evaluated, differentiated or mapped over draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.fingerprint import fingerprint
from curvi._core.trees import Unravel, stable_sum


@dataclass(frozen=True)
class Density:
    r"""A log density of a flat position, with or without a likelihood over rows of data.

    .. math:: \log p(z, y) = \frac NB \sum_{b=1}^B \log p(y_b \mid z) + \log p(z)

    A density without rows consists of the last term alone; ``num_rows`` is then 0.

    Parameters
    ----------
    log_prior : callable
        ``log_prior(position) -> scalar``; without rows, the whole log density.
    unravel : Unravel
        From a flat position to the pytree that the functions take.
    dtype : dtype
        Precision of the position and of every value.
    log_likelihood : callable, optional
        ``log_likelihood(position, rows) -> (num_rows,)``.
    num_rows : int, optional
        N, the number of rows that a batch stands for; 0 without rows.
    """

    log_prior: Callable[[PyTree], Float[Array, ""]]
    unravel: Unravel
    dtype: Any
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]] | None = None
    num_rows: int = 0
    reads: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Record what the functions read from outside."""
        reads = (fingerprint(self.log_prior), fingerprint(self.log_likelihood))
        object.__setattr__(self, "reads", reads)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the functions; what they read is a fact about the process."""
        options = (self.log_prior, self.unravel, self.dtype, self.log_likelihood, self.num_rows)
        return Density, options

    @partial(jax.jit, static_argnums=0)
    def log_prior_prob(self, z: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log prior of a flat position; without rows, its whole log density.

        Raises
        ------
        InputError
            If the user's function cannot be traced, or returns anything but a real scalar.
        """
        name = "log_prior" if self.num_rows else "log_density"
        value = validation.user_call(self.log_prior, name, self.unravel(z))
        validation.require_float_of_shape(value, (), name, "one scalar")
        return jnp.asarray(value, self.dtype)

    @partial(jax.jit, static_argnums=0)
    def log_likelihood_rows(
        self, z: Float[Array, " dimension"], rows: PyTree
    ) -> Float[Array, " rows"]:
        """Log likelihood of each row at a flat position.

        Raises
        ------
        InputError
            If there are no rows, or if the user's function cannot be traced or does not return
            one real number per row.
        """
        if self.log_likelihood is None:
            raise InputError("a Target has no rows; give a DataTarget")
        count = jax.tree.leaves(rows)[0].shape[0]
        value = validation.user_call(self.log_likelihood, "log_likelihood", self.unravel(z), rows)
        name = f"log_likelihood on {count} row(s)"
        validation.require_float_of_shape(value, (count,), name, "one value per row")
        return jnp.asarray(value, self.dtype)

    def log_prob(
        self, z: Float[Array, " dimension"], rows: PyTree | None = None
    ) -> Float[Array, ""]:
        """Log joint density, the rows given standing for all ``num_rows``."""
        if not self.num_rows:
            return self.log_prior_prob(z)
        log_likelihood = self.log_likelihood_rows(z, rows)
        weight = self.num_rows / log_likelihood.shape[0]
        return weight * stable_sum(log_likelihood) + self.log_prior_prob(z)
