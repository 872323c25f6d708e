"""Symmetric positive definite maps M that are cheap to invert: the metric in which CG works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax.tree
from jax.typing import ArrayLike

from curvi._core import trees
from curvi._core.errors import InputError

PyTree = Any


@runtime_checkable
class Metric(Protocol):
    """A symmetric positive definite map M on pytrees.

    An implementation may also have ``solve_sqrt(v)``, the product with the symmetric M^-1/2.
    """

    def apply(self, vector: PyTree) -> PyTree:
        """The product M v."""
        ...

    def solve(self, vector: PyTree) -> PyTree:
        """The solution M^-1 v."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Identity:
    """M = I: plain conjugate gradients."""

    def apply(self, vector: PyTree) -> PyTree:
        """The product M v."""
        return vector

    def solve(self, vector: PyTree) -> PyTree:
        """The product M^-1 v."""
        return vector

    def solve_sqrt(self, vector: PyTree) -> PyTree:
        """The product M^-1/2 v."""
        return vector


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class DiagonalMetric:
    """M = diag(d), a pytree so that it can be carried from one optimisation step to the next.

    Entries should be positive. Because estimated diagonals are noisy, entries below eps times the
    largest magnitude (eps of the dtype) are raised to that floor, and a diagonal of zeros acts as
    the identity. Entries that are not finite are passed on: the solver then reports NON_FINITE.

    Parameters
    ----------
    diagonal : pytree
        d, with the structure and shapes of the vectors that M is applied to.
    """

    diagonal: PyTree

    @property
    def entries(self) -> PyTree:
        """The diagonal with its floor applied."""
        eps = float(jnp.finfo(trees.real_dtype(self.diagonal, "diagonal")).eps)
        largest = optax.tree.max(jax.tree.map(jnp.abs, self.diagonal))
        # A comparison with NaN is false, so NaN must not look like a diagonal of zeros.
        return jax.tree.map(
            lambda leaf: jnp.where(largest == 0, 1.0, jnp.maximum(leaf, eps * largest)),
            self.diagonal,
        )

    def apply(self, vector: PyTree) -> PyTree:
        """The product M v."""
        return jax.tree.map(lambda entry, leaf: entry * leaf, self.entries, vector)

    def solve(self, vector: PyTree) -> PyTree:
        """The product M^-1 v."""
        return jax.tree.map(lambda entry, leaf: leaf / entry, self.entries, vector)

    def solve_sqrt(self, vector: PyTree) -> PyTree:
        """The product M^-1/2 v."""
        return jax.tree.map(lambda entry, leaf: leaf / jnp.sqrt(entry), self.entries, vector)


class FunctionMetric:
    """M from its product and its solution, for instance the natural metric of a family.

    Parameters
    ----------
    apply, solve : callable
        M v and M^-1 v, symmetric positive definite (trusted, not checked).
    project : callable, optional
        Orthogonal projector P on the subspace where M is defined, such as lower triangular
        matrices; the maps become P M P and P M^-1 P. Then solve with ``projected(operator,
        project)`` and a projected right-hand side: CG cannot remove a residual outside it.
    solve_sqrt : callable, optional
        M^-1/2 v, symmetric.

    Examples
    --------
    >>> FunctionMetric(lambda v: 4.0 * v, lambda v: v / 4.0).solve(8.0)
    2.0
    """

    def __init__(
        self,
        apply: Callable[[PyTree], PyTree],
        solve: Callable[[PyTree], PyTree],
        project: Callable[[PyTree], PyTree] | None = None,
        *,
        solve_sqrt: Callable[[PyTree], PyTree] | None = None,
    ) -> None:
        self.apply = _between(project, apply)
        self.solve = _between(project, solve)
        self.solve_sqrt = None if solve_sqrt is None else _between(project, solve_sqrt)


def _between(
    project: Callable[[PyTree], PyTree] | None, fn: Callable[[PyTree], PyTree]
) -> Callable[[PyTree], PyTree]:
    """P fn P, or fn where there is no projector."""
    if project is None:
        return fn
    return lambda vector: project(fn(project(vector)))


def hutchinson_diagonal(operator: Any, key: jax.Array, num_probes: int = 1) -> PyTree:
    r"""Unbiased estimate of diag(A) from products with random signs.

    .. math:: \mathrm{diag}(A) \approx \frac{1}{S} \sum_{s=1}^S v_s \odot A v_s,
              \qquad v_s \in \{-1, 1\}^D.

    The variance of entry i is :math:`\frac{1}{S} \sum_{j \ne i} A_{ij}^2`: one probe is exact for a
    diagonal A. An estimate can be negative where the true entry is not.

    Parameters
    ----------
    operator : LinearMap
        The map A.
    key : Array
        PRNG key; probe s uses ``fold_in(key, s)``.
    num_probes : int
        S, the number of products.

    Returns
    -------
    pytree
        The estimate of diag(A), in the structure of ``operator.example``.

    Raises
    ------
    InputError
        If ``num_probes`` is below 1.

    References
    ----------
    Bekas, Kokiopoulou, Saad (2007), *An estimator for the diagonal of a matrix*.
    """
    if num_probes < 1:
        raise InputError(f"num_probes is {num_probes}; hutchinson_diagonal() needs at least 1")
    example = operator.example
    leaves, structure = jax.tree.flatten(example)

    def add_probe(number: jax.Array, total: PyTree) -> PyTree:
        keys = jax.random.split(jax.random.fold_in(key, number), len(leaves))
        probe = structure.unflatten(
            jax.random.rademacher(leaf_key, leaf.shape, leaf.dtype)
            for leaf_key, leaf in zip(keys, leaves, strict=True)
        )
        return jax.tree.map(lambda t, v, av: t + v * av, total, probe, operator(probe))

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), example)
    total = jax.lax.fori_loop(0, num_probes, add_probe, zeros)
    return jax.tree.map(lambda leaf: leaf / num_probes, total)


def martens_diagonal(
    squared_gradients: PyTree, damping: ArrayLike, *, exponent: float = 0.75
) -> DiagonalMetric:
    r"""Martens' diagonal preconditioner for damped curvature.

    .. math:: M = \mathrm{diag}\Big(\sum_i \nabla f_i \odot \nabla f_i + \lambda\Big)^\alpha

    Parameters
    ----------
    squared_gradients : pytree
        Sums over examples of squared gradients, entrywise, all >= 0.
    damping : float or Array
        Lambda, the damping of the system that is solved.
    exponent : float
        Alpha in (0, 1]; below one it tempers the extreme entries.

    Returns
    -------
    DiagonalMetric
        The preconditioner M, in the structure of ``squared_gradients``.

    Raises
    ------
    InputError
        If ``exponent`` is outside (0, 1], or ``squared_gradients`` is not of one real floating
        dtype.

    References
    ----------
    Martens (2010), *Deep learning via Hessian-free optimization*, section 4.7.
    """
    if not 0 < exponent <= 1:
        raise InputError(f"exponent is {exponent}; martens_diagonal() needs one in (0, 1]")
    scale = jnp.asarray(damping, trees.real_dtype(squared_gradients, "squared_gradients"))
    return DiagonalMetric(jax.tree.map(lambda leaf: (leaf + scale) ** exponent, squared_gradients))
