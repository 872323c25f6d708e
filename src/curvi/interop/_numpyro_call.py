"""A NumPyro model with its arguments: its log density, its sites, and its other forms."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi._core.errors import InputError
from curvi._core.trees import usual_promotion
from curvi.interop import _checks as checks
from curvi.interop._standardise import MOVED, SUFFIX, with_standard_sites
from curvi.targets import AbstractTarget, Centring, DataTarget, Degrees, Labels, Target

Position = dict[str, Array]
Trace = dict[str, Any]


class Plate(NamedTuple):
    """A plate that the model subsamples."""

    name: str
    size: int


class Call(NamedTuple):
    """A model with its arguments."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sites: checks.Shapes = ()  # of the unconstrained position
    standard: tuple[str, ...] = ()  # sites that are inferred as noise
    degrees: Degrees | None = None  # of their centring
    whole: tuple[Plate, ...] = ()  # subsampled plates of which all rows are used

    def seeded(self, others: Degrees | None = None) -> Any:
        """The model with a fixed key, since a density must not depend on chance."""
        from numpyro import handlers

        model = self.model
        if self.whole:
            rows = {plate.name: jnp.arange(plate.size) for plate in self.whole}
            model = handlers.substitute(model, data=rows)
        if self.standard:
            model = with_standard_sites(model, self.standard, self.degrees, others)
        return handlers.seed(model, jax.random.key(0))

    def trace(self, strategy: Callable[..., Any], data: Position) -> Trace:
        """Run the model once, its latent sites set by an initialisation strategy of NumPyro."""
        from numpyro import handlers

        started = handlers.substitute(self.seeded(), substitute_fn=strategy)
        traced = handlers.trace(handlers.substitute(started, data=data))
        return dict(traced.get_trace(*self.args, **self.kwargs))


@contextmanager
def quiet_numpyro() -> Iterator[None]:
    """JAX's usual promotion, and no warning where a plate is given all or other rows on purpose."""
    with usual_promotion(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="subsample_size does not match")
        yield


@dataclass(frozen=True)
class NumPyroForms(Centring):
    """The forms of a model between its own sites and their noise.

    Parameters
    ----------
    call : Call
        The model, with the sites that are inferred as noise.
    plates : mapping
        Sizes of the plates that it subsamples.
    start : mapping
        An unconstrained position.
    labels : Labels
        Names of axes and data.
    precisions : mapping
        Of the noise of every such site, before any data.
    """

    call: Call
    plates: Mapping[str, int]
    start: Mapping[str, Any]
    labels: Labels
    precisions: Mapping[str, float]

    def target(self, degrees: Degrees) -> AbstractTarget:
        """The target with these degrees."""
        call = self.call._replace(degrees=degrees)
        constrain = partial(_constrain, call, self.plates)
        centring = self if self.precisions else None
        if not self.plates:
            density = partial(_log_density, call)
            return Target(density, self.start, constrain, self.labels, centring)
        plate = Plate(*next(iter(self.plates.items())))
        row, prior = partial(_row_log_likelihood, call, plate), partial(_log_prior, call, plate)
        rows = np.arange(plate.size)
        return DataTarget(row, rows, prior, self.start, constrain, self.labels, centring)

    def moved(self, position: Position, degrees: Degrees, others: Degrees) -> Position:
        """The same place with other degrees."""
        from numpyro.distributions import biject_to

        trace = _trace_at(self.call._replace(degrees=degrees), self.plates, position, others)
        values = dict(position)
        for name in self.call.standard:
            support = trace[name + SUFFIX]["fn"].support
            values[name + SUFFIX] = biject_to(support).inv(trace[name + MOVED]["value"])
        return values


def _trace_at(call: Call, plates: Mapping[str, int], position: Position, others: Degrees) -> Trace:
    """A trace of the model at an unconstrained position, all rows included."""
    import numpyro.distributions as dist
    from numpyro import handlers

    rows = {name: jnp.arange(size) for name, size in plates.items()}

    def value_of(site: dict[str, Any]) -> Array | None:
        if site["type"] == "sample" and site["name"] in position:
            return dist.biject_to(site["fn"].support)(position[site["name"]])
        return rows.get(site["name"])

    with quiet_numpyro():
        placed = handlers.substitute(call.seeded(others), substitute_fn=value_of)
        return dict(handlers.trace(placed).get_trace(*call.args, **call.kwargs))


def _log_density(call: Call, position: Position) -> Float[Array, ""]:
    from numpyro.infer.util import potential_energy

    checks.check_position(position, call.sites)
    with quiet_numpyro():
        return jnp.negative(potential_energy(call.seeded(), call.args, call.kwargs, position))


def _constrain(call: Call, plates: Mapping[str, int], position: Position) -> Position:
    from numpyro import handlers
    from numpyro.infer.util import constrain_fn

    checks.check_position(position, call.sites)
    rows = {name: jnp.arange(size) for name, size in plates.items()}
    hidden = [f"{name}{SUFFIX}" for name in call.standard]
    with quiet_numpyro():
        model = handlers.substitute(call.seeded(), data=rows)
        values = constrain_fn(model, call.args, call.kwargs, position, return_deterministic=True)
        return {name: _floating(value) for name, value in values.items() if name not in hidden}


