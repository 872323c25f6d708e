"""A deterministic problem as a function of one NumPy vector, behind one compiled function.

Steps on the host need value, gradient and a Hessian-vector product and nothing else. All that
belongs to the problem (its metric, and the directions along which the objective does not change)
is inside the compiled function, so that the host works on plain vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from curvi._core.compilation import Cost, SizedJit
from curvi._core.run import check_deadline
from curvi._core.trees import ravel


class Derivatives(NamedTuple):
    """An objective at a point and along a tangent v, as flat vectors in double precision.

    Attributes
    ----------
    value : the objective
    gradient : g
    natural : M^-1 g, with M the natural metric
    product : H v
    natural_product : M^-1 H v
    """

    value: Any
    gradient: Any
    natural: Any
    product: Any
    natural_product: Any

    @property
    def finite(self) -> bool:
        """Whether value and gradient are finite."""
        return bool(np.isfinite(self.value) and np.isfinite(self.gradient).all())


def _evaluate(
    problem: Any, params: PyTree, tangent: PyTree, resources: Any
) -> tuple[Float[Array, ""], Float[Array, "four size"]]:
    sample = problem.sample(resources, jnp.asarray(0, jnp.int32))

    def gradient_and_value(point: PyTree) -> tuple[PyTree, Array]:
        value, gradient = jax.value_and_grad(lambda p: problem.value(p, sample))(point)
        return gradient, value

    def project(vector: PyTree) -> PyTree:
        return problem.project(params, vector)

    (gradient, value), (product, _) = jax.jvp(gradient_and_value, (params,), (project(tangent),))
    covectors = [project(gradient), project(product)]
    metric = problem.metric(params)
    naturals = covectors if metric is None else [project(metric.solve(c)) for c in covectors]
    order = (covectors[0], naturals[0], covectors[1], naturals[1])
    return value, jnp.stack([ravel(vector) for vector in order])


_compiled = SizedJit(_evaluate)


@dataclass(frozen=True, eq=False)
class FlatObjective:
    """The objective of a problem on its fixed sample, for the host."""

    problem: Any
    resources: Any
    like: PyTree
    cost: Cost

    @property
    def dtype(self) -> Any:
        """The precision that the objective is computed in."""
        return jax.tree.leaves(self.like)[0].dtype

    def __call__(self, vector: np.ndarray, tangent: np.ndarray | None = None) -> Derivatives:
        """Evaluate at ``vector`` along ``tangent`` (none: the products are zero)."""
        check_deadline()  # a step can take hundreds of products
        along = np.zeros_like(vector) if tangent is None else tangent
        # A power of two is exact, and keeps single precision away from its limits.
        largest = float(np.max(np.abs(along), initial=0.0))
        usable = np.isfinite(largest) and largest > 0
        scale = 2.0 ** np.round(np.log2(largest)) if usable else 1.0
        value, stacked = _compiled(
            self.cost.numbers,
            problem=self.problem,
            params=self._cut(vector),
            tangent=self._cut(along / scale),
            resources=self.resources,
        )
        gradient, natural, product, natural_product = np.asarray(stacked, np.float64)
        return Derivatives(
            float(value), gradient, natural, scale * product, scale * natural_product
        )

    def ravel(self, params: PyTree) -> np.ndarray:
        """All leaves as one vector in double precision."""
        return np.concatenate(
            [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)]
        )

    def unravel(self, vector: np.ndarray) -> PyTree:
        """The vector as parameters, in the precision of the problem."""
        return jax.tree.map(jnp.asarray, self._cut(vector))

    def rounded(self, vector: np.ndarray) -> np.ndarray:
        """The vector, rounded to the precision of the problem."""
        return vector.astype(self.dtype).astype(np.float64)

    def _cut(self, vector: np.ndarray) -> PyTree:
        leaves, structure = jax.tree.flatten(self.like)
        ends = np.cumsum([leaf.size for leaf in leaves])
        parts = np.split(vector, ends[:-1])
        shaped = [
            part.astype(leaf.dtype).reshape(leaf.shape)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, shaped)
