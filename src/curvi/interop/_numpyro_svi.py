"""A drop-in for ``numpyro.infer.SVI``: the same call, fitted by curvi."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from curvi._core import validation
from curvi._core.errors import InputError, optional_import
from curvi._core.trees import usual_promotion
from curvi.diagnostics import FitResult
from curvi.families import Family, FullRank, LowRank, MeanField
from curvi.inference import fit
from curvi.interop._checks import check_position, shapes_of
from curvi.interop._numpyro import from_numpyro
from curvi.solvers import Method

_GUIDES = (
    "AutoNormal", "AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal",
)  # fmt: skip
_LOSSES = ("Trace_ELBO", "TraceMeanField_ELBO")


class SVIRunResult(NamedTuple):
    """What ``SVI.run`` returns.

    Attributes
    ----------
    params : dict
        Parameters of the guide, by NumPyro's names: ``Predictive(guide, params=params)`` works.
    state : FitResult
        The whole result of the fit, with its diagnostics.
    losses : array
        Negative ELBO at each step; fewer than ``num_steps`` when the fit converged before.
    """

    params: dict[str, Array]
    state: FitResult
    losses: Array


class SVI:
    """Fit a NumPyro autoguide with curvi.

    ``curvi.SVI(model, guide).run(key, num_steps, *args, **kwargs)`` takes the place of
    ``numpyro.infer.SVI(model, guide, optimiser, Trace_ELBO()).run(...)``. The guide is set up
    by it and usable afterwards: ``guide.sample_posterior``, ``Predictive(guide, params=...)``.

    Parameters
    ----------
    model : callable
        A NumPyro model.
    guide : AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal or AutoLowRankMultivariateNormal
        Decides the family; its ``init_loc_fn`` decides the start.
    optim : curvi method, optional
        ``TrustRegion()`` by default. An optimiser of NumPyro or optax is not used, and a
        warning says so: curvi needs no learning rate.
    loss : numpyro.infer.Trace_ELBO, optional
        curvi maximises the ELBO; any other loss raises InputError. It chooses its own draws; a
        warning says that ``num_particles`` is not used.
    **static_kwargs
        Keyword arguments of the model.

    Raises
    ------
    InputError
        For another guide or loss, or a class where an object is needed.
    MissingDependencyError
        If NumPyro is not installed.

    Examples
    --------
    >>> from numpyro.infer.autoguide import AutoNormal  # doctest: +SKIP
    >>> guide = AutoNormal(model)  # doctest: +SKIP
    >>> run = curvi.SVI(model, guide).run(jax.random.key(0), 1000, y)  # doctest: +SKIP
    >>> draws = guide.sample_posterior(key, run.params, sample_shape=(1000,))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        optim: Any = None,
        loss: Any = None,
        **static_kwargs: Any,
    ) -> None:
        optional_import("numpyro", extra="numpyro", purpose="curvi.SVI")
        _check_kinds(guide, optim, loss)
        self.model, self.guide, self.static_kwargs = model, guide, static_kwargs
        self.method = optim if isinstance(optim, Method) else None
        if optim is not None and self.method is None:
            warnings.warn(
                f"curvi.SVI does not use the optimiser {type(optim).__name__}; leave it out, or "
                "give a curvi method such as curvi.TrustRegion()",
                UserWarning,
                stacklevel=2,
            )
        if getattr(loss, "num_particles", 1) != 1:
            warnings.warn(
                f"curvi.SVI chooses its own draws and does not use num_particles="
                f"{loss.num_particles}; leave it out",
                UserWarning,
                stacklevel=2,
            )

    def __getattr__(self, name: str) -> Any:
        """Say what takes the place of NumPyro's single steps."""
        if name in ("init", "update", "stable_update", "evaluate"):
            raise AttributeError(
                f"curvi.SVI has no {name}: a step has no state of its own here; fit in one call, "
                "svi.run(key, num_steps, ...), and read the bound in its state"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def run(
        self,
        rng_key: Array,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        stable_update: bool = False,
        forward_mode_differentiation: bool = False,
        init_state: FitResult | None = None,
        init_params: dict[str, Array] | None = None,
        **kwargs: Any,
    ) -> SVIRunResult:
        """Fit the guide in at most ``num_steps`` steps.

        Parameters
        ----------
        rng_key : key
            All randomness follows from it.
        num_steps : int
            Budget of steps. Running out of it ends with a warning.
        *args, **kwargs
            Arguments of the model.
        progress_bar : bool
            A progress bar, on a terminal only.
        init_state : FitResult, optional
            ``state`` of an earlier run: start from its mean.
        stable_update, forward_mode_differentiation, init_params
            Accepted for NumPyro's sake. Steps that are not finite are always rejected; the
            other two raise InputError if set.

        Returns
        -------
        SVIRunResult
            Parameters of the guide, the whole result, and the loss at each step.

        Raises
        ------
        InputError
            For a model that :func:`curvi.from_numpyro` does not accept, and for options that
            would not be honoured.
        """
        validation.positive_integer(num_steps, "num_steps")
        if forward_mode_differentiation or init_params is not None:
            raise InputError(
                "curvi.SVI differentiates in both modes and starts from the guide's init_loc_fn; "
                "leave out forward_mode_differentiation and init_params"
            )
        _check_key(rng_key)
        if init_state is not None:
            _check_state(init_state, "init_state")
        kwargs = {**self.static_kwargs, **kwargs}
        target = from_numpyro(self.model, *args, **kwargs)
        position = _guide_start(self.guide, rng_key, args, kwargs)
        if init_state is not None:
            position = init_state.target.density.unravel(init_state.params.mean)
        check_position(position, shapes_of(target.position))
        seed = int(np.asarray(jax.random.key_data(rng_key)).ravel()[-1])
        result = fit(
            target,
            position,
            family=_family_of(self.guide, target.dimension),
            method=self.method,
            max_steps=num_steps,
            num_starts=1,
            seed=seed,
            progress=progress_bar,
        )
        losses = -jnp.asarray(result.trace["elbo"])
        return SVIRunResult(self.get_params(result), result, losses)

    def get_params(self, svi_state: FitResult) -> dict[str, Array]:
        """Parameters of the guide by NumPyro's names.

        Parameters
        ----------
        svi_state : FitResult
            ``state`` of a run.

        Returns
        -------
        dict
            What ``numpyro.infer.SVI.get_params`` returns.

        Raises
        ------
        InputError
            For anything but the state of a run of this model.
        """
        _check_state(svi_state, "svi_state")
        if getattr(self.guide, "_init_locs", None) is None:
            raise InputError("the guide has not been set up; call svi.run(key, num_steps, ...)")
        check_position(svi_state.target.position, shapes_of(self.guide._init_locs))
        return _guide_params(self.guide, svi_state)


def _check_key(key: Any) -> None:
    try:
        is_key = jax.eval_shape(jax.random.bits, key).shape == ()
    except (TypeError, ValueError):
        is_key = False
    if not is_key:
        raise InputError(
            f"rng_key is not one key but a {type(key).__name__} of shape {np.shape(key)}; give "
            "jax.random.key(0), for example"
        )


def _check_state(state: Any, name: str) -> None:
    if not isinstance(state, FitResult):
        raise InputError(
            f"{name} is a {type(state).__name__}; give the state of an earlier run of curvi.SVI, "
            "run.state"
        )


def _check_kinds(guide: Any, optim: Any, loss: Any) -> None:
    for name, given in (("guide", guide), ("optim", optim), ("loss", loss)):
        if isinstance(given, type):
            raise InputError(f"{name} is the class {given.__name__}; give an object of that class")
    kind = type(guide)
    if kind.__name__ not in _GUIDES or not kind.__module__.startswith("numpyro."):
        raise InputError(
            f"guide is {kind.__name__}; curvi.SVI fits {', '.join(_GUIDES)}: choose one of these, "
            "or use numpyro.infer.SVI for a guide of your own"
        )
    if loss is not None and type(loss).__name__ not in _LOSSES:
        raise InputError(
            f"loss is {type(loss).__name__}; curvi maximises the ELBO: give Trace_ELBO() or nothing"
        )


def _guide_start(guide: Any, key: Array, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Set up the guide as NumPyro does, and return the position that its init_loc_fn chose."""
    from numpyro import handlers

    with usual_promotion():
        handlers.trace(handlers.seed(guide, key)).get_trace(*args, **kwargs)
    return {name: jnp.asarray(value) for name, value in guide._init_locs.items()}


def _family_of(guide: Any, dimension: int) -> Family:
    kind = type(guide).__name__
    if kind == "AutoLowRankMultivariateNormal":
        return LowRank(round(dimension**0.5) if guide.rank is None else guide.rank)
    return FullRank() if kind == "AutoMultivariateNormal" else MeanField()


def _guide_params(guide: Any, result: FitResult) -> dict[str, Array]:
    """Location and scale by NumPyro's names: of each site, or of all sites at once."""
    prefix, params, family = guide.prefix, result.params, result.family
    unravel, sd = result.target.density.unravel, family.sd(params)
    if type(guide).__name__ == "AutoNormal":
        named = {f"{site}_{prefix}_loc": value for site, value in unravel(params.mean).items()}
        return named | {f"{site}_{prefix}_scale": value for site, value in unravel(sd).items()}
    # The guide flattens sites in the order of the model, curvi by name.
    places = unravel(jnp.arange(result.target.dimension))
    order = jnp.concatenate([jnp.ravel(places[site]) for site in guide._init_locs])
    params_of_guide = {f"{prefix}_loc": params.mean[order]}
    if family.scale.is_diagonal:
        return params_of_guide | {f"{prefix}_scale": sd[order]}
    if family.scale.is_full:
        covariance = family.covariance(params)[order][:, order]
        return params_of_guide | {f"{prefix}_scale_tril": jnp.linalg.cholesky(covariance)}
    diagonal, factor = family.scale.diagonal_and_factor(params.scale_params)
    # NumPyro keeps the factor in units of the diagonal: D (I + W W') D.
    relative = (factor / diagonal[:, None])[order]
    return params_of_guide | {f"{prefix}_scale": diagonal[order], f"{prefix}_cov_factor": relative}
