"""A NumPyro model as a target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi._core.compilation import SizedJit
from curvi._core.errors import InputError, optional_import
from curvi._core.trees import ravel, usual_promotion
from curvi.interop import _checks as checks
from curvi.interop._numpyro_sites import (
    is_data,
    is_latent,
    labels_of,
    latent_sites,
    subsampled_plates,
)
from curvi.interop._standardise import SUFFIX, latent_scales, standardised_model
from curvi.targets import AbstractTarget, DataTarget, Target

_MEDIAN_DRAWS = 101

Position = dict[str, Array]
Trace = dict[str, Any]


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> AbstractTarget:
    r"""The posterior of a NumPyro model.

    Every latent site :math:`x_s` is written as :math:`x_s = T_s(z_s)` with NumPyro's own
    transform of its support, and

    .. math:: \log p(z) = \log p(T(z), y) + \sum_s \log |\det T_s'(z_s)|.

    ``result.mean``, ``result.sd`` and ``result.sample`` hold the sites by name, in their own
    support, deterministic sites included. A model that subsamples one plate becomes a
    :class:`DataTarget` over the rows of that plate: ``fit`` then uses all rows, or minibatches
    with ``batch_size``; the model's own ``subsample_size`` is not used.

    A site such as ``Normal(mu, tau)`` whose scale is latent is inferred as standard noise: the
    position holds ``theta_standardised`` in place of ``theta``, the answer ``theta`` as before.
    Sites inside ``scan`` and under ``handlers.scale`` keep their own form.

    The start is the candidate with the highest log density: the centre of each support, the
    median of the prior, or a random position close to the centre.

    Parameters
    ----------
    model : callable
        A NumPyro model, handlers around it included.
    *args, **kwargs
        Arguments of the model; data are best given here.

    Returns
    -------
    Target or DataTarget
        To be given to :func:`curvi.fit`. It can be copied, and pickled if the model can.

    Raises
    ------
    InputError
        For latent discrete sites, ``numpyro.param`` sites, no latent site at all, latent sites
        inside a subsampled plate, sites outside it that depend on its rows, rows that the plate
        does not index, several subsampled plates, observed values outside their support, or a
        model that cannot be run.
    MissingDependencyError
        If NumPyro is not installed.

    Examples
    --------
    >>> import numpyro, numpyro.distributions as dist  # doctest: +SKIP
    >>> def model(counts):  # doctest: +SKIP
    ...     rate = numpyro.sample("rate", dist.Gamma(3, 1))
    ...     numpyro.sample("counts", dist.Poisson(rate), obs=counts)
    >>> curvi.fit(curvi.from_numpyro(model, counts)).mean["rate"]  # doctest: +SKIP
    """
    library = optional_import("numpyro", extra="numpyro", purpose="curvi.from_numpyro")
    if not callable(model):
        raise InputError(f"model is a {type(model).__name__}; give a NumPyro model, a function")
    checks.check_arguments(args, "args")
    checks.check_arguments(kwargs, "kwargs")
    call = _Call(model, args, kwargs)
    with _quiet_numpyro():
        trace, observed = _prototype(call, library)
        for name, values in observed.items():
            checks.check_observed(name, trace[name], values)
        latent = latent_sites(trace)
        plates = subsampled_plates(trace)
        labels = labels_of(trace, observed)
        call, latent, trace = _standardised(call, latent, trace)
        candidates = _candidates(call, latent)
    start = candidates[0]
    call = call._replace(sites=checks.shapes_of(start))
    constrain = partial(_constrain, call, plates)
    if not plates:
        return _at_best(Target(partial(_log_density, call), start, constrain, labels), candidates)
    plate = _only_plate(plates, trace, latent)
    _check_outside(call, plate, start)
    row, prior = partial(_row_log_likelihood, call, plate), partial(_log_prior, call, plate)
    rows = np.arange(plate.size)
    return _at_best(DataTarget(row, rows, prior, start, constrain, labels), candidates)


class _Call(NamedTuple):
    """A model with its arguments."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sites: checks.Shapes = ()  # of the unconstrained position
    hidden: tuple[str, ...] = ()  # sites that curvi has added

    def seeded(self) -> Any:
        """The model with a fixed key, since a density must not depend on chance."""
        from numpyro import handlers

        return handlers.seed(self.model, jax.random.key(0))

    def trace(self, strategy: Callable[..., Any], data: Position) -> Trace:
        """Run the model once, its latent sites set by an initialisation strategy of NumPyro."""
        from numpyro import handlers

        started = handlers.substitute(self.seeded(), substitute_fn=strategy)
        found = handlers.trace(handlers.substitute(started, data=data))
        return dict(found.get_trace(*self.args, **self.kwargs))


