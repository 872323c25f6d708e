"""Targets: what is inferred, where it starts, and how it is called."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.meshes import padded_count, place_rows
from curvi._core.programs import Program, trace
from curvi._core.trees import Unravel, precision_of
from curvi.io import Stream, streamed
from curvi.report import notebook_html
from curvi.targets._centring import Centring
from curvi.targets._density import Density, traced_likelihoods, traced_prior


@dataclass(frozen=True, eq=False)
class Labels:
    """Names for the arrays of a result; none of them enters the computation.

    Attributes
    ----------
    dims : mapping
        Names of the axes of a variable, as ArviZ calls them.
    coords : mapping
        Values along a named axis.
    observed : mapping
        The data that the model was conditioned on.
    """

    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)
    observed: Mapping[str, np.ndarray] = field(default_factory=dict)


class Described:
    """A target as one line, and as a small table."""

    _listed = 8  # arrays

    def __repr__(self: Any) -> str:
        rows = f", {self.num_rows:,} rows" if self.rows is not None else ""
        shapes = ", ".join(
            f"{name} {shape}" for name, shape in _arrays(self.position)[: self._listed]
        )
        more = ", ..." if len(_arrays(self.position)) > self._listed else ""
        return f"{type(self).__name__}({self.dimension} parameters: {shapes}{more}{rows})"

    def _repr_html_(self: Any) -> str:
        """Arrays, rows and precision, for a notebook."""
        facts = {"parameters": f"{self.dimension:,}", "precision": str(np.dtype(self.dtype))}
        if self.rows is not None:
            facts["rows"] = f"{self.num_rows:,}"
        if self.constrain is not None:
            facts["space"] = "constrained: results are in the space of the model"
        if self.labels is not None and self.labels.observed:
            facts["observed"] = ", ".join(map(str, self.labels.observed))
        table = [("array", "shape"), *_arrays(self.position)[: self._listed]]
        return notebook_html(type(self).__name__, facts, table=table)


def _arrays(position: Any) -> list[tuple[str, str]]:
    """Names and shapes of the arrays of a position."""
    paths, _ = jax.tree_util.tree_flatten_with_path(position)
    return [
        (jax.tree_util.keystr(path, simple=True, separator=".") or "x", str(np.shape(leaf)))
        for path, leaf in paths
    ]


class AbstractTarget(Described, abc.ABC):
    """What :class:`Target` and :class:`DataTarget` have in common.

    Attributes
    ----------
    position : pytree of floating-point arrays
        Its *value* is where the variational mean starts; its structure is that of every result.
    start : array, shape (dimension,)
        The position as one vector.
    density : Density
        The log density of a flat position.
    constrain : callable or None
        Maps an unconstrained position to the user's own space (None: they are the same).
    labels : Labels or None
        Names of axes and observed data, for tables and ArviZ.
    centring : Centring or None
        Other forms of the same posterior, which the ladder may take.

    Notes
    -----
    A copy, or a pickle where the functions are importable, is built anew from the constructor's
    arguments, in the precision of the original.
    """

    position: PyTree
    constrain: Callable[[PyTree], PyTree] | None
    labels: Labels | None
    centring: Centring | None
    start: Float[Array, " dimension"]
    density: Density

    @abc.abstractmethod
    def _traced(self, unravel: Unravel, batches: Iterable[int]) -> Density:
        """The density, as the user's functions are now."""

    def _set_density(self) -> None:
        """Validate the position; set ``start`` and ``density``."""
        start, unravel = validation.flat_position(self.position)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "density", self._traced(unravel, ()))

    def with_batches(self, batches: Iterable[int] = ()) -> AbstractTarget:
        """The same target with its functions traced anew, also for batches of so many rows."""
        target = object.__new__(type(self))
        target.__dict__.update(self.__dict__)
        target.__dict__.pop("to_user", None)
        target.__dict__["density"] = self._traced(self.density.unravel, batches)
        return target

    @cached_property
    def to_user(self) -> Program:
        """From a flat position to the user's own space."""

        def position(z: Array) -> PyTree:
            unconstrained = self.density.unravel(z)
            if self.constrain is None:
                return unconstrained
            given = validation.user_call(self.constrain, "constrain", unconstrained)
            return validation.as_numeric(given, "constrain")

        return trace(position, self.start)

    def __reduce__(self) -> tuple[Any, ...]:
        options = [getattr(self, option.name) for option in fields(self) if option.init]  # type: ignore[arg-type]
        # A float64 JAX array would be truncated when it is loaded outside its precision.
        options = jax.tree.map(
            lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, options
        )
        return _rebuild, (type(self), self.dtype, options)

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
        """Number of rows of data; 0 for a plain log density."""
        return self.density.num_rows

    @property
    def rows(self) -> PyTree | None:
        """All rows of data; None for a plain log density."""
        return None

    def with_position(self, position: PyTree) -> AbstractTarget:
        """The same target, started elsewhere; raises InputError as the constructor does."""
        return replace(self, position=position)  # type: ignore[type-var]

    def started_at(self, position: PyTree) -> AbstractTarget:
        """The same target from another position of the same shapes; nothing is traced anew."""
        target = object.__new__(type(self))
        target.__dict__.update(self.__dict__)
        target.__dict__.update(position=position, start=validation.flat_position(position)[0])
        return target

    def log_prob(self, z: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log density of a flat position, all rows of data included."""
        return self.density.log_prob(z, self.rows)

    @abc.abstractmethod
    def check_start(self) -> None:
        """Evaluate the log density at the start and raise InputError unless it is finite."""


def _rebuild(kind: type[AbstractTarget], dtype: Any, options: list[Any]) -> AbstractTarget:
    with precision_of(dtype):
        return kind(*options)


@dataclass(frozen=True, eq=False, repr=False)
class Target(AbstractTarget):
    r"""An unnormalised log density over a pytree of unconstrained real numbers.

    Parameters
    ----------
    log_density : callable
        ``log_density(position) -> scalar``, :math:`\log p(z) + \text{const}`, written in JAX.
    position : pytree of floating-point arrays
        Its *value* is where the variational mean starts; its structure is that of every result.
    constrain : callable, optional
        Maps an unconstrained position to the user's own space (default: they are the same).
    labels : Labels, optional
        Names of axes and observed data, for tables and ArviZ.
    centring : Centring, optional
        Other forms of the same posterior; set by :func:`from_numpyro` and :func:`from_pymc`.

    Raises
    ------
    InputError
        If the position is empty, not floating point or not finite, or if the log density does
        not return one floating-point scalar.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> target = Target(lambda x: -0.5 * jnp.sum(x["a"] ** 2), {"a": jnp.zeros(3)})
    >>> target.dimension
    3
    """

    log_density: Callable[[PyTree], Float[Array, ""]]
    position: PyTree
    constrain: Callable[[PyTree], PyTree] | None = None
    labels: Labels | None = field(default=None, repr=False)
    centring: Centring | None = field(default=None, repr=False)
    start: Float[Array, " dimension"] = field(init=False, repr=False)
    density: Density = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Validate the position and the log density."""
        validation.require_callable(
            self.log_density, "log_density", "log_density(position) -> scalar"
        )
        self._set_density()

    def _traced(self, unravel: Unravel, batches: Iterable[int]) -> Density:
        prior = traced_prior(self.log_density, "log_density", self.start, unravel)
        return Density(prior, unravel, self.dtype)

    def check_start(self) -> None:
        """Evaluate the log density at the start and raise InputError unless it is finite."""
        value = np.asarray(self.log_prob(self.start))
        if not np.isfinite(value):
            raise InputError(
                f"log_density is {value} at the starting position; start inside the support and "
                "check for log of zero, division by zero or overflow"
            )


@dataclass(frozen=True, eq=False, repr=False)
class DataTarget(AbstractTarget):
    r"""A posterior over a pytree: rows of data with a likelihood, and a prior.

    .. math:: \log p(z, y) = \sum_{i=1}^N \log p(y_i \mid z) + \log p(z)

    Because the engine sees the rows, it can fit on minibatches, each scaled by ``N / B``.

    Parameters
    ----------
    log_likelihood : callable
        ``log_likelihood(position, rows) -> (num_rows,)``, one value per row.
    data : pytree of arrays, or RowBlocks
        Arrays that share their leading axis; ``rows`` has the same structure. Memory maps of more
        than 256 MB and :class:`curvi.io.RowBlocks` (``rows`` is then the tuple of a block) stay
        where they are, and every evaluation reads them a block at a time.
    log_prior : callable
        ``log_prior(position) -> scalar``.
    position : pytree of floating-point arrays
        Its *value* is where the variational mean starts; its structure is that of every result.
    constrain : callable, optional
        Maps an unconstrained position to the user's own space (default: they are the same).
    labels : Labels, optional
        Names of axes and observed data, for tables and ArviZ.
    centring : Centring, optional
        Other forms of the same posterior; set by :func:`from_numpyro` and :func:`from_pymc`.

    Raises
    ------
    InputError
        On empty, ragged or non-finite data, or when a function returns the wrong shape.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> target = DataTarget(
    ...     lambda mean, rows: -0.5 * (rows - mean) ** 2,
    ...     jnp.arange(4.0),
    ...     lambda mean: -0.5 * mean**2,
    ...     jnp.zeros(()),
    ... )
    >>> target.num_rows, float(target.log_prob(target.start))
    (4, -7.0)
    """

    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]]
    data: PyTree
    log_prior: Callable[[PyTree], Float[Array, ""]]
    position: PyTree
    constrain: Callable[[PyTree], PyTree] | None = None
    labels: Labels | None = field(default=None, repr=False)
    centring: Centring | None = field(default=None, repr=False)
    start: Float[Array, " dimension"] = field(init=False, repr=False)
    density: Density = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Validate the position, the data and both functions."""
        stream = streamed(self.data)
        data = stream if stream is not None else validation.checked_rows(self.data)[0]
        object.__setattr__(self, "data", data)
        validation.require_callable(
            self.log_likelihood, "log_likelihood", "log_likelihood(position, rows) -> (num_rows,)"
        )
        validation.require_callable(self.log_prior, "log_prior", "log_prior(position) -> scalar")
        self._set_density()

    def _traced(self, unravel: Unravel, batches: Iterable[int]) -> Density:
        known = self.__dict__.get("density")  # rows that fill up a mesh do not count
        rows = self.data
        blocks = rows.block_rows if isinstance(rows, Stream) else 0
        here = rows.num_rows if blocks else jax.tree.leaves(rows)[0].shape[0]
        num_rows = here if known is None else known.num_rows
        prior = traced_prior(self.log_prior, "log_prior", self.start, unravel)
        # One row and all rows: a likelihood that sums its rows, or that reads all the data
        # instead of the rows it is given, shows itself here and not in a wrong answer.
        counts = {1, blocks or num_rows, *batches}
        likelihoods = traced_likelihoods(self.log_likelihood, self.start, unravel, rows, counts)
        return Density(prior, unravel, self.dtype, num_rows, likelihoods, blocks)

    @property
    def rows(self) -> PyTree:
        """All rows of data."""
        return self.data

    def on_mesh(self, mesh: Mesh, batches: Iterable[int] = ()) -> DataTarget:
        """The same target with its rows over the devices of a mesh, also for such batches."""
        if isinstance(self.data, Stream):
            raise InputError(
                "rows that are read in blocks have no mesh; give arrays, or leave the mesh out"
            )
        target = self.with_batches([padded_count(self.num_rows, mesh), *batches])
        target.__dict__.update(data=place_rows(self.data, mesh), whole=self)
        return target  # type: ignore[return-value]

    def check_start(self) -> None:
        """Evaluate prior and likelihood at the start; raise InputError unless they are finite."""
        prior = np.asarray(self.density.log_prior_prob(self.start))
        if not np.isfinite(prior):
            raise InputError(
                f"log_prior is {prior} at the starting position; start inside its support"
            )
        for first, rows in self._parts():
            values = np.asarray(self.density.log_likelihood_rows(self.start, rows))
            count = min(len(values), self.num_rows - first)
            term = "log_likelihood of row " if not first else f"log_likelihood of row {first} + "
            validation.refuse_non_finite(
                values[:count], term, "check that row, or start inside the support"
            )

    def _parts(self) -> Iterator[tuple[int, PyTree]]:
        """All rows at once, or block by block, with the number of the first."""
        stream = self.data
        if not isinstance(stream, Stream):
            yield 0, stream
            return
        for number in range(stream.num_blocks):
            yield number * stream.block_rows, stream.block(np.int32(number))
