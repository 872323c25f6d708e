r"""Components side by side: one matrix A, one pattern, one vector of hyperparameters.

.. math:: P(\theta) = Q(\theta) + A^\top \mathrm{diag}(w) A, \qquad
    Q(\theta) = \mathrm{diag}(Q_1(\theta_1), Q_2(\theta_2), \dots)

Hyperparameters of the components come first, those of the likelihood last, as logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy import sparse

from curvi._core.errors import InputError
from curvi.latent._component import Component, Natural, Precision
from curvi.latent._priors import of_extra
from curvi.likelihoods import Extra
from curvi.linalg import ConstrainedFactor, Factor, Pattern, RowProducts, distinct, gram_entries


class Assembly:
    """The prior of all effects, and what rows see of them.

    Parameters
    ----------
    components : sequence of Component
        With one row of A for each row of the data.
    extras : sequence of Extra, optional
        Hyperparameters of the likelihood, with their priors.
    extra_start : sequence of float, optional
        Where the search for them begins.
    gram : sparse array, shape (size, size), optional
        Non-zero where rows see two effects together, if the components were made for no rows.
    last : sequence of int, optional
        Components that are eliminated last, as one dense block.
    dense : float
        A coordinate that touches more than this share of all others is eliminated last.
    difference : float
        Of central differences of closed forms, whose error is then about 1e-10.

    Attributes
    ----------
    A : sparse array, shape (rows, size)
        All columns.
    names : tuple of str
        Of the entries of theta.
    effects, hyperparameters : list of slice
        Of every component: its effects among all, and its entries of theta.
    constraints : array or None
        Rows C of C u = 0.
    """

    def __init__(
        self,
        components: Sequence[Component],
        extras: Sequence[Extra] = (),
        extra_start: Sequence[float] = (),
        *,
        gram: sparse.csr_array | None = None,
        last: Sequence[int] = (),
        dense: float = 0.2,
        difference: float = 1e-5,
    ) -> None:
        if not components:
            raise InputError("components is empty; give at least one")
        self.components, self.extras, self._dense = tuple(components), tuple(extras), dense
        self.difference = difference
        self._extra_start, self._gram, self._last = tuple(extra_start), gram, tuple(last)
        self._check()
        ends = np.cumsum([0] + [c.size for c in components])
        self.effects = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        ends = np.cumsum([0] + [len(c.names) for c in components])
        self.hyperparameters = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        names = [name for c in components for name in c.names]
        self.names = (*names, *(extra.name for extra in self.extras))
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise InputError(f"two hyperparameters are called {twice!r}; give components a name")
        self.A = sparse.csr_array(sparse.hstack([c.A for c in components], format="csr"))
        self.A.sum_duplicates()
        self.prior_mean = np.concatenate([np.asarray(c.mean, np.float64) for c in components])
        self.constraints = self._joined_constraints()

    def of(self, components: Sequence[Component]) -> Assembly:
        """Other components, such as the same ones with more rows, with all else as it is."""
        return Assembly(
            components, self.extras, self._extra_start, dense=self._dense,
            difference=self.difference,
        )  # fmt: skip

    def _check(self) -> None:
        rows = [c.A.shape[0] for c in self.components]
        if len(set(rows)) > 1:
            told = ", ".join(
                f"{c.name!r} has {n}" for c, n in zip(self.components, rows, strict=True)
            )
            raise InputError(f"components differ in their rows of A: {told}")
        for c in self.components:
            if not np.isfinite(c.A.data).all():
                raise InputError(f"the columns of {c.name!r} are not finite")

    def require_separate_levels(self, seen: np.ndarray) -> None:
        """Refuse singular components whose free directions cancel each other in the seen rows.

        The constraints do determine them, but only after P has been factorised.
        """
        if self.constraints is None:
            return
        C, pattern = self.constraints, self.pattern
        values = self.precision(self.start()[None]).values[0]
        lower = sparse.csr_array((values, (pattern.rows, pattern.columns)), shape=2 * (self.size,))
        rows = self.A[seen] @ C.T
        gram = C @ (lower + sparse.tril(lower, -1).T) @ C.T + rows.T @ rows
        found = np.linalg.eigvalsh(gram)
        if found[0] < 1e-12 * found[-1]:
            told = " and ".join(repr(c.name) for c in self.components if c.constraints is not None)
            raise InputError(
                f"no prior holds the levels of {told}, which cancel each other in the rows; "
                "give all of them but one a prior: first_sd of a random walk, or a precision with "
                "a small multiple of the identity added"
            )

    def _joined_constraints(self) -> np.ndarray | None:
        parts = []
        for c, some in zip(self.components, self.effects, strict=True):
            if c.constraints is not None:
                wide = np.zeros((len(c.constraints), self.size))
                wide[:, some] = c.constraints
                parts.append(wide)
        return np.concatenate(parts) if parts else None

    @property
    def size(self) -> int:
        """Number of effects."""
        return int(self.A.shape[1])

    @property
    def dimension(self) -> int:
        """Number of hyperparameters."""
        return len(self.names)

    @cached_property
    def pattern(self) -> Pattern:
        """Where P is not zero, with the coordinates that touch most others as its border."""
        rows, columns = gram_entries(self.A) if self._gram is None else self._gram.nonzero()
        own = [(c.rows + s.start, c.columns + s.start) for c, s in
               zip(self.components, self.effects, strict=True)]  # fmt: skip
        rows = np.concatenate([rows, *(one for one, _ in own)])
        columns = np.concatenate([columns, *(other for _, other in own)])
        return Pattern(
            rows, columns, self.size, border=self._border(rows, columns), places=self._places()
        )

    def _border(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Those of the last components, or coordinates that touch most others, if they are few."""
        if self._last:
            every = np.arange(self.size)
            return np.concatenate([every[self.effects[k]] for k in self._last])
        keys = distinct(np.maximum(rows, columns) * self.size + np.minimum(rows, columns))
        ends = np.divmod(keys, max(self.size, 1))
        degree = sum(np.bincount(end, minlength=self.size) for end in ends)
        found = np.flatnonzero(degree > 1 + self._dense * self.size)
        return found if len(found) <= 0.5 * self.size else found[:0]

    def _places(self) -> np.ndarray | None:
        given = [c.coordinates for c in self.components]
        width = max((g.shape[1] for g in given if g is not None), default=0)
        if not width:
            return None
        out = np.full((self.size, width), np.nan)
        for place, some in zip(given, self.effects, strict=True):
            if place is not None:
                out[some, : place.shape[1]] = place
        return out

    @cached_property
    def _effects_of_rows(self) -> sparse.csr_array:
        return sparse.csr_array(self.A.T)

    def pulled(self, rows: np.ndarray) -> np.ndarray:
        """A' r, for r of shape (points, rows)."""
        return np.ascontiguousarray((self._effects_of_rows @ rows.T).T)

    @cached_property
    def products(self) -> RowProducts:
        """Of the rows of A, in the pattern."""
        return RowProducts(self.pattern, self.A)

    @cached_property
    def positions(self) -> list[np.ndarray]:
        """Where the entries of every component stand in the pattern."""
        pairs = zip(self.components, self.effects, strict=True)
        return [self.pattern.positions(c.rows + s.start, c.columns + s.start) for c, s in pairs]

    def precision(self, theta: np.ndarray) -> Precision:
        """Entries of Q on the pattern, and its log determinant, for theta (points, dimension)."""
        values = np.zeros((len(theta), self.pattern.entries))
        log_det = np.zeros(len(theta))
        parts = zip(self.components, self.hyperparameters, self.positions, strict=True)
        for component, some, at in parts:
            own = component.precision(theta[:, some])
            values[:, at] = own.values
            log_det += own.log_det
        return Precision(values, log_det)

    def slopes(self, theta: np.ndarray, second: np.ndarray) -> np.ndarray:
        r"""Gradient of :math:`\tfrac12 \log\det Q - \tfrac12 E[u^\top Q u]`, (points, dimension).

        Parameters
        ----------
        theta : array, shape (points, dimension)
            Hyperparameters.
        second : array, shape (points, entries)
            Second moments of the centred effects under q, on the pattern.
        """
        out = np.zeros(theta.shape)
        parts = zip(self.components, self.hyperparameters, self.positions, strict=True)
        for component, some, at in parts:
            moments = np.where(component.rows == component.columns, 0.5, 1.0) * second[:, at]
            for j in range(some.stop - some.start):
                step = np.zeros(some.stop - some.start)
                step[j] = self.difference
                up, down = (component.precision(theta[:, some] + s) for s in (step, -step))
                change = 0.5 * (up.log_det - down.log_det)
                change -= ((up.values - down.values) * moments).sum(axis=1)
                out[:, some.start + j] = change / (2 * self.difference)
        return out

    def factor(self, values: np.ndarray) -> Factor | ConstrainedFactor:
        """Of entries on the pattern, under the constraints."""
        found = self.pattern.factor(values)
        return found if self.constraints is None else ConstrainedFactor(found, self.constraints)

    def extra_values(self, theta: np.ndarray) -> np.ndarray:
        """Hyperparameters of the likelihood, no longer as logarithms: shape (points, count)."""
        return np.exp(theta[:, self.dimension - len(self.extras) :])

    def start(self) -> np.ndarray:
        """Where a search for the best theta begins."""
        parts = [np.asarray(c.start(), np.float64) for c in self.components]
        return np.concatenate([*parts, np.log(np.asarray(self._extra_start, np.float64))])

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Log prior density of theta."""
        total = np.zeros(len(theta))
        for component, some in zip(self.components, self.hyperparameters, strict=True):
            total += component.log_prior(theta[:, some])
        first = self.dimension - len(self.extras)
        for j, extra in enumerate(self.extras, first):
            total += of_extra(theta[:, j], extra)
        return total

    def prior_slopes(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of `log_prior`."""
        steps = self.difference * np.eye(self.dimension)
        ends = [self.log_prior(theta + s) - self.log_prior(theta - s) for s in steps]
        return np.reshape(np.transpose(ends), theta.shape) / (2 * self.difference)

    def natural(self, theta: np.ndarray) -> Natural:
        """Hyperparameters as a user reads them, by name."""
        out: Natural = {}
        for component, some in zip(self.components, self.hyperparameters, strict=True):
            out |= component.natural(theta[:, some])
        extra = self.extra_values(theta)
        return out | {one.name: extra[:, j] for j, one in enumerate(self.extras)}