def _standardised(call: _Call, latent: list[str], trace: Trace) -> tuple[_Call, list[str], Trace]:
    """The model with standard noise where the scale of a site is latent, and its sites.

    A site that cannot be rewritten, such as one inside ``scan``, stays as it is, and so does one
    whose noise would have the name of another site.
    """
    from numpyro.infer.initialization import init_to_feasible

    sites = {name: trace[name] for name in latent}

    def run(values: Position) -> Trace:
        return call.trace(init_to_feasible(), values)

    def traced(model: Any) -> Trace:
        found: Trace = {}
        other = call._replace(model=model)
        jax.eval_shape(lambda: found.update(other.trace(init_to_feasible(), {})))
        return found

    try:
        wanted = [name for name in latent_scales(run, sites) if f"{name}{SUFFIX}" not in trace]
        model, names = standardised_model(call.model, wanted, traced)
    except (TypeError, ValueError, NotImplementedError, jax.errors.JAXTypeError):
        return call, latent, trace  # a model that cannot be run on tracers alone
    if not names:
        return call, latent, trace
    found = traced(model)
    hidden = tuple(f"{name}{SUFFIX}" for name in names)
    inferred = [name for name in found if is_latent(found[name])]
    return call._replace(model=model, hidden=hidden), inferred, {**trace, **found}


class _Plate(NamedTuple):
    """A plate that the model subsamples."""

    name: str
    size: int


@contextmanager
def _quiet_numpyro() -> Iterator[None]:
    """JAX's usual promotion, and no warning where a plate is given all or other rows on purpose."""
    with usual_promotion(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="subsample_size does not match")
        yield


def _prototype(call: _Call, library: ModuleType) -> tuple[Trace, dict[str, np.ndarray]]:
    """One trace with every subsampled plate at its full size, and the observed values.

    The model runs inside jit, which costs one small compilation and not one per operation;
    of the values in the trace only shapes may be used.
    """
    from numpyro.infer.initialization import init_to_feasible

    trace: Trace = {}

    def run() -> Position:
        first = call.trace(init_to_feasible(), {})
        whole = {name: jnp.arange(size) for name, size in subsampled_plates(first).items()}
        trace.update(call.trace(init_to_feasible(), whole) if whole else first)
        trace.update({name: first[name] for name in whole})  # plates as the model has them
        return {name: jnp.asarray(site["value"]) for name, site in trace.items() if is_data(site)}

    try:
        observed = checks.run_checked(run, library)
    except jax.errors.TracerArrayConversionError as error:
        raise InputError(
            "the model indexes a NumPy array with rows that JAX chooses, or hands traced values to "
            "NumPy; give its data as JAX arrays, jnp.asarray(y)"
        ) from error
    except Exception as error:
        raise InputError(
            f"the model could not be run ({type(error).__name__}: {checks.first_line(error)}); "
            "call it under numpyro.handlers.seed with the same arguments to see where"
        ) from error
    return trace, {name: np.asarray(value) for name, value in observed.items()}


def _candidates(call: _Call, latent: list[str]) -> list[Position]:
    """Unconstrained positions to start from, the simplest first."""
    from numpyro.infer import initialization
    from numpyro.infer.util import unconstrain_fn

    strategies = (
        initialization.init_to_feasible(),
        initialization.init_to_median(num_samples=_MEDIAN_DRAWS),
        initialization.init_to_uniform(radius=1.0),
    )

    def run() -> list[Position]:
        found = []
        for strategy in strategies:
            trace = call.trace(strategy, {})
            values = {name: trace[name]["value"] for name in latent}
            free = unconstrain_fn(call.seeded(), call.args, call.kwargs, values)
            found.append({name: jnp.asarray(free[name]) for name in latent})
        return found

    def is_finite(position: Position) -> bool:
        return all(np.isfinite(leaf).all() for leaf in position.values())

    # Run once: what it takes is to compile it.
    positions = [position for position in SizedJit(run)(0.0) if is_finite(position)]
    if not positions:
        raise InputError("no finite start was found; check the supports of the latent sites")
    return positions


