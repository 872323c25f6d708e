"""A NumPyro model as a target."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi._core.errors import InputError, optional_import, warn_user
from curvi.interop import _checks as checks
from curvi.interop._numpyro_call import (
    Call,
    NumPyroForms,
    Plate,
    Position,
    Trace,
    dtype_of,
    is_data,
    is_latent,
    labels_of,
    latent_sites,
    log_probs,
    quiet_numpyro,
    subsampled_plates,
)
from curvi.interop._numpyro_start import candidate_positions, started_at_best
from curvi.interop._standardise import SUFFIX, latent_scales, prior_precision, standardised_sites
from curvi.targets import AbstractTarget


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> AbstractTarget:
    r"""The posterior of a NumPyro model.

    Every latent site :math:`x_s` is written as :math:`x_s = T_s(z_s)` with NumPyro's own
    transform of its support, and

    .. math:: \log p(z) = \log p(T(z), y) + \sum_s \log |\det T_s'(z_s)|.

    ``result.mean``, ``result.sd`` and ``result.sample`` hold the sites by name, in their own
    support, deterministic sites included. A model that subsamples one plate becomes a
    :class:`DataTarget` over the rows of that plate: ``fit`` then uses all rows, or minibatches
    with ``batch_size``; the model's own ``subsample_size`` is not used. With latent sites inside a
    subsampled plate, or several such plates, it is a :class:`Target` of all rows, and a warning
    says so.

    A site such as ``Normal(mu, tau)`` whose scale is latent is inferred as standard noise: the
    position holds ``theta_standardised`` in place of ``theta``, the answer ``theta`` as before.
    Where the data say much about it, the ladder of :func:`curvi.fit` goes on with a form that is
    centred by degrees, element by element.
    Sites inside ``scan`` and under ``handlers.scale`` keep their own form.

    The start is the candidate with the highest log density: the centre of each support, the
    middle of the prior (its median, or else its mean), or a random position close to the centre.

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
        For latent discrete sites, ``numpyro.param`` sites, no latent site at all, sites outside a
        subsampled plate that depend on its rows, rows that the plate does not index, observed
        values outside their support, or a model that cannot be run.
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
    call = Call(model, args, kwargs)
    with quiet_numpyro():
        trace, observed = _prototype(call, library)
        for name, values in observed.items():
            checks.check_observed(name, trace[name], values)
        latent = latent_sites(trace)
        plates = subsampled_plates(trace)
        if reason := _needs_all_rows(plates, trace, latent):
            warn_user(reason, UserWarning)
            call, plates = call._replace(whole=tuple(Plate(*one) for one in plates.items())), {}
        labels = labels_of(trace, observed)
        call, latent, trace = _standardised(call, latent, trace)
        candidates = candidate_positions(call, latent)
    start = candidates[0]
    call = call._replace(sites=checks.shapes_of(start))
    if plates:
        _check_outside(call, Plate(*next(iter(plates.items()))), start)
    noises = [f"{name}{SUFFIX}" for name in call.standard]
    forms = NumPyroForms(
        call, plates, start, labels, {name: prior_precision(trace[name]["fn"]) for name in noises}
    )
    return started_at_best(forms.target(forms.none(start)), candidates)


def _standardised(call: Call, latent: list[str], trace: Trace) -> tuple[Call, list[str], Trace]:
    """The model with standard noise where the scale of a site is latent, and its sites.

    A site that cannot be rewritten, such as one inside ``scan``, stays as it is, and so does one
    whose noise would have the name of another site.
    """
    from numpyro.infer.initialization import init_to_feasible

    sites = {name: trace[name] for name in latent}

    def run(values: Position) -> Trace:
        return call.trace(init_to_feasible(), values)

    def traced(names: list[str]) -> Trace:
        rewritten: Trace = {}
        other = call._replace(standard=tuple(names))
        jax.eval_shape(lambda: rewritten.update(other.trace(init_to_feasible(), {})))
        return rewritten

    try:
        wanted = [name for name in latent_scales(run, sites) if f"{name}{SUFFIX}" not in trace]
        names, rewritten = standardised_sites(wanted, traced)
    except (TypeError, ValueError, NotImplementedError, jax.errors.JAXTypeError):
        return call, latent, trace  # a model that cannot be run on tracers alone
    if not names:
        return call, latent, trace
    inferred = [name for name in rewritten if is_latent(rewritten[name])]
    return call._replace(standard=tuple(names)), inferred, {**trace, **rewritten}


def _prototype(call: Call, library: ModuleType) -> tuple[Trace, dict[str, np.ndarray]]:
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


def _needs_all_rows(plates: dict[str, int], trace: Trace, latent: list[str]) -> str:
    """Why minibatches of the model make no rows of one table; empty where they do.

    A latent site inside a plate has as many values as the plate has rows, all of which are
    inferred; the rows of two plates are no rows of one table. All rows give the exact posterior.
    """
    for name in latent:
        for frame in trace[name]["cond_indep_stack"]:
            if frame.name in plates:
                return (
                    f"latent site {name!r} is inside plate {frame.name!r}, which is subsampled: "
                    f"all its {plates[frame.name]} rows are used, and all their values inferred; "
                    "leave out subsample_size to say so yourself"
                )
    if len(plates) > 1:
        return (
            f"the model subsamples {len(plates)} plates ({', '.join(plates)}): all their rows are "
            "used; leave out subsample_size of all but one to fit on minibatches of that one"
        )
    return ""


def _check_outside(call: Call, plate: Plate, position: Position) -> None:
    """Raise InputError if the part outside the plate changes with its rows: it belongs to no row.

    Evaluated in two places, because a product with a coordinate hides at a start of zero.
    """
    rng = np.random.default_rng(0)
    shifted = {
        name: leaf + jnp.asarray(rng.uniform(0.1, 0.5, leaf.shape), leaf.dtype)
        for name, leaf in position.items()
    }
    batches = [jnp.asarray(rows, jnp.int32) for rows in ([0], [plate.size - 1], range(plate.size))]
    outside = jax.jit(lambda point: [log_probs(call, plate, point, rows)[1] for rows in batches])
    for point in (position, shifted):
        values = np.asarray(outside(point))
        # The same sums of the same numbers: they differ by rounding at most.
        close = 1e3 * float(jnp.finfo(dtype_of(position)).eps)
        if not np.allclose(values, values[0], rtol=close, atol=close, equal_nan=True):
            raise InputError(
                f"a site outside plate {plate.name!r} depends on its rows; move it inside the "
                "plate, or leave out subsample_size"
            )
