"""One look at the sampled bound from the host: value, gradient and a Hessian-vector product.

A method that runs on the host needs one compiled function and nothing else. All that belongs to
the family (its metric, and the directions along which q does not change) is inside it, so that
the host works on plain vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from curvi._core.compilation import Cost, SizedJit, cost_of
from curvi._core.trees import ravel
from curvi.families._family import Family, Params
from curvi.objective._elbo import neg_elbo
from curvi.targets import Density

_PASSES = 8  # a product costs about this many evaluations of the log density


class Look(NamedTuple):
    """What one look sees; vectors in the flat order of the parameters.

    ``natural`` is M^-1 g and ``natural_product`` is M^-1 H v, with M the natural metric.
    """

    value: float
    gradient: np.ndarray
    natural: np.ndarray
    product: np.ndarray
    natural_product: np.ndarray


def _look(
    density: Density,
    family: Family,
    params: Params,
    tangent: Params,
    noise: Float[Array, "draws noise"],
    rows: PyTree,
) -> tuple[Float[Array, ""], Float[Array, "four size"]]:
    def gradient_and_value(point: Params) -> tuple[Params, Array]:
        value, gradient = jax.value_and_grad(lambda p: neg_elbo(density, family, p, noise, rows))(
            point
        )
        return gradient, value

    def project(vector: Params) -> Params:
        return family.project(params, vector)

    metric = family.metric(params)
    (gradient, value), (product, _) = jax.jvp(gradient_and_value, (params,), (project(tangent),))
    covectors = [project(gradient), project(product)]
    naturals = [project(metric.solve(covector)) for covector in covectors]
    order = (covectors[0], naturals[0], covectors[1], naturals[1])
    return value, jnp.stack([ravel(vector) for vector in order])


_compiled = SizedJit(_look, static_argnames=("density", "family"))


@lru_cache(maxsize=256)
def _per_draw(density: Density, dimension: int, shapes: Any) -> Cost:
    position = jax.ShapeDtypeStruct((dimension,), density.dtype)
    leaves, structure = shapes
    rows = jax.tree.unflatten(structure, list(leaves))
    return cost_of(density.log_prob, position, rows)


def cost_per_draw(density: Density, dimension: int, rows: PyTree) -> Cost:
    """What one evaluation of the log density costs."""
    leaves, structure = jax.tree.flatten(rows)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    return _per_draw(density, dimension, (shapes, structure))


@dataclass(frozen=True, eq=False)
class Looker:
    """The bound on fixed draws as a function of a flat vector of parameters, for the host."""

    density: Density
    family: Family
    like: Params
    noise: Float[Array, "draws noise"]
    rows: PyTree

    @cached_property
    def cost(self) -> Cost:
        """What one look costs; draws share their operations, and so do not add to them."""
        dimension = self.like.mean.shape[0]
        each = cost_per_draw(self.density, dimension, self.rows)
        numbers = (each.numbers + 2 * dimension) * self.noise.shape[0]
        return Cost(_PASSES * numbers, _PASSES * each.operations)

    def __call__(self, vector: np.ndarray, tangent: np.ndarray | None = None) -> Look:
        """Look from ``vector`` along ``tangent`` (none: the products are zero)."""
        along = np.zeros_like(vector) if tangent is None else tangent
        # A power of two is exact, and keeps single precision away from its limits.
        largest = float(np.max(np.abs(along), initial=0.0))
        usable = np.isfinite(largest) and largest > 0
        scale = 2.0 ** np.round(np.log2(largest)) if usable else 1.0
        value, stacked = _compiled(
            self.cost.numbers,
            density=self.density,
            family=self.family,
            params=cut(vector, self.like),
            tangent=cut(along / scale, self.like),
            noise=self.noise,
            rows=self.rows,
        )
        gradient, natural, product, natural_product = np.asarray(stacked, np.float64)
        return Look(float(value), gradient, natural, scale * product, scale * natural_product)


def joined(params: PyTree) -> np.ndarray:
    """All leaves as one vector in double precision, on the host."""
    return np.concatenate(
        [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)]
    )


def cut(vector: np.ndarray, like: PyTree) -> Any:
    """The inverse of :func:`joined`, in the shapes and the precision of ``like``."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = np.split(vector, ends[:-1])
    shaped = [
        part.astype(leaf.dtype).reshape(leaf.shape)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, shaped)
