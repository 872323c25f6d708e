"""A NumPyro model as a target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from curvi._core.errors import InputError, optional_import
from curvi._core.trees import ravel, usual_promotion
from curvi.targets import AbstractTarget, DataTarget, Labels, Target

_MEDIAN_DRAWS = 101
_PURPOSE = "curvi.from_numpyro"


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> AbstractTarget:
    r"""The posterior of a NumPyro model.

    Every latent site :math:`x_s` is written as :math:`x_s = T_s(z_s)` with NumPyro's own
    transform of its support, and

    .. math:: \log p(z) = \log p(T(z), y) + \sum_s \log |\det T_s'(z_s)|.

    ``result.mean``, ``result.sd`` and ``result.sample`` hold the sites by name, in their own
    support, deterministic sites included. A model that subsamples one plate becomes a
    :class:`DataTarget` over the rows of that plate: ``fit`` then uses all rows, or minibatches
    with ``batch_size``; the model's own ``subsample_size`` is not used.

    The start is the candidate with the highest log density: the centre of each support, the
    median of the prior, or a random position close to the centre.

    Parameters
    ----------
    model : callable
        A NumPyro model, handlers around it included.
    *args, **kwargs
        Arguments of the model; data are best given here.

    Raises
    ------
    InputError
        For latent discrete sites, ``numpyro.param`` sites, no latent site at all, latent sites
        inside a subsampled plate, sites outside it that depend on its rows, several subsampled
        plates, or a model that cannot be run.
    MissingDependencyError
        If NumPyro is not installed.
    """
    optional_import("numpyro", extra="numpyro", purpose=_PURPOSE)
    if not callable(model):
        raise InputError(f"model is a {type(model).__name__}; give a NumPyro model, a function")
    call = _Call(model, args, kwargs)
    with usual_promotion():
        trace, observed = call.prototype()
        latent = _latent_sites(trace)
        plates = _subsampled_plates(trace)
        candidates = call.candidates(latent)
    if not plates:
        target: AbstractTarget = Target(
            partial(_log_density, call.model, args, kwargs),
            candidates[0],
            partial(_constrain, call.model, args, kwargs, {}),
            _labels(trace, observed),
        )
    else:
        labels = _labels(trace, observed)
        target = _data_target(call, trace, latent, plates, candidates[0], labels)
    return _best_start(target, candidates)


@dataclass(frozen=True)
class _Call:
    """A model with its arguments."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def trace(self, strategy: Callable[..., Any], data: dict[str, Array]) -> dict[str, Any]:
        """Run the model once, its latent sites set by an initialisation strategy of NumPyro."""
        from numpyro import handlers

        seeded = handlers.seed(self.model, jax.random.key(0))
        started = handlers.substitute(seeded, substitute_fn=strategy)
        with _other_size_is_meant():
            found = handlers.trace(handlers.substitute(started, data=data))
            return dict(found.get_trace(*self.args, **self.kwargs))

    def prototype(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """One trace with every subsampled plate at its full size, and the observed values.

        The model runs inside jit, which costs one small compilation and not one per operation;
        of the values in the trace only shapes may be used.
        """
        from numpyro.infer.initialization import init_to_feasible

        trace: dict[str, Any] = {}

        def run() -> dict[str, Array]:
            first = self.trace(init_to_feasible(), {})
            whole = {name: jnp.arange(size) for name, size in _subsampled_plates(first).items()}
            trace.update(self.trace(init_to_feasible(), whole) if whole else first)
            trace.update({name: first[name] for name in whole})  # plates as the model has them
            return {
                name: jnp.asarray(site["value"]) for name, site in trace.items() if _is_data(site)
            }

        try:
            observed = jax.jit(run)()
        except Exception as error:
            raise InputError(
                f"the model could not be run ({type(error).__name__}: {error}); call it under "
                "numpyro.handlers.seed with the same arguments to see where"
            ) from error
        return trace, {name: np.asarray(value) for name, value in observed.items()}

    def candidates(self, latent: list[str]) -> list[dict[str, Array]]:
        """Unconstrained positions to start from, the simplest first."""
        from numpyro import handlers
        from numpyro.infer import initialization as start
        from numpyro.infer.util import unconstrain_fn

        strategies = (
            start.init_to_feasible(),
            start.init_to_median(num_samples=_MEDIAN_DRAWS),
            start.init_to_uniform(radius=1.0),
        )

        def run() -> list[dict[str, Array]]:
            found = []
            for strategy in strategies:
                trace = self.trace(strategy, {})
                values = {name: trace[name]["value"] for name in latent}
                seeded = handlers.seed(self.model, jax.random.key(0))
                free = unconstrain_fn(seeded, self.args, self.kwargs, values)
                found.append({name: jnp.asarray(free[name]) for name in latent})
            return found

        positions: list[dict[str, Array]] = [
            free
            for free in jax.jit(run)()
            if all(np.isfinite(leaf).all() for leaf in free.values())
        ]
        if not positions:
            raise InputError("no finite start was found; check the supports of the latent sites")
        return positions


def _is_data(site: dict[str, Any]) -> bool:
    """Whether a site holds observed numbers, as opposed to a factor."""
    return site["type"] == "sample" and site["is_observed"] and np.size(site["value"]) > 0


def _latent_sites(trace: dict[str, Any]) -> list[str]:
    """Names of the latent sites; refuse what has no density over the reals."""
    from numpyro.distributions import Delta

    latent = []
    for name, site in trace.items():
        if site["type"] in ("param", "mutable"):
            raise InputError(
                f"site {name!r} is a numpyro.{site['type']}: curvi infers distributions, not point "
                "estimates; give it a prior with numpyro.sample, or fix it with "
                "numpyro.handlers.substitute"
            )
        if site["type"] != "sample" or site["is_observed"]:
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


def _subsampled_plates(trace: dict[str, Any]) -> dict[str, int]:
    """Name and full size of every plate that the model subsamples."""
    plates = {name: site["args"] for name, site in trace.items() if site["type"] == "plate"}
    return {name: a[0] for name, a in plates.items() if a[1] is not None and a[1] != a[0]}


def _log_density(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], position: PyTree
) -> Float[Array, ""]:
    from numpyro import handlers
    from numpyro.infer.util import potential_energy

    with usual_promotion():
        seeded = handlers.seed(model, jax.random.key(0))
        return jnp.negative(potential_energy(seeded, args, kwargs, position))