def _only_plate(plates: dict[str, int], trace: Trace, latent: list[str]) -> _Plate:
    """The subsampled plate; there must be one, without latent sites."""
    if len(plates) > 1:
        raise InputError(
            f"the model subsamples {len(plates)} plates ({', '.join(plates)}); curvi can follow "
            "one: leave out subsample_size of the others"
        )
    plate = _Plate(*next(iter(plates.items())))
    for name in latent:
        if any(frame.name == plate.name for frame in trace[name]["cond_indep_stack"]):
            raise InputError(
                f"latent site {name!r} is inside plate {plate.name!r}, which is subsampled; its "
                "rows would need an amortised guide: leave out subsample_size to infer all of them"
            )
    return plate


def _log_density(call: _Call, position: Position) -> Float[Array, ""]:
    from numpyro.infer.util import potential_energy

    checks.check_position(position, call.sites)
    with _quiet_numpyro():
        return jnp.negative(potential_energy(call.seeded(), call.args, call.kwargs, position))


def _constrain(call: _Call, plates: dict[str, int], position: Position) -> Position:
    from numpyro import handlers
    from numpyro.infer.util import constrain_fn

    checks.check_position(position, call.sites)
    rows = {name: jnp.arange(size) for name, size in plates.items()}
    with _quiet_numpyro():
        model = handlers.substitute(call.seeded(), data=rows)
        values = constrain_fn(model, call.args, call.kwargs, position, return_deterministic=True)
        return {name: _floating(value) for name, value in values.items() if name not in call.hidden}


def _floating(value: Any) -> Array:
    """As a floating-point array: an integer deterministic site has no mean."""
    array = jnp.asarray(value)
    is_floating = jnp.issubdtype(array.dtype, jnp.floating)
    return array if is_floating else array.astype(jnp.result_type(float))


def _row_log_likelihood(
    call: _Call, plate: _Plate, position: Position, rows: Array
) -> Float[Array, " rows"]:
    return _log_probs(call, plate, position, rows)[0]


def _log_prior(call: _Call, plate: _Plate, position: Position) -> Float[Array, ""]:
    return _log_probs(call, plate, position, jnp.zeros(1, jnp.int32))[1]


def _log_probs(
    call: _Call, plate: _Plate, position: Position, rows: Array
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

    with _quiet_numpyro():
        replaced = handlers.substitute(call.seeded(), substitute_fn=replace_site)
        log_probs, trace = compute_log_probs(
            replaced, call.args, call.kwargs, {}, sum_log_prob=False
        )
        if missing := set(position) - set(jacobians):
            raise InputError(f"the sites {sorted(missing)} were not reached with other rows")
        count = rows.shape[0]
        inside, outside = jnp.zeros(count, _dtype(position)), sum(jacobians.values())
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


def _check_outside(call: _Call, plate: _Plate, position: Position) -> None:
    """Raise InputError if the part outside the plate changes with its rows: it belongs to no row.

    Evaluated in two places, because a product with a coordinate hides at a start of zero.
    """
    rng = np.random.default_rng(0)
    moved = {
        name: leaf + jnp.asarray(rng.uniform(0.1, 0.5, leaf.shape), leaf.dtype)
        for name, leaf in position.items()
    }
    batches = [jnp.asarray(rows, jnp.int32) for rows in ([0], [plate.size - 1], range(plate.size))]
    outside = jax.jit(lambda place: [_log_probs(call, plate, place, rows)[1] for rows in batches])
    for place in (position, moved):
        values = np.asarray(outside(place))
        # The same sums of the same numbers: they differ by rounding at most.
        close = 1e3 * float(jnp.finfo(_dtype(position)).eps)
        if not np.allclose(values, values[0], rtol=close, atol=close, equal_nan=True):
            raise InputError(
                f"a site outside plate {plate.name!r} depends on its rows; move it inside the "
                "plate, or leave out subsample_size"
            )


def _dtype(position: Position) -> Any:
    return next(iter(position.values())).dtype


def _at_best(target: AbstractTarget, candidates: list[Position]) -> AbstractTarget:
    """The target, started at the candidate with the highest log density."""
    flat = [
        ravel({name: jnp.asarray(leaf, target.dtype) for name, leaf in candidate.items()})
        for candidate in candidates
    ]
    evaluated = SizedJit(lambda density, rows, z: density.log_prob(z, rows))
    values = np.array([float(evaluated(0.0, target.density, target.rows, z)) for z in flat])
    if not np.isfinite(values).any():
        raise InputError(
            f"the log density is {values[0]} at the centre of the supports and not finite at the "
            "median of the prior; check the model, or give fit(target, position=...) a start"
        )
    best = int(np.nanargmax(np.where(np.isfinite(values), values, -np.inf)))
    return target.started_at(target.density.unravel(flat[best]))
