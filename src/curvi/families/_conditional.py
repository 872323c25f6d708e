r"""Globals first, then locals whose spread depends on them: families for posteriors with groups.

.. math::

    z = \mu + R\,v(\epsilon), \qquad v_g = \epsilon_g, \qquad
    v_l = \exp(B \epsilon_g - |B|^2)\,\epsilon_l

with R lower triangular in the order (globals, locals) and :math:`|B|^2` the sum of squares of a
row. The exponent is centred so that v has mean zero and the identity as covariance, whatever B is:
mean and covariance of q are mu and R R' as for a Gaussian. B is what a Gaussian lacks, the way in
which the scale of a local coordinate follows the globals (the funnel of a hierarchical model).
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi._core.errors import InputError
from curvi.families._arrow import Arrow
from curvi.families._family import Family, Params
from curvi.families._scales import LowerTriangular, Matrix, Scale, Vector
from curvi.linalg import FunctionMetric, Metric


def leaf_coordinates(position: Any) -> dict[str, np.ndarray]:
    """The flat coordinates of every leaf, in the shape of the leaf, by its name."""
    coordinates, begin = {}, 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(position)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        count = int(np.size(leaf))
        coordinates[name] = np.arange(begin, begin + count).reshape(np.shape(leaf))
        begin += count
    return coordinates


def resolved(family: Conditional, position: Any) -> Conditional:
    """The family with the coordinates of a position: ``order``, and the sizes of its blocks.

    Raises
    ------
    InputError
        As :class:`Conditional` says.
    """
    leaves = leaf_coordinates(position)
    dimension = sum(index.size for index in leaves.values())
    first = coordinates_of(family.globals_, leaves, dimension)
    _refuse_repeats(first)
    if family.groups is None:
        rest = np.setdiff1d(np.arange(dimension), first)
        order = tuple(int(i) for i in (*first, *rest))
        return replace(family, globals_=order[: len(first)], order=order)
    blocks, parts = [], [first]
    for names in family.groups:
        index = _group(names, leaves)
        blocks.append(index.shape)
        parts.append(index.ravel())
    joined = np.concatenate(parts)
    _refuse_repeats(joined)
    if len(joined) < dimension:
        missing = [name for name, index in leaves.items() if not np.isin(index, joined).all()]
        raise InputError(
            f"{', '.join(missing)} belongs to neither globals_ nor groups; name every leaf once"
        )
    return replace(family, order=tuple(int(i) for i in joined), blocks=tuple(blocks))


def coordinates_of(
    names: tuple[str | int, ...], leaves: dict[str, np.ndarray], dimension: int
) -> np.ndarray:
    """The flat coordinates of leaves and indices; InputError for one that there is not."""
    return np.concatenate([np.empty(0, int), *_each_of(names, leaves, dimension)])


def _each_of(
    names: tuple[str | int, ...], leaves: dict[str, np.ndarray], dimension: int
) -> Iterator[np.ndarray]:
    for name in names:
        if isinstance(name, int):
            if not 0 <= name < dimension:
                raise InputError(f"globals_ has {name}, but there are {dimension} coordinates")
            yield np.asarray([name])
        else:
            yield _leaf(name, leaves).ravel()


def _leaf(name: str, leaves: dict[str, np.ndarray]) -> np.ndarray:
    if name not in leaves:
        raise InputError(f"the position has no leaf {name!r}; it has {', '.join(leaves)}")
    return leaves[name]


def _group(names: tuple[str, ...], leaves: dict[str, np.ndarray]) -> np.ndarray:
    """Coordinates of one kind of groups, a row for each group."""
    parts = []
    for name in (names,) if isinstance(names, str) else names:
        index = _leaf(name, leaves)
        if index.ndim == 0:
            raise InputError(f"leaf {name!r} is a scalar; a leaf of groups has them as first axis")
        parts.append(index.reshape(len(index), -1))
    if len({len(part) for part in parts}) > 1:
        counts = ", ".join(f"{n} has {len(p)}" for n, p in zip(names, parts, strict=True))
        raise InputError(f"leaves of one kind of groups differ in their number: {counts}")
    return np.concatenate(parts, axis=1)


def _refuse_repeats(order: np.ndarray) -> None:
    if len(np.unique(order)) < len(order):
        raise InputError("a coordinate is named twice in globals_ and groups; name every leaf once")


_WARP_INFORMATION = 2.0  # Fisher information of the logarithm of a scale


@dataclass(frozen=True)
class Warped(Scale):
    """The linear part of :class:`Conditional`: R in the order (globals, locals), and B beside it.

    The parameters are ``{"scale": those of R, "warp": B}``.

    Parameters
    ----------
    order : sequence of int
        The coordinates, globals first.
    num_globals : int
        How many of them are global.
    inner : Scale
        The structure of R.
    """

    order: Any
    num_globals: int
    inner: Scale

    @property
    def _places(self) -> np.ndarray:
        """Where each coordinate stands in the order."""
        return np.argsort(np.asarray(self.order))

    @property
    def is_full(self) -> bool:  # type: ignore[override]
        """Whether R R' can be any covariance."""
        return False

    def min_fixed_draws(self, dimension: int) -> int:
        """As for R, and one more for each column of B."""
        return self.inner.min_fixed_draws(dimension) + self.num_globals

    def init(self, sd: Vector) -> dict[str, Any]:
        """R diagonal and B zero."""
        if sd.shape[0] != len(self.order):
            raise InputError(
                f"the position has {sd.shape[0]} coordinate(s) and the structure of Conditional "
                f"{len(self.order)}; give it the globals and groups of this position"
            )
        warp = jnp.zeros((sd.shape[0] - self.num_globals, self.num_globals), sd.dtype)
        return {"scale": self.inner.init(sd[np.asarray(self.order)]), "warp": warp}

    def apply(self, params: dict[str, Any], noise: Vector) -> Vector:
        """R v(epsilon), in the order of the position."""
        return self.inner.apply(params["scale"], self.warped(params, noise))[self._places]

    def log_scales(self, params: dict[str, Any], noise: Vector) -> Float[Array, " locals"]:
        """``B epsilon_g - |B|^2``."""
        warp = params["warp"]
        return warp @ noise[: self.num_globals] - jnp.sum(warp**2, axis=1)

    def warped(self, params: dict[str, Any], noise: Vector) -> Vector:
        """V."""
        own = jnp.exp(self.log_scales(params, noise)) * noise[self.num_globals :]
        return jnp.concatenate([noise[: self.num_globals], own])

    def log_det(self, params: dict[str, Any]) -> Float[Array, ""]:
        """``E log |det dz / d epsilon| = log det R - sum B^2``."""
        return self.inner.log_det(params["scale"]) - jnp.sum(params["warp"] ** 2)

    def solve(self, params: dict[str, Any], centred: Vector) -> Vector:
        """The epsilon that is mapped to a centred position."""
        v = self.inner.solve(params["scale"], centred[np.asarray(self.order)])
        own = jnp.exp(-self.log_scales(params, v)) * v[self.num_globals :]
        return jnp.concatenate([v[: self.num_globals], own])

    def diagonal_and_factor(self, params: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """Of R R', the rows in the order of the position."""
        diagonal, factor = self.inner.diagonal_and_factor(params["scale"], xp)
        places = self._places
        return (
            None if diagonal is None else diagonal[places],
            None if factor is None else factor[places],
        )

    def variance(self, params: dict[str, Any]) -> Vector:
        """Diagonal of R R'."""
        return self.inner.variance(params["scale"])[self._places]

    def covariance(self, params: dict[str, Any]) -> Matrix:
        """R R'."""
        places = self._places
        return self.inner.covariance(params["scale"])[places][:, places]

    def mean_metric(self, params: dict[str, Any]) -> Metric:
        """``(R R')^-1``."""
        inner, order = self.inner.mean_metric(params["scale"]), np.asarray(self.order)
        places = self._places
        return FunctionMetric(
            lambda v: inner.apply(v[order])[places], lambda v: inner.solve(v[order])[places]
        )

    def scale_metric(self, params: dict[str, Any]) -> Metric:
        """That of R, and ``2 I`` for B: exact where B is zero."""
        inner = self.inner.scale_metric(params["scale"])

        def both(scale: Any, by: float) -> Any:
            return lambda t: {"scale": scale(t["scale"]), "warp": by * t["warp"]}

        return FunctionMetric(
            both(inner.apply, _WARP_INFORMATION), both(inner.solve, 1 / _WARP_INFORMATION)
        )

    def project(self, params: dict[str, Any], tangent: dict[str, Any]) -> dict[str, Any]:
        """As for R."""
        return {**tangent, "scale": self.inner.project(params["scale"], tangent["scale"])}

    def to_raw(self, params: dict[str, Any]) -> dict[str, Any]:
        """The entries of R; B as it is."""
        return {**params, "scale": self.inner.to_raw(params["scale"])}

    def from_raw(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Back from the entries of R."""
        return {**raw, "scale": self.inner.from_raw(raw["scale"])}


class WarpedGaussian(Family):
    """A family whose scale is :class:`Warped`."""

    @property
    @abc.abstractmethod
    def scale(self) -> Warped:
        """R, and B."""

    def noise_log_prob(self, params: Params, noise: Vector) -> Float[Array, ""]:
        """``log q`` where the noise is mapped to."""
        scale = self.scale
        linear = scale.inner.log_det(params.scale_params["scale"])
        volume = linear + jnp.sum(scale.log_scales(params.scale_params, noise))
        return self.base.log_prob(noise) - volume

    def log_prob(self, params: Params, z: Vector) -> Float[Array, ""]:
        """``log q(z)``."""
        noise = self.scale.solve(params.scale_params, z - params.mean)
        return self.noise_log_prob(params, noise)


@dataclass(frozen=True)
class Conditional(WarpedGaussian):
    """Globals, and locals whose mean and spread depend on them.

    For posteriors with groups: the globals (means, logarithms of group sds) have a full
    covariance, every local coordinate a mean that is linear in them and a scale that is
    log-linear in them. Without ``groups`` the locals have a full covariance too; with ``groups``
    those of different groups are independent given the globals, and time and memory are linear
    in the number of groups.

    Parameters
    ----------
    globals_ : tuple
        The global coordinates: names of leaves of the position, or indices of the flat position.
    groups : tuple of tuple of str, optional
        For each kind of group the names of its leaves, whose leading axis counts the groups: one
        ``("intercept", "slope")`` says that intercept[j] and slope[j] belong together.
    order, blocks : tuple
        Left out; :meth:`on` fills them in: the coordinates, globals first, and for each kind of
        groups their number and width.

    Raises
    ------
    InputError
        Where a name is unknown, a leaf is left out or named twice, or leaves of a group differ in
        their number of groups.

    Examples
    --------
    >>> import curvi, jax.numpy as jnp
    >>> family = curvi.Conditional(globals_=("log_sd",))
    >>> position = {"log_sd": jnp.zeros(()), "effect": jnp.zeros(3)}
    >>> family.on(position).order
    (3, 0, 1, 2)
    """

    globals_: tuple[str | int, ...]
    groups: tuple[tuple[str, ...], ...] | None = None
    order: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()

    def on(self, position: Any) -> Conditional:
        """The family with the coordinates of a position in place of names."""
        if self.order:
            return self
        return resolved(self, position)

    @property
    def scale(self) -> Warped:
        """R in the order (globals, locals), and B."""
        if not self.order:
            raise InputError("Conditional needs a position; call family.on(position) first")
        count = len(self.order) - sum(number * width for number, width in self.blocks)
        if self.blocks:
            return Warped(self.order, count, Arrow(count, self.blocks))
        return Warped(self.order, len(self.globals_), LowerTriangular())

    def __repr__(self) -> str:
        names = ", ".join(str(name) for name in self.globals_)
        kinds = "" if self.groups is None else f", {len(self.groups)} kind(s) of groups"
        return f"Conditional({names}{kinds})"
