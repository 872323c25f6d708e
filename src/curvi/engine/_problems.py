"""The two problems that methods see: a variational bound, and a user's stochastic objective."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core import validation
from curvi._core.compilation import Cost, cost_of
from curvi._core.meshes import split_batch
from curvi._core.programs import Program, read_by, trace
from curvi.families import Family, Params
from curvi.io import Stream
from curvi.linalg import LinearMap, Metric
from curvi.objective import Draws, draw_noise, neg_elbo
from curvi.solvers import Layered, Problem, with_layers
from curvi.targets import Density

_SHOWS_LAYERS = ("outputs", "loss", "curvature", "penalty")


class Resources(NamedTuple):
    """The arrays of a run.

    Attributes
    ----------
    key : key
        The base key, from which the key of every step follows.
    rows : pytree or None
        All rows of the data, along the leading axis of every leaf; None without data.
    noise : array or None
        The fixed draws; None where a step makes its own.
    """

    key: PRNGKeyArray
    rows: PyTree
    noise: Array | None


class Sample(NamedTuple):
    """One step's noise and rows."""

    noise: Array
    rows: PyTree


def step_key(resources: Resources, step: Array, stream: int) -> PRNGKeyArray:
    """Key of a step and stream; a function of the seed and the step alone, so runs can resume."""
    return jax.random.fold_in(jax.random.fold_in(resources.key, stream), step)


def row_keys(resources: Resources, step: Array, stream: int) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """The key of a step's rows, and that of the next step's."""
    now, later = (step_key(resources, at, stream) for at in (step, step + 1))
    return jax.random.fold_in(now, 1), jax.random.fold_in(later, 1)


def pick_rows(
    keys: tuple[PRNGKeyArray, PRNGKeyArray], rows: PyTree, size: int, num_rows: int | None = None
) -> PyTree:
    """``size`` rows drawn at random, with replacement, from the first ``num_rows`` or all.

    Of a stream, those that the second key will ask for are read meanwhile.
    """
    if isinstance(rows, Stream):
        index, later = (jax.random.randint(k, (size,), 0, rows.num_rows) for k in keys)
        return rows.take(index, later)
    count = jax.tree.leaves(rows)[0].shape[0] if num_rows is None else num_rows
    index = split_batch(jax.random.randint(keys[0], (size,), 0, count))
    return jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=0), rows)


@dataclass(frozen=True)
class VariationalProblem(Problem):
    """The negative ELBO of a family on a density.

    Parameters
    ----------
    density : Density
        What is inferred: ``target.density``.
    family : Family
        The family of q.
    plan : Draws
        Kind and number of draws, fixed or fresh.
    dimension : int
        Number of unconstrained coordinates.
    batch_size : int or None
        Rows per step; None for all of them.
    """

    density: Density
    family: Family
    plan: Draws
    dimension: int
    batch_size: int | None

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """The density, and the rest."""
        return (self.density,), (self.family, self.plan, self.dimension, self.batch_size)

    @classmethod
    def tree_unflatten(cls, rest: Any, leaves: Any) -> VariationalProblem:
        """The problem on another density."""
        return cls(*leaves, *rest)

    @property
    def fixed(self) -> bool:
        """Fixed draws and all rows."""
        return self.batch_size is None and not self.plan.fresh

    def sample(
        self, resources: Resources, step: Array, stream: int = 0, size: int | None = None
    ) -> Sample:
        """Noise and rows of a step."""
        rows = resources.rows
        if self.batch_size is None and resources.noise is not None:
            return Sample(resources.noise, rows)
        key = step_key(resources, step, stream)
        if self.batch_size is not None:
            keys, total = row_keys(resources, step, stream), self.density.num_rows
            rows = pick_rows(keys, rows, size or self.batch_size, total)
        if resources.noise is not None:
            return Sample(resources.noise, rows)
        count = None if rows is None else jax.tree.leaves(rows)[0].shape[0]
        noise = draw_noise(
            key, self.plan, self.family, self.dimension, self.density.dtype, num_rows=count
        )
        return Sample(noise, rows)

    def value(self, params: Params, sample: Sample) -> Float[Array, ""]:
        """The negative ELBO on the sample."""
        return neg_elbo(self.density, self.family, params, sample.noise, sample.rows)

    def cost(self, params: Params, resources: Resources) -> Cost | None:
        """What one Hessian-vector product on fixed draws costs.

        Draws share their operations, and so do not add to them.
        """
        if not self.fixed or resources.noise is None:
            return None
        each = self.density.cost
        numbers = (each.numbers + 2 * self.dimension) * resources.noise.shape[0]
        return Cost(numbers, each.operations).of_product()

    def metric(self, params: Params) -> Metric:
        """Natural metric of the family."""
        return self.family.metric(params)

    def project(self, params: Params, tangent: Params) -> Params:
        """Remove directions along which q does not change."""
        return self.family.project(params, tangent)

    def to_raw(self, params: Params) -> Params:
        """Mean and entries of R."""
        return self.family.to_raw(params)

    def from_raw(self, raw: Params) -> Params:
        """Back from entries of R."""
        return self.family.from_raw(raw)


