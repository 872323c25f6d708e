r"""Variables of a PyMC model whose scale is latent, inferred as standard noise.

What :mod:`curvi.interop._standardise` does to a NumPyro model by its handlers, done to the value
variables of a PyMC model: with location m and scale s as graphs of the other variables and a degree
of centring :math:`\lambda`,

.. math::

   x = m + s^{1 - \lambda} (y - \lambda m), \qquad
   \log p(y, \ldots) = \log p(x, \ldots) + (1 - \lambda) \log s.

A multivariate variable is centred or not, each of its vectors as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from curvi._core.errors import InputError, optional_import
from curvi._core.trees import precision_of, usual_promotion
from curvi.interop._standardise import SUFFIX
from curvi.targets import Degrees

PURPOSE = "curvi.from_pymc"


class Graph(NamedTuple):
    """A PyTensor graph and its translation to JAX, which is made anew when it is unpickled."""

    function: Callable[..., Any]
    inputs: list[Any]
    outputs: list[Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return compiled_graph, (self.inputs, self.outputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # nothing in it changes


def compiled_graph(inputs: list[Any], outputs: list[Any]) -> Graph:
    """Translate in the precision of the inputs, also when a pickle is loaded.

    That is the precision of the constants in the graph.
    """
    with precision_of(np.result_type(*(variable.dtype for variable in inputs))), usual_promotion():
        return Graph(_jax_backend().get_jaxified_graph(inputs, outputs), inputs, outputs)


def translated(model: Any, outputs: list[Any]) -> Graph:
    """Outputs as functions of the value variables, with data containers at their present values."""
    try:
        return compiled_graph(model.value_vars, _jax_backend()._replace_shared_variables(outputs))
    except (NotImplementedError, ValueError) as error:
        raise InputError(
            f"PyTensor cannot express this model in JAX ({error}); give whole arrays in place of "
            "minibatches, and avoid operations that have no JAX version"
        ) from error


def _jax_backend() -> Any:
    """PyMC's JAX module, imported in a thread.

    A new thread sees the precision of the process, and not one that is local to the caller.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_import_backend).result()


def _import_backend() -> Any:
    """Import PyMC's JAX module without letting it configure the whole process.

    PyTensor sets JAX's precision from its own ``floatX`` when its JAX backend is imported; with
    ``floatX`` equal to JAX's present precision that changes nothing. PyMC asks XLA for a hundred
    host devices through the environment.
    """
    from pytensor.configdefaults import config

    wide = jax.config.values["jax_enable_x64"]
    flags = os.environ.get("XLA_FLAGS")
    try:
        with config.change_flags(floatX="float64" if wide else "float32"):
            return optional_import("pymc.sampling.jax", extra="pymc", purpose=PURPOSE)
    finally:
        os.environ.pop("XLA_FLAGS", None)
        os.environ.update({} if flags is None else {"XLA_FLAGS": flags})


# Where location and scale are among the parameters of a distribution. None of these has a
# transform, so that its value variable is the variable itself.
_LOCATED = {
    "NormalRV": (0, 1), "CauchyRV": (0, 1), "LaplaceRV": (0, 1), "LogisticRV": (0, 1),
    "GumbelRV": (0, 1), "StudentTRV": (1, 2), "MvNormalRV": (0, 1),
}  # fmt: skip


class _Site(NamedTuple):
    """A variable, and its location and scale; the covariance where it is multivariate."""

    name: str
    is_matrix: bool
    graph: Graph


class StandardSites(NamedTuple):
    """The variables that are inferred as noise, each after those that it depends on."""

    names: tuple[str, ...]
    sites: tuple[_Site, ...]

    @property
    def inferred(self) -> list[str]:
        """Names of the variables that are inferred as noise."""
        return [site.name for site in self.sites]

    def restored(
        self, position: dict[str, Array], degrees: Degrees
    ) -> tuple[dict[str, Array], Array]:
        """Values of the variables, and the log determinant of the map from the position."""
        values = {name: position[name] for name in self.names if name in position}
        log_det = jnp.zeros((), next(iter(position.values())).dtype)
        for site in self.sites:
            noise = position[site.name + SUFFIX]
            location, factor = self._placed(site, values)
            degree = jnp.asarray(degrees[site.name + SUFFIX], noise.dtype)
            if site.is_matrix:
                whole = _is_whole(degree)
                value = location + jnp.matmul(factor, noise[..., None])[..., 0]
                values[site.name] = jnp.where(whole, noise, value)
                logs = jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)) * (1 - whole)
            else:
                apart = noise - degree * location
                values[site.name] = location + factor ** (1 - degree) * apart
                logs = (1 - degree) * jnp.log(factor)
            log_det += jnp.sum(jnp.broadcast_to(logs, noise.shape))
        return values, log_det

    def standardised(self, values: dict[str, Array], degrees: Degrees) -> dict[str, Array]:
        """The position that holds these values."""
        position = {name: values[name] for name in self.names}
        for site in self.sites:
            location, factor = self._placed(site, values)
            value = position.pop(site.name)
            degree = jnp.asarray(degrees[site.name + SUFFIX], value.dtype)
            apart = value - location
            if site.is_matrix:
                factor = jnp.broadcast_to(factor, (*apart.shape[:-1], *factor.shape[-2:]))
                noise = jnp.linalg.solve(factor, apart[..., None])[..., 0]
                noise = jnp.where(_is_whole(degree), value, noise)
            else:
                noise = degree * location + factor ** (degree - 1) * apart
            position[site.name + SUFFIX] = noise
        return position

    def _placed(self, site: _Site, values: dict[str, Array]) -> tuple[Array, Array]:
        """Location and scale; of the variables that come later nothing is read."""
        some = next(iter(values.values()))
        inputs = [values.get(name, some) for name in self.names]
        location, scale = site.graph.function(*inputs)
        return location, jnp.linalg.cholesky(scale) if site.is_matrix else scale


def _is_whole(degree: Array) -> Array:
    return jnp.round(jnp.mean(degree, axis=-1, keepdims=True)) > 0


def standard_sites(model: Any) -> StandardSites:
    """The variables of a known location-scale family whose scale depends on another variable.

    One whose noise would have the name of another variable keeps its own form.
    """
    from pytensor.graph.traversal import ancestors

    sites = []
    names = tuple(value.name for value in model.value_vars)
    for variable in model.free_RVs:
        loc_scale = _location_and_scale(variable)
        if loc_scale is None or model.rvs_to_transforms.get(variable) is not None:
            continue
        name = model.rvs_to_values[variable].name
        if name + SUFFIX in names:
            continue
        others = set(model.free_RVs) - {variable}
        if others.isdisjoint(ancestors([loc_scale[1]])):
            continue
        graph = translated(model, model.replace_rvs_by_values(list(loc_scale)))
        sites.append(_Site(name, _kind(variable) == "MvNormalRV", graph))
    return StandardSites(names, tuple(sites))


def _kind(variable: Any) -> str:
    return type(variable.owner.op).__name__


def _location_and_scale(variable: Any) -> tuple[Any, Any] | None:
    places = _LOCATED.get(_kind(variable))
    if places is None:
        return None
    params = variable.owner.op.dist_params(variable.owner)
    return params[places[0]], params[places[1]]
