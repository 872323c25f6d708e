"""The protocol of symmetric linear maps on pytrees, and the two plain kinds.

A map is made inside one trace (inside ``jit``), holds what it needs as closed-over arrays, and is
used in the same trace. It is not a pytree and does not cross a ``jit`` boundary.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from curvi._core.errors import InputError
from curvi.linalg import _trees

PyTree = Any

# Columns computed at once by ``dense``: enough to use the matrix units, few enough that the
# activations of a network do not have to fit in memory D times.
_COLUMNS_AT_ONCE = 64


class Definiteness(enum.Enum):
    """What is known about the signs of the eigenvalues, without computing any."""

    POSITIVE = "all eigenvalues are positive"
    POSITIVE_SEMI = "no eigenvalue is negative"
    UNKNOWN = "eigenvalues of either sign are possible"


class LinearMap(abc.ABC):
    """A symmetric linear map v -> A v on the pytrees that look like ``example``.

    Attributes
    ----------
    example : pytree
        Shapes and dtypes of the vectors that the map takes and returns.
    definiteness : Definiteness
        What is known about the eigenvalues of A.
    """

    example: PyTree
    definiteness: Definiteness

    @abc.abstractmethod
    def apply(self, vector: PyTree) -> PyTree:
        """The product A v."""

    def __call__(self, vector: PyTree) -> PyTree:
        """The product A v."""
        return self.apply(vector)

    def dense(self) -> jax.Array:
        """The D x D matrix, rows and columns in the order of ``ravel_pytree``.

        Costs D products and D^2 numbers: for tests and small problems.
        """
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.example)
        flat, unravel = ravel_pytree(zeros)

        def column(basis_vector: jax.Array) -> jax.Array:
            return ravel_pytree(self.apply(unravel(basis_vector)))[0]

        identity = jnp.eye(flat.size, dtype=flat.dtype)
        return jax.lax.map(column, identity, batch_size=_COLUMNS_AT_ONCE).T


@dataclass(frozen=True, eq=False)
class FunctionMap(LinearMap):
    """A linear map given by its product.

    Parameters
    ----------
    product : callable
        ``product(vector) -> vector``; linear and symmetric (both are trusted, not checked).
    example : pytree
        Anything with the shapes and dtypes of a vector.
    definiteness : Definiteness
        What is known about the eigenvalues.
    """

    product: Callable[[PyTree], PyTree]
    example: PyTree
    definiteness: Definiteness = Definiteness.UNKNOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "example", _trees.shapes(self.example))

    def apply(self, vector: PyTree) -> PyTree:
        """The product A v."""
        return self.product(vector)


@dataclass(frozen=True, eq=False)
class DenseMap(LinearMap):
    """A symmetric D x D matrix acting on pytrees in the order of ``ravel_pytree``.

    Raises
    ------
    InputError
        If the matrix is not D x D for the D entries of ``example``.
    """

    matrix: ArrayLike
    example: PyTree
    definiteness: Definiteness = Definiteness.UNKNOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "example", _trees.shapes(self.example))
        dimension = _trees.size(self.example)
        if jnp.shape(self.matrix) != (dimension, dimension):
            raise InputError(
                f"DenseMap matrix has shape {jnp.shape(self.matrix)} but the example has "
                f"{dimension} entries; give a matrix of shape ({dimension}, {dimension})"
            )

    def apply(self, vector: PyTree) -> PyTree:
        """The product A v."""
        flat, unravel = ravel_pytree(vector)
        return unravel(jnp.matmul(self.matrix, flat, precision=jax.lax.Precision.HIGHEST))

    def dense(self) -> jax.Array:
        """The matrix itself."""
        return jnp.asarray(self.matrix)
