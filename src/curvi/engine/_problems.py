"""The two problems that methods see: a variational bound, and a user's stochastic objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core import validation
from curvi._core.compilation import Cost, cost_of
from curvi.families import Family, Params
from curvi.linalg import LinearMap, Metric
from curvi.objective import Draws, draw_noise, neg_elbo
from curvi.solvers import Problem
from curvi.solvers._method import Layered
from curvi.targets import Density


@lru_cache(maxsize=256)
def _cost_per_draw(density: Density, dimension: int, shapes: Any) -> Cost:
    position = jax.ShapeDtypeStruct((dimension,), density.dtype)
    leaves, structure = shapes
    rows = jax.tree.unflatten(structure, list(leaves))
    return cost_of(density.log_prob, position, rows)


def cost_per_draw(density: Density, dimension: int, rows: PyTree) -> Cost:
    """What one evaluation of the log density costs."""
    leaves, structure = jax.tree.flatten(rows)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    return _cost_per_draw(density, dimension, (shapes, structure))


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


def pick_rows(key: PRNGKeyArray, rows: PyTree, size: int) -> PyTree:
    """``size`` rows drawn at random, with replacement."""
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    index = jax.random.randint(key, (size,), 0, num_rows)
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
            rows = pick_rows(jax.random.fold_in(key, 1), rows, size or self.batch_size)
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
        each = cost_per_draw(self.density, self.dimension, resources.rows)
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
        The objective; ``batch`` is None without data.
    batch_size : int or None
        Rows per step; None for all of them.
    fixed_key : bool
        Whether ``fn`` gets the same key at every step.
    reads : tuple
        Fingerprint of the values that ``fn`` closes over: where it changes, ``fn`` is traced anew.
    """

    fn: Callable[[PyTree, PyTree, PRNGKeyArray], Float[Array, ""]]
    batch_size: int | None
    fixed_key: bool
    reads: tuple[Any, ...] = ()

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
            row_key = jax.random.fold_in(step_key(resources, step, stream), 1)
            rows = pick_rows(row_key, rows, size or self.batch_size)
        return rows, key

    def value(self, params: PyTree, sample: tuple[PyTree, PRNGKeyArray]) -> Float[Array, ""]:
        """The objective on a batch and key."""
        return _traced_once(self.fn, self.reads, params, *sample)

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


def _objective(
    fn: Callable[..., Float[Array, ""]],
    reads: tuple[Any, ...],
    params: PyTree,
    batch: PyTree,
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    del reads
    value = validation.user_call(fn, "fn", params, batch, key)
    validation.require_float_of_shape(value, (), "fn", "one scalar")
    return value


_traced_once = jax.jit(_objective, static_argnums=(0, 1))
