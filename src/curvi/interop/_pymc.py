"""PyMC and bambi models as targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi._core.errors import InputError, optional_import
from curvi._core.trees import precision_of, usual_promotion
from curvi.interop._checks import Shapes, check_position, run_checked, shapes_of
from curvi.interop._pymc_standardise import (
    PURPOSE,
    Graph,
    StandardSites,
    standard_sites,
    translated,
)
from curvi.interop._standardise import SUFFIX
from curvi.targets import Centring, Degrees, Labels, Target


def from_pymc(model: Any) -> Target:
    r"""The posterior of a PyMC model.

    The density is PyMC's own, over its transformed variables ("value variables", such as
    ``sigma_log__``), log Jacobians included, compiled for JAX by PyTensor. Results hold the
    variables of the model by name, on their natural scale, deterministic ones included; axes
    keep their ``dims`` and ``coords`` in :meth:`FitResult.to_arviz`.

    A variable such as ``theta ~ Normal(mu, tau)`` whose scale is latent is inferred as
    :math:`\theta = \mu + \tau \epsilon`, however the model writes it: the position holds
    ``theta_standardised`` in place of ``theta``, the answer ``theta`` as before. Where the data
    say much about it, the ladder of :func:`curvi.fit` goes on with a form that is centred by
    degrees, element by element.

    The start is the model's initial point. The fit runs in PyTensor's ``floatX`` (float64
    unless configured otherwise), whatever JAX's own default is. Data containers are read now:
    after ``pm.set_data`` call ``from_pymc`` again.

    Parameters
    ----------
    model : pymc.Model
        The object of ``with pm.Model()``.

    Returns
    -------
    Target
        To be given to :func:`curvi.fit`. It can be copied and pickled.

    Raises
    ------
    InputError
        For anything but a PyMC model, discrete or no free variables, minibatches, an operation
        that PyTensor cannot translate to JAX, or a log density that is not finite around the
        initial point.
    MissingDependencyError
        If PyMC is not installed.

    Notes
    -----
    PyTensor's JAX backend wants to set JAX's precision, and PyMC's the number of host devices,
    for the whole process when they are first imported. curvi keeps both as they are; before
    using PyMC's own JAX samplers afterwards, enable float64 in JAX yourself.

    Examples
    --------
    >>> import pymc as pm  # doctest: +SKIP
    >>> with pm.Model() as model:  # doctest: +SKIP
    ...     rate = pm.Gamma("rate", 3, 1)
    ...     pm.Poisson("counts", rate, observed=[3, 5, 2])
    >>> curvi.fit(curvi.from_pymc(model)).mean["rate"]  # doctest: +SKIP
    """
    pymc = optional_import("pymc", extra="pymc", purpose=PURPOSE)
    if not isinstance(model, pymc.Model):
        raise InputError(
            f"model is a {type(model).__name__}; give a pymc.Model, the object of `with pm.Model()`"
        )
    _check_variables(model)
    from pymc.util import get_default_varnames

    names = tuple(variable.name for variable in model.value_vars)
    start = {name: np.asarray(value) for name, value in model.initial_point(0).items()}
    dtype = np.result_type(*start.values())
    with precision_of(dtype), usual_promotion():
        # Free variables on their natural scale, and deterministic ones.
        outputs = list(get_default_varnames(model.unobserved_value_vars, False))
        sites = standard_sites(model)
        values = {name: jnp.asarray(start[name], dtype) for name in names}
        none = {name + SUFFIX: np.zeros(values[name].shape) for name in sites.inferred}
        forms = PyMCForms(
            translated(model, [model.logp()]),
            translated(model, outputs),
            tuple(v.name for v in outputs),
            sites,
            sites.standardised(values, none),
            _labels(model),
        )
        feasible = _feasible(forms.log_density(none), forms.start, pymc)
        return replace(forms, start=feasible).target(none)


def _check_variables(model: Any) -> None:
    if model.discrete_value_vars:
        names = ", ".join(repr(variable.name) for variable in model.discrete_value_vars)
        raise InputError(
            f"the variables {names} are discrete and not observed; a Gaussian cannot approximate "
            "them: sum them out, for example with pymc_extras.marginalize, or observe them"
        )
    if not model.value_vars:
        raise InputError("the model has no free variable: everything in it is observed")


@dataclass(frozen=True)
class PyMCForms(Centring):
    """The forms of a model between its own variables and their noise.

    Parameters
    ----------
    density, outputs : Graph
        Log density and answers as functions of the value variables.
    output_names : tuple of str
        Names of the answers.
    sites : StandardSites
        The variables that are inferred as noise.
    start : dict
        A position.
    labels : Labels
        Names of axes and data.
    """

    density: Graph
    outputs: Graph
    output_names: tuple[str, ...]
    sites: StandardSites
    start: dict[str, Array]
    labels: Labels

    @property
    def precisions(self) -> dict[str, float]:  # type: ignore[override]
        """That of standard noise."""
        return dict.fromkeys((name + SUFFIX for name in self.sites.inferred), 1.0)

    def log_density(self, degrees: Degrees) -> Callable[..., Any]:
        """The log density of a position with these degrees."""
        return partial(_log_density, self.density, self.sites, shapes_of(self.start), degrees)

    def target(self, degrees: Degrees) -> Target:
        """The target with these degrees."""
        constrain = partial(_constrain, self.outputs, self.output_names, self.sites, degrees)
        centring = self if self.sites.sites else None
        return Target(self.log_density(degrees), self.start, constrain, self.labels, centring)

    def moved(
        self, position: dict[str, Array], degrees: Degrees, others: Degrees
    ) -> dict[str, Array]:
        """The same place with other degrees."""
        with usual_promotion():
            return self.sites.standardised(self.sites.restored(position, degrees)[0], others)


def _log_density(
    graph: Graph,
    sites: StandardSites,
    shapes: Shapes,
    degrees: Degrees,
    position: dict[str, Array],
) -> Float[Array, ""]:
    check_position(position, shapes)
    with usual_promotion():
        values, log_det = sites.restored(position, degrees)
        return jnp.asarray(graph.function(*(values[name] for name in sites.names))[0]) + log_det


def _constrain(
    graph: Graph,
    output_names: tuple[str, ...],
    sites: StandardSites,
    degrees: Degrees,
    position: dict[str, Array],
) -> dict[str, Array]:
    with usual_promotion():
        values, _ = sites.restored(position, degrees)
        outputs = graph.function(*(values[name] for name in sites.names))
        return {
            name: jnp.asarray(value, jnp.result_type(value, jnp.float32))
            for name, value in zip(output_names, outputs, strict=True)
        }


def _feasible(
    log_density: Callable[..., Any], position: dict[str, Array], pymc: ModuleType, *,
    attempts: int = 20,
) -> dict[str, Array]:  # fmt: skip
    """The initial point, or a position near it where the log density is finite.

    ``attempts``: positions tried around an initial point where the log density is not finite.
    """
    value = run_checked(partial(log_density, position), pymc)
    compiled = jax.jit(log_density)
    trial = position
    for attempt in range(attempts):
        if np.isfinite(value if trial is position else compiled(trial)):
            return trial
        rng = np.random.default_rng(attempt)
        trial = {
            name: leaf + jnp.asarray(rng.uniform(-1, 1, leaf.shape), leaf.dtype)
            for name, leaf in position.items()
        }
    raise InputError(
        f"the log density is {value} at the model's initial point and not finite "
        "around it; check the model with model.debug(), or give initval to a variable"
    )


def _labels(model: Any) -> Labels:
    from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_observations

    coords, dims = coords_and_dims_for_inferencedata(model)
    observed = {name: np.asarray(value) for name, value in find_observations(model).items()}
    return Labels({name: tuple(axes) for name, axes in dims.items()}, dict(coords), observed)


def from_bambi(model: Any) -> Target:
    """The posterior of a bambi model.

    The model is built if it has not been, and its PyMC model is read as :func:`from_pymc` reads
    it: results hold bambi's parameters by name, on their natural scale, deterministic ones
    included. bambi centres the columns of common effects, so that its ``Intercept`` belongs to
    the centred columns inside the target.

    Parameters
    ----------
    model : bambi.Model
        With or without ``model.build()``; it need not be fitted.

    Returns
    -------
    Target
        To be given to :func:`curvi.fit`.

    Raises
    ------
    InputError
        For anything but a bambi model, a model that bambi cannot build, and what
        :func:`from_pymc` refuses.
    MissingDependencyError
        If bambi is not installed.

    See Also
    --------
    curvi.MixedModel : The same class of models, by a method made for it.

    Examples
    --------
    >>> import bambi  # doctest: +SKIP
    >>> model = bambi.Model("y ~ x + (1 | g)", table)  # doctest: +SKIP
    >>> curvi.fit(curvi.from_bambi(model)).mean["x"]  # doctest: +SKIP
    """
    bambi = optional_import("bambi", extra="bambi", purpose="curvi.from_bambi")
    if not isinstance(model, bambi.Model):
        raise InputError(
            f"model is a {type(model).__name__}; give a bambi.Model such as "
            "bambi.Model('y ~ x + (1 | g)', table)"
        )
    if not model.built:
        model.build()
    return from_pymc(model.backend.model)
