"""A component from a precision matrix, or from a function that returns one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from curvi._core import validation
from curvi._core.errors import InputError, NumericalError
from curvi.latent._component import Component, Precision
from curvi.latent._priors import half_normal
from curvi.linalg import ConstrainedFactor, Pattern


class FromPrecision(Component):
    r"""Gaussian effects whose precision the user brings.

    Parameters
    ----------
    A : array or sparse matrix, shape (rows, size)
        What each row sees of the effects.
    Q : array, sparse matrix or callable
        The precision for an sd of one: that of the effects is :math:`Q / \sigma^2`, and
        :math:`\sigma` is the hyperparameter. Or a function of positive hyperparameters, by the
        names in ``scales``, that returns the precision; its zeros have to stay where they are.
    name : str
        Of the component, and of its sd.
    scales : dict, optional
        Scales of half-normal priors of the hyperparameters, by name; by default one for the sd.
    start : dict, optional
        Where the search for hyperparameters begins, by name; by default 0.3 of their scales.
    mean : float or array, shape (size,)
        Prior means of the effects.
    constraints : array, shape (k, size), optional
        Rows C of constraints C u = 0. A singular Q, as of a random walk or an intrinsic
        autoregression, needs one for each direction that it says nothing about, which C spans.
    labels : sequence of str, optional
        Names of the effects.
    coordinates : array, shape (size, dimensions), optional
        Where the effects lie, which helps to find a good order of elimination.

    Raises
    ------
    InputError
        For matrices that do not fit each other, are not symmetric or are singular without
        constraints.

    Examples
    --------
    Four places in a row, each like its neighbours, which sum to zero:

    >>> import numpy as np
    >>> from curvi.latent import FromPrecision
    >>> step = np.diff(np.eye(4), axis=0)
    >>> places = FromPrecision(np.eye(4), step.T @ step, "place", constraints=np.ones((1, 4)))
    >>> places.names, places.size
    (('place',), 4)
    """

    def __init__(
        self,
        A: Any,
        Q: Any,
        name: str = "effects",
        *,
        scales: Mapping[str, float] | None = None,
        start: Mapping[str, float] | None = None,
        mean: Any = 0.0,
        constraints: Any = None,
        labels: Sequence[str] | None = None,
        coordinates: Any = None,
    ) -> None:
        self.name = name
        self.A = sparse.csr_array(A if sparse.issparse(A) else np.atleast_2d(A)).astype(float)
        self._given = Q
        if callable(Q) and not scales:
            raise InputError(
                f"Q of {name!r} is a function of hyperparameters; give scales, a dictionary of the "
                "scales of their priors by name"
            )
        given = {name: 1.0} if scales is None else dict(scales)
        if not callable(Q) and len(given) > 1:
            raise InputError(f"Q of {name!r} is a matrix, whose sd is the only hyperparameter")
        self.names = tuple(given)
        self.prior_scales = [
            validation.positive_number(scale, f"scales[{key!r}]") for key, scale in given.items()
        ]
        self._mean = np.broadcast_to(np.asarray(mean, np.float64), self.size)
        self._labels = super().labels() if labels is None else [str(label) for label in labels]
        if len(self._labels) != self.size:
            raise InputError(f"{name!r} has {self.size} effects and {len(self._labels)} labels")
        self._places = None if coordinates is None else np.asarray(coordinates, np.float64)
        self._constraints = (
            None if constraints is None else np.atleast_2d(constraints).astype(float)
        )
        if self._constraints is not None and self._constraints.shape[1] != self.size:
            raise InputError(f"constraints of {name!r} need {self.size} columns")
        first = {**dict(zip(self.names, 0.3 * np.asarray(self.prior_scales), strict=True)),
                 **dict(start or {})}  # fmt: skip
        self._start = np.log([validation.positive_number(v, f"start[{k!r}]") for k, v in
                              first.items()])  # fmt: skip
        self._learn(np.exp(self._start))

    def _matrix(self, values: np.ndarray) -> sparse.csr_array:
        """Q at hyperparameters; of a matrix that of an sd of one."""
        Q = self._given
        found = Q(**dict(zip(self.names, values.tolist(), strict=True))) if callable(Q) else Q
        out = sparse.csr_array(found if sparse.issparse(found) else np.atleast_2d(found))
        if out.shape != (self.size, self.size):
            raise InputError(f"Q of {self.name!r} has shape {out.shape}; A has {self.size} columns")
        if not np.isfinite(out.data).all():
            raise InputError(f"Q of {self.name!r} is not finite at {self._shown(values)}")
        return out.astype(np.float64)

    def _shown(self, values: np.ndarray) -> str:
        pairs = zip(self.names, values, strict=True)
        return ", ".join(f"{name} = {value:.4g}" for name, value in pairs)

    def _learn(self, values: np.ndarray, *, singular: float = 1e-11) -> None:
        """The pattern, and whether the constraints span what Q says nothing about."""
        Q = self._matrix(values)
        size = float(np.abs(Q.data).max(initial=0.0))
        if abs(Q - Q.T).max() > 1e-8 * size:
            raise InputError(f"Q of {self.name!r} is not symmetric")
        low = sparse.coo_array(sparse.tril(Q))
        self._pattern = Pattern(low.row, low.col, self.size, places=self._places)
        self.rows, self.columns = self._pattern.rows, self._pattern.columns
        self._null = False
        if self._constraints is not None:
            self._null = bool(np.abs(Q @ self._constraints.T).max() < 1e-8 * size)
        self._base = None if callable(self._given) else self._entries(Q)
        if not self._null:
            x = np.random.default_rng(0).standard_normal(self.size)
            try:
                for _ in range(2):
                    x = self._pattern.factor(self._entries(Q)).solve(x / np.linalg.norm(x))
                least = float(1 / np.linalg.norm(x))
            except NumericalError:
                least = 0.0
            if least < singular * size:
                raise InputError(
                    f"Q of {self.name!r} is singular or not positive definite at "
                    f"{self._shown(values)}; give constraints that span what it says nothing about"
                )
        if self._base is not None:
            self._base_log_det = float(self._log_det(self._base[None])[0])

    def _entries(self, Q: sparse.csr_array) -> np.ndarray:
        """Of the lower triangle, on the pattern."""
        low = sparse.coo_array(sparse.tril(Q))
        at = self._pattern.positions(low.row, low.col)
        return np.bincount(at, low.data, self._pattern.entries)

    def _log_det(self, values: np.ndarray) -> np.ndarray:
        """In the space that the constraints leave."""
        if self._null:
            assert self._constraints is not None  # noqa: S101  for type checkers
            return self._pattern.log_pseudo_determinant(values, self._constraints.T)
        factor = self._pattern.factor(values)
        if self._constraints is None:
            return factor.log_det
        return np.asarray(ConstrainedFactor(factor, self._constraints).log_det)

    def precision(self, theta: np.ndarray) -> Precision:
        """The matrix over the variance, or what the function says; one point after the other."""
        natural = np.exp(np.asarray(theta, np.float64))
        if self._base is not None:
            rank = self.size - (0 if self._constraints is None else len(self._constraints))
            values = natural[:, :1] ** -2.0 * self._base
            return Precision(values, self._base_log_det - 2 * rank * theta[:, 0])
        values = np.stack([self._entries(self._matrix(point)) for point in natural])
        return Precision(values, self._log_det(values))

    def start(self) -> np.ndarray:
        """As given."""
        return self._start

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Half-normal hyperparameters."""
        pairs = zip(theta.T, self.prior_scales, strict=True)
        return sum((half_normal(log, scale) for log, scale in pairs), np.zeros(len(theta)))

    @property
    def mean(self) -> np.ndarray:
        """Prior means."""
        return self._mean

    @property
    def constraints(self) -> np.ndarray | None:
        """As given."""
        return self._constraints

    @property
    def coordinates(self) -> np.ndarray | None:
        """As given."""
        return self._places

    def labels(self) -> list[str]:
        """Names of the effects."""
        return list(self._labels)

    def columns_for(self, data: Any) -> sparse.csr_array:
        """What new rows see of the effects, a matrix like A."""
        found = sparse.csr_array(data if sparse.issparse(data) else np.atleast_2d(data))
        if found.shape[1] != self.size:
            raise InputError(f"{self.name!r} has {self.size} effects and new rows {found.shape[1]}")
        return found.astype(np.float64)