def _constrain(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    whole: dict[str, int],
    position: PyTree,
) -> dict[str, Array]:
    from numpyro import handlers
    from numpyro.infer.util import constrain_fn

    rows = {name: jnp.arange(size) for name, size in whole.items()}
    with usual_promotion(), _other_size_is_meant():
        seeded = handlers.substitute(handlers.seed(model, jax.random.key(0)), data=rows)
        values = constrain_fn(seeded, args, kwargs, position, return_deterministic=True)
        # An integer deterministic site has no mean; and each site becomes an array.
        return {name: jnp.asarray(value, _float_of(value)) for name, value in values.items()}


def _float_of(value: Any) -> Any:
    dtype = jnp.asarray(value).dtype
    return dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.result_type(float)


def _data_target(
    call: _Call,
    trace: dict[str, Any],
    latent: list[str],
    plates: dict[str, int],
    position: dict[str, Array],
    labels: Labels,
) -> DataTarget:
    if len(plates) > 1:
        raise InputError(
            f"the model subsamples {len(plates)} plates ({', '.join(plates)}); curvi can follow "
            "one: leave out subsample_size of the others"
        )
    plate, size = next(iter(plates.items()))
    for name in latent:
        if any(frame.name == plate for frame in trace[name]["cond_indep_stack"]):
            raise InputError(
                f"latent site {name!r} is inside plate {plate!r}, which is subsampled; its rows "
                "would need an amortised guide: leave out subsample_size to infer all of them"
            )
    inside = partial(_log_probs, call.model, call.args, call.kwargs, plate, size)
    _check_outside(inside, plate, size, position)
    return DataTarget(
        partial(_row_log_likelihood, inside),
        np.arange(size),
        partial(_log_prior, inside),
        position,
        partial(_constrain, call.model, call.args, call.kwargs, plates),
        labels,
    )


