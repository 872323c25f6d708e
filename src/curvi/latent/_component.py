r"""What a part of a latent Gaussian model gives: columns, a precision, hyperparameters, labels.

The effects :math:`u` of a component are Gaussian with precision :math:`Q(\theta)`, and the rows of
the data see them as :math:`A u`. A model is a sum of components (see `curvi.latent._assembly`).
"""

from __future__ import annotations

import abc
import copy
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

Natural = dict[str, np.ndarray]


class Precision(NamedTuple):
    """A block of Q(theta) at several theta side by side.

    Attributes
    ----------
    values : array, shape (points, entries)
        The entries of the pattern, lower triangle.
    log_det : array, shape (points,)
        Log determinant; of the space that the prior or the constraints leave, where Q is singular.
    """

    values: np.ndarray
    log_det: np.ndarray


class Component(abc.ABC):
    """A Gaussian vector of effects, and how the rows see it.

    Hyperparameters are unconstrained: logarithms of standard deviations, inverse hyperbolic
    tangents of correlations.

    Attributes
    ----------
    name : str
        Of the component, unique in a model.
    names : tuple of str
        Of the entries of its theta.
    A : sparse array, shape (rows, size)
        Columns of the fitted rows.
    rows, columns : array of int
        The pattern of Q, each entry of the lower triangle once, the diagonal included.
    """

    name: str
    names: tuple[str, ...]
    A: sparse.csr_array
    rows: np.ndarray
    columns: np.ndarray

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.size} effects)"

    @property
    def size(self) -> int:
        """Number of effects."""
        return int(self.A.shape[1])

    @abc.abstractmethod
    def precision(self, theta: np.ndarray) -> Precision:
        """Entries of Q and its log determinant for theta of shape (points, len(names))."""

    def start(self) -> np.ndarray:
        """Where a search for the best theta begins."""
        return np.zeros(len(self.names))

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Log prior density of the unconstrained theta, shape (points,)."""
        return np.zeros(len(theta))

    def natural(self, theta: np.ndarray) -> Natural:
        """Hyperparameters as a user reads them, by name, each of shape (points,)."""
        return {name: np.exp(theta[:, i]) for i, name in enumerate(self.names)}

    @property
    def mean(self) -> np.ndarray:
        """Prior mean of the effects."""
        return np.zeros(self.size)

    @property
    def constraints(self) -> np.ndarray | None:
        """Rows C of constraints C u = 0, shape (count, size)."""
        return None

    @property
    def coordinates(self) -> np.ndarray | None:
        """Where the effects lie, shape (size, dimensions): times, or places of a lattice."""
        return None

    def labels(self) -> list[str]:
        """Names of the effects."""
        return [f"{self.name}[{i}]" for i in range(self.size)]

    def columns_for(self, data: Any) -> sparse.csr_array:
        """Columns of new rows that see the same effects."""
        raise NotImplementedError(f"{type(self).__name__} has no columns for new rows")

    def with_rows(self, columns: sparse.csr_array) -> Component:
        """The same effects, seen by more rows."""
        found = copy.copy(self)
        found.A = sparse.csr_array(sparse.vstack([self.A, columns], format="csr"))
        return found
