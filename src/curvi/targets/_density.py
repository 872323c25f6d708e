"""What the engine sees of a target: functions of a flat position, without the data.

A density compares and hashes by value, what its functions read from outside included, so it can
be a static argument of a compiled loop: a second fit with the same functions and shapes compiles
nothing. The user's functions are
wrapped in ``jax.jit`` and therefore traced once per shape, however often they are evaluated,
differentiated or mapped over draws.
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
from curvi._core.trees import Unravel, stable_sum


@dataclass(frozen=True)
class Density:
    """A log density of a flat position."""

    log_density: Callable[[PyTree], Float[Array, ""]]
    unravel: Unravel
    dtype: Any
    reads: tuple[Any, ...] = field(repr=False)

    @partial(jax.jit, static_argnums=0)
    def log_prob(self, z: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log density of a flat position."""
        value = validation.user_call(self.log_density, "log_density", self.unravel(z))
        validation.require_float_of_shape(value, (), "log_density", "one scalar")
        return jnp.asarray(value, self.dtype)


@dataclass(frozen=True)
class RowDensity:
    """A likelihood over rows and a prior, of a flat position; the rows are passed in."""

    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]]
    log_prior: Callable[[PyTree], Float[Array, ""]]
    unravel: Unravel
    dtype: Any
    num_rows: int
    reads: tuple[Any, ...] = field(repr=False)

    @partial(jax.jit, static_argnums=0)
    def log_prior_prob(self, z: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log prior of a flat position."""
        value = validation.user_call(self.log_prior, "log_prior", self.unravel(z))
        validation.require_float_of_shape(value, (), "log_prior", "one scalar")
        return jnp.asarray(value, self.dtype)

    @partial(jax.jit, static_argnums=0)
    def log_likelihood_rows(
        self, z: Float[Array, " dimension"], rows: PyTree
    ) -> Float[Array, " rows"]:
        """Log likelihood of each row at a flat position."""
        count = jax.tree.leaves(rows)[0].shape[0]
        value = validation.user_call(self.log_likelihood, "log_likelihood", self.unravel(z), rows)
        name = f"log_likelihood on {count} row(s)"
        validation.require_float_of_shape(value, (count,), name, "one value per row")
        return jnp.asarray(value, self.dtype)

    def log_prob(self, z: Float[Array, " dimension"], rows: PyTree) -> Float[Array, ""]:
        """Log joint density, the rows given standing for all ``num_rows``."""
        log_likelihood = self.log_likelihood_rows(z, rows)
        weight = self.num_rows / log_likelihood.shape[0]
        return weight * stable_sum(log_likelihood) + self.log_prior_prob(z)