def _check_outside(
    inside: Callable[..., Any], plate: str, size: int, position: dict[str, Array]
) -> None:
    """Refuse a part outside the plate that changes with its rows: it belongs to no row.

    It is looked at in two places, because a product with a coordinate hides at a start of zero.
    """
    rng = np.random.default_rng(0)
    moved = {
        name: leaf + jnp.asarray(rng.uniform(0.1, 0.5, leaf.shape), leaf.dtype)
        for name, leaf in position.items()
    }
    rows = (np.zeros(1, np.int32), np.full(1, size - 1, np.int32), np.arange(size, dtype=np.int32))

    def probe(place: dict[str, Array]) -> list[Array]:
        return [inside(place, jnp.asarray(some))[1] for some in rows]

    probed = jax.jit(probe)
    for place in (position, moved):
        values = np.asarray(probed(place))
        # The same sums of the same numbers: they differ by rounding at most.
        close = 1e3 * float(jnp.finfo(_dtype(position)).eps)
        if not np.allclose(values, values[0], rtol=close, atol=close, equal_nan=True):
            raise InputError(
                f"a site outside plate {plate!r} depends on its rows; move it inside the plate, or "
                "leave out subsample_size"
            )


def _log_probs(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plate: str,
    size: int,
    position: dict[str, Array],
    rows: Array,
) -> tuple[Float[Array, " rows"], Float[Array, ""]]:
    """Log probability of each row of the plate, and of everything outside it."""
    import numpyro.distributions as dist
    from numpyro import handlers
    from numpyro.infer.util import compute_log_probs

    jacobians: dict[str, Array] = {}

    def replace_site(site: dict[str, Any]) -> Array | None:
        name = site["name"]
        if site["type"] == "plate" and name == plate:
            return rows
        if site["type"] != "sample" or name not in position:
            return None
        transform = dist.biject_to(site["fn"].support)
        value = transform(position[name])
        jacobians[name] = jnp.sum(transform.log_abs_det_jacobian(position[name], value))
        return value

    with usual_promotion(), _other_size_is_meant():
        seeded = handlers.seed(model, jax.random.key(0))
        replaced = handlers.substitute(seeded, substitute_fn=replace_site)
        log_probs, trace = compute_log_probs(replaced, args, kwargs, {}, sum_log_prob=False)
        if missing := set(position) - set(jacobians):
            raise InputError(f"the sites {sorted(missing)} were not reached with other rows")
        count = rows.shape[0]
        inside, outside = jnp.zeros(count, _dtype(position)), sum(jacobians.values())
        for name, value in log_probs.items():
            frames = [f for f in trace[name]["cond_indep_stack"] if f.name == plate]
            if not frames:
                outside = outside + jnp.sum(value)
                continue
            per_row = jnp.moveaxis(value, frames[0].dim, 0).reshape(count, -1).sum(axis=1)
            inside = inside + per_row * (count / size)  # undo the plate's own scale
        return inside, jnp.asarray(outside, inside.dtype)


def _row_log_likelihood(
    inside: Callable[..., Any], position: dict[str, Array], rows: Array
) -> Float[Array, " rows"]:
    values: Float[Array, " rows"] = inside(position, rows)[0]
    return values


def _log_prior(inside: Callable[..., Any], position: dict[str, Array]) -> Float[Array, ""]:
    value: Float[Array, ""] = inside(position, jnp.zeros(1, jnp.int32))[1]
    return value


def _dtype(position: dict[str, Array]) -> Any:
    return next(iter(position.values())).dtype


@contextmanager
def _other_size_is_meant() -> Iterator[None]:
    """A plate is given all rows, or other rows, on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="subsample_size does not match")
        yield


def _best_start(target: AbstractTarget, candidates: list[dict[str, Array]]) -> AbstractTarget:
    dtype = target.dtype
    flat = [ravel({k: jnp.asarray(v, dtype) for k, v in c.items()}) for c in candidates]
    values = np.array([float(target.log_prob(z)) for z in flat])
    if not np.isfinite(values).any():
        raise InputError(
            f"the log density is {values[0]} at the centre of the supports and not finite at the "
            "median of the prior; check the model, or give fit(target, position=...) a start"
        )
    best = int(np.nanargmax(np.where(np.isfinite(values), values, -np.inf)))
    return target.with_position(target.density.unravel(flat[best]))


def _labels(trace: dict[str, Any], observed: dict[str, np.ndarray]) -> Labels:
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
