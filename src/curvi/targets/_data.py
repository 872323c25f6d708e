"""A target given by a likelihood over rows of data and a prior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.fingerprint import fingerprint
from curvi.targets._density import RowDensity
from curvi.targets._labels import Labels


@dataclass(frozen=True, eq=False)
class DataTarget:
    r"""A posterior over a pytree: rows of data with a likelihood, and a prior.

    .. math:: \log p(z, y) = \sum_{i=1}^N \log p(y_i \mid z) + \log p(z)

    Because the rows are visible to the engine it can be fitted on minibatches (each scaled by
    ``N / B``) and sharded over devices.

    Parameters
    ----------
    log_likelihood : callable
        ``log_likelihood(position, rows) -> (num_rows,)``, one value per row.
    data : pytree of arrays
        Arrays that share their leading axis; ``rows`` has the same structure.
    log_prior : callable
        ``log_prior(position) -> scalar``.
    position : pytree of floating-point arrays
        Its *value* is where the variational mean starts.
    constrain : callable, optional
        Maps an unconstrained position to the user's own space.
    labels : Labels, optional
        Names of axes and observed data, for tables and ArviZ.

    Raises
    ------
    InputError
        On empty, ragged or non-finite data, or when a function returns the wrong shape.
    """

    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]]
    data: PyTree
    log_prior: Callable[[PyTree], Float[Array, ""]]
    position: PyTree
    constrain: Callable[[PyTree], PyTree] | None = None
    labels: Labels | None = field(default=None, repr=False)
    start: Float[Array, " dimension"] = field(init=False, repr=False)
    density: RowDensity = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Pass the gate."""
        start, unravel = validation.flat_position(self.position)
        data, num_rows = validation.checked_rows(self.data)
        for function, name in (
            (self.log_likelihood, "log_likelihood"),
            (self.log_prior, "log_prior"),
        ):
            if not callable(function):
                raise InputError(f"{name} is not callable; give a function of the position")
        reads = (fingerprint(self.log_likelihood), fingerprint(self.log_prior))
        density = RowDensity(
            self.log_likelihood, self.log_prior, unravel, start.dtype, num_rows, reads
        )
        for name, value in (("start", start), ("data", data), ("density", density)):
            object.__setattr__(self, name, value)
        jax.eval_shape(density.log_prior_prob, start)
        # One row and all rows: a likelihood that sums its rows, or that reads all the data
        # instead of the rows it is given, shows itself here and not in a wrong answer.
        for count in sorted({1, num_rows}):
            rows = jax.tree.map(lambda leaf, count=count: leaf[:count], data)
            jax.eval_shape(density.log_likelihood_rows, start, rows)

    @property
    def dimension(self) -> int:
        """Number of scalar coordinates."""
        return int(self.start.shape[0])

    @property
    def dtype(self) -> Any:
        """Precision of the whole computation, taken from the position."""
        return self.start.dtype

    @property
    def num_rows(self) -> int:
        """Number of rows of data."""
        return self.density.num_rows

    @property
    def rows(self) -> PyTree:
        """All rows."""
        return self.data

    def log_prob(self, z: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log joint density of a flat position and all rows."""
        return self.density.log_prob(z, self.data)

    def check_start(self) -> None:
        """Evaluate once at the start and refuse it if anything is not finite."""
        prior = np.asarray(self.density.log_prior_prob(self.start))
        if not np.isfinite(prior):
            raise InputError(
                f"log_prior is {prior} at the starting position; start inside its support"
            )
        rows = np.asarray(self.density.log_likelihood_rows(self.start, self.data))
        validation.refuse_non_finite(
            rows, "log_likelihood of row ", "check that row, or start inside the support"
        )