@dataclass(frozen=True)
class ObjectiveProblem(Problem):
    """A user's objective ``fn(params, batch, key) -> scalar``.

    Parameters
    ----------
    fn : callable
        The objective; ``batch`` is None without data. Either a pytree, such as
        :class:`ObjectivePrograms`, or an object that is compared by value.
    batch_size : int or None
        Rows per step; None for all of them.
    fixed_key : bool
        Whether ``fn`` gets the same key at every step.
    reads : object
        What an ``fn`` that is not a pytree reads, by value.
    """

    fn: Callable[[PyTree, PyTree, PRNGKeyArray], Float[Array, ""]]
    batch_size: int | None
    fixed_key: bool
    reads: Any = None

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """The function where it is a pytree, and the rest."""
        rest = (self.batch_size, self.fixed_key, self.reads)
        if jax.tree_util.treedef_is_leaf(jax.tree.structure(self.fn)):
            return (), (self.fn, *rest)
        return (self.fn,), rest

    @classmethod
    def tree_unflatten(cls, rest: Any, leaves: Any) -> ObjectiveProblem:
        """The problem with another function."""
        return cls(*leaves, *rest)

    @property
    def fixed(self) -> bool:
        """All data and one key."""
        return self.batch_size is None and self.fixed_key

    def sample(
        self, resources: Resources, step: Array, stream: int = 0, size: int | None = None
    ) -> tuple[PyTree, PRNGKeyArray]:
        """Batch and key of a step."""
        key = resources.key if self.fixed_key else step_key(resources, step, stream)
        rows = resources.rows
        if self.batch_size is not None:
            rows = pick_rows(row_keys(resources, step, stream), rows, size or self.batch_size)
        return rows, key

    def value(self, params: PyTree, sample: tuple[PyTree, PRNGKeyArray]) -> Float[Array, ""]:
        """The objective on a batch and key."""
        return self.fn(params, *sample)

    def cost(self, params: PyTree, resources: Resources) -> Cost | None:
        """What one Hessian-vector product of a deterministic objective costs."""
        if not self.fixed:
            return None
        sample = self.sample(resources, jnp.asarray(0, jnp.int32))
        each = cost_of(lambda p, rows: self.value(p, (rows, sample[1])), params, sample[0])
        return each.of_product()

    def gauss_newton(
        self, params: PyTree, sample: tuple[PyTree, PRNGKeyArray]
    ) -> tuple[Array, PyTree, LinearMap]:
        """Of ``fn``, if it offers one."""
        if not hasattr(self.fn, "gauss_newton"):
            return super().gauss_newton(params, sample)
        return self.fn.gauss_newton(params, *sample)

    def layered(self) -> Layered:
        """``fn`` itself, if it shows its layers."""
        return self.fn if isinstance(self.fn, Layered) else super().layered()


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class ObjectivePrograms:
    """An objective as a program for each number of rows that it meets (None: without data)."""

    by_count: dict[int | None, Program]

    def __call__(self, params: PyTree, batch: PyTree, key: PRNGKeyArray) -> Float[Array, ""]:
        """The objective on a batch."""
        leaves = jax.tree.leaves(batch)
        value: Array = self.by_count[leaves[0].shape[0] if leaves else None](params, batch, key)
        return value

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """The programs, and their numbers of rows."""
        return tuple(self.by_count.values()), tuple(self.by_count)

    @classmethod
    def tree_unflatten(cls, rest: Any, leaves: Any) -> ObjectivePrograms:
        """The same with other arrays."""
        return cls(dict(zip(rest, leaves, strict=True)))


def _checked(
    fn: Callable[..., Float[Array, ""]], params: PyTree, batch: PyTree, key: PRNGKeyArray
) -> Float[Array, ""]:
    value = validation.user_call(fn, "fn", params, batch, key)
    validation.require_float_of_shape(value, (), "fn", "one scalar")
    return value


def traced_objective(
    fn: Callable[..., Any], params: PyTree, rows: PyTree, counts: Iterable[int], key: PRNGKeyArray
) -> tuple[Any, Any]:
    """The function of an :class:`ObjectiveProblem` on batches of so many rows, and what it reads.

    A plain function becomes its programs. One that offers more than its value, as networks do,
    stays as it is. One with ``reads_nothing``, as the networks of this library, is not traced: all
    that it computes follows from its fields.

    Raises
    ------
    InputError
        If the function cannot be traced, or does not return one real number.
    """
    if getattr(fn, "reads_nothing", False):
        return fn, None
    sizes: list[int | None] = [None] if rows is None else [*sorted(set(counts))]
    programs = {
        size: trace(partial(_checked, fn), params, _some(rows, size), key) for size in sizes
    }
    if hasattr(fn, "gauss_newton") or isinstance(fn, Layered):
        more = (
            []
            if not hasattr(fn, "gauss_newton")
            else [
                trace(partial(_gauss_newton_product, fn), params, _some(rows, size), key)
                for size in sizes
            ]
        )
        if not isinstance(fn, Layered) and all(hasattr(fn, name) for name in _SHOWS_LAYERS):
            fn = with_layers(fn, params, _some(rows, sizes[0]), key)
        return fn, tuple(map(read_by, [*programs.values(), *more]))
    return ObjectivePrograms(programs), None


def _gauss_newton_product(fn: Any, params: PyTree, batch: PyTree, key: PRNGKeyArray) -> Any:
    value, gradient, product = fn.gauss_newton(params, batch, key)
    return value, gradient, product(params)


def _some(rows: PyTree, count: int | None) -> PyTree:
    if hasattr(rows, "shape_of"):  # they are not arrays
        return rows.shape_of(count or rows.num_rows)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), rows
    )