def _floating(value: Any) -> Array:
    """As a floating-point array: an integer deterministic site has no mean."""
    array = jnp.asarray(value)
    is_floating = jnp.issubdtype(array.dtype, jnp.floating)
    return array if is_floating else array.astype(jnp.result_type(float))


def _row_log_likelihood(
    call: Call, plate: Plate, position: Position, rows: Array
) -> Float[Array, " rows"]:
    return log_probs(call, plate, position, rows)[0]


def _log_prior(call: Call, plate: Plate, position: Position) -> Float[Array, ""]:
    return log_probs(call, plate, position, jnp.zeros(1, jnp.int32))[1]


def log_probs(
    call: Call, plate: Plate, position: Position, rows: Array
) -> tuple[Float[Array, " rows"], Float[Array, ""]]:
    """Log probability of each row of the plate, and of everything outside it."""
    import numpyro.distributions as dist
    from numpyro import handlers
    from numpyro.infer.util import compute_log_probs

    checks.check_position(position, call.sites)
    jacobians: Position = {}

    def replace_site(site: dict[str, Any]) -> Array | None:
        name = site["name"]
        if site["type"] == "plate" and name == plate.name:
            return rows
        if site["type"] != "sample" or name not in position:
            return None
        transform = dist.biject_to(site["fn"].support)
        value = transform(position[name])
        jacobians[name] = jnp.sum(transform.log_abs_det_jacobian(position[name], value))
        return value

    with quiet_numpyro():
        replaced = handlers.substitute(call.seeded(), substitute_fn=replace_site)
        log_probs, trace = compute_log_probs(
            replaced, call.args, call.kwargs, {}, sum_log_prob=False
        )
        if missing := set(position) - set(jacobians):
            raise InputError(f"the sites {sorted(missing)} were not reached with other rows")
        count = rows.shape[0]
        inside, outside = jnp.zeros(count, dtype_of(position)), sum(jacobians.values())
        for name, value in log_probs.items():
            frames = [f for f in trace[name]["cond_indep_stack"] if f.name == plate.name]
            if not frames:
                outside = outside + jnp.sum(value)
                continue
            if value.shape[frames[0].dim] != count:
                raise InputError(
                    f"site {name!r} has {value.shape[frames[0].dim]} rows where plate "
                    f"{plate.name!r} chose {count}; index its data with the plate: "
                    "`with numpyro.plate(...) as rows`, then obs=y[rows]"
                )
            per_row = jnp.moveaxis(value, frames[0].dim, 0).reshape(count, -1).sum(axis=1)
            inside = inside + per_row * (count / plate.size)  # undo the plate's own scale
        return inside, jnp.asarray(outside, inside.dtype)


def dtype_of(position: Position) -> Any:
    """The precision of a position."""
    return next(iter(position.values())).dtype


def is_latent(site: dict[str, Any]) -> bool:
    """Whether a site is inferred."""
    return site["type"] == "sample" and not site["is_observed"]


def is_data(site: dict[str, Any]) -> bool:
    """Whether a site holds observed numbers, as opposed to a factor."""
    return site["type"] == "sample" and site["is_observed"] and np.size(site["value"]) > 0


def latent_sites(trace: Trace) -> list[str]:
    """Names of the latent sites, each of which must have a density over the reals."""
    from numpyro.distributions import Delta

    latent = []
    for name, site in trace.items():
        if site["type"] in ("param", "mutable"):
            raise InputError(
                f"site {name!r} is a numpyro.{site['type']}: curvi infers distributions, not point "
                "estimates; give it a prior with numpyro.sample, or fix it with "
                "numpyro.handlers.substitute"
            )
        if not is_latent(site):
            continue
        if site["fn"].support.is_discrete:
            raise InputError(
                f"site {name!r} is discrete and not observed; a Gaussian cannot approximate it: "
                "sum it out, for example with MixtureSameFamily, or observe it"
            )
        if isinstance(site["fn"], Delta):
            raise InputError(f"site {name!r} is a Delta; use numpyro.deterministic for it")
        latent.append(name)
    if not latent:
        raise InputError("the model has no latent site: every sample statement is observed")
    return latent


def subsampled_plates(trace: Trace) -> dict[str, int]:
    """Name and full size of every plate that the model subsamples."""
    plates = {name: site["args"] for name, site in trace.items() if site["type"] == "plate"}
    return {name: a[0] for name, a in plates.items() if a[1] is not None and a[1] != a[0]}


def labels_of(trace: Trace, observed: dict[str, np.ndarray]) -> Labels:
    """Plates name the axes of the sites inside them."""
    dims = {}
    for name, site in trace.items():
        if site["type"] not in ("sample", "deterministic"):
            continue
        shape = np.shape(site["value"])
        names = [f"{name}_dim_{axis}" for axis in range(len(shape))]
        event = len(site["fn"].event_shape) if site["type"] == "sample" else 0
        for frame in site["cond_indep_stack"]:
            axis = len(shape) - event + frame.dim
            if axis >= 0 and shape[axis] == frame.size:
                names[axis] = frame.name
        dims[name] = tuple(names)
    return Labels(dims, {}, observed)
