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
from curvi.families import Family, FullRank, LowRank, MeanField, Params
from curvi.inference._fit import fit
from curvi.interop import from_numpyro
from curvi.solvers import Method

_PURPOSE = "curvi.SVI"


class SVIRunResult(NamedTuple):
    """What ``SVI.run`` returns.

    Attributes
    ----------
    params : dict
        Parameters of the guide, by NumPyro's names: ``Predictive(guide, params=params)`` works.
    state : FitResult
        The whole result of the fit, with its verdict.
    losses : array
        Negative bound at each step; fewer than ``num_steps`` when the fit converged before.
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
        curvi maximises the ELBO; any other loss is refused.
    **static_kwargs
        Keyword arguments of the model.

    Raises
    ------
    InputError
        For another guide or loss, and for what :func:`curvi.from_numpyro` refuses.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        optim: Any = None,
        loss: Any = None,
        **static_kwargs: Any,
    ) -> None:
        optional_import("numpyro", extra="numpyro", purpose=_PURPOSE)
        self.model, self.guide, self.static_kwargs = model, guide, static_kwargs
        self.family_name = _kind_of(guide)
        self.method = optim if isinstance(optim, Method) else None
        if optim is not None and self.method is None:
            warnings.warn(
                f"curvi.SVI does not use the optimiser {type(optim).__name__}; leave it out, or "
                "give a curvi method such as curvi.TrustRegion()",
                UserWarning,
                stacklevel=2,
            )
        _check_loss(loss)

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
            other two are refused if set.
        """
        del stable_update
        validation.positive_integer(num_steps, "num_steps")
        if forward_mode_differentiation or init_params is not None:
            raise InputError(
                "curvi.SVI differentiates in both modes and starts from the guide's init_loc_fn; "
                "leave out forward_mode_differentiation and init_params"
            )
        kwargs = {**self.static_kwargs, **kwargs}
        target = from_numpyro(self.model, *args, **kwargs)
        position = _guide_start(self.guide, rng_key, args, kwargs)
        if init_state is not None:
            position = init_state.target.density.unravel(init_state.params.mean)
        seed = int(np.asarray(jax.random.key_data(rng_key)).ravel()[-1])
        result = fit(
            target,
            position,
            family=_family_of(self.guide, self.family_name, target.dimension),
            method=self.method,
            max_steps=num_steps,
            seed=seed,
            progress=progress_bar,
        )
        losses = -jnp.asarray(result.trace["elbo"])
        return SVIRunResult(self.get_params(result), result, losses)

    def get_params(self, svi_state: FitResult) -> dict[str, Array]:
        """Parameters of the guide by NumPyro's names, from ``run(...).state``."""
        return _guide_params(self.guide, self.family_name, svi_state)


def _kind_of(guide: Any) -> str:
    known = (
        "AutoNormal",
        "AutoDiagonalNormal",
        "AutoMultivariateNormal",
        "AutoLowRankMultivariateNormal",
    )
    name = type(guide).__name__
    module = type(guide).__module__
    if name not in known or not module.startswith("numpyro."):
        raise InputError(
            f"guide is {name}; curvi.SVI fits {', '.join(known)}: choose one of these, or "
            "use numpyro.infer.SVI for a guide of your own"
        )
    return name


def _check_loss(loss: Any) -> None:
    elbos = ("Trace_ELBO", "TraceMeanField_ELBO")
    if loss is not None and type(loss).__name__ not in elbos:
        raise InputError(
            f"loss is {type(loss).__name__}; curvi maximises the ELBO: give Trace_ELBO() or nothing"
        )


def _guide_start(guide: Any, key: Array, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Set up the guide as NumPyro does, and return the position that its init_loc_fn chose."""
    from numpyro import handlers

    with usual_promotion():
        handlers.trace(handlers.seed(guide, key)).get_trace(*args, **kwargs)
    return {name: jnp.asarray(value) for name, value in guide._init_locs.items()}


def _family_of(guide: Any, kind: str, dimension: int) -> Family:
    if kind in ("AutoNormal", "AutoDiagonalNormal"):
        return MeanField()
    if kind == "AutoMultivariateNormal":
        return FullRank()
    rank = getattr(guide, "rank", None)
    return LowRank(round(dimension**0.5) if rank is None else rank)


def _guide_params(guide: Any, kind: str, result: FitResult) -> dict[str, Array]:
    prefix, params = guide.prefix, result.params
    if kind == "AutoNormal":
        unravel = result.target.density.unravel
        locations, scales = unravel(params.mean), unravel(result.family.sd(params))
        named = {f"{site}_{prefix}_loc": value for site, value in locations.items()}
        return named | {f"{site}_{prefix}_scale": value for site, value in scales.items()}
    order = _guide_order(guide, result)
    return {f"{prefix}_loc": params.mean[order]} | {
        f"{prefix}_{name}": value
        for name, value in _joint_scale(kind, result.family, params, order).items()
    }


def _guide_order(guide: Any, result: FitResult) -> Array:
    """Our coordinates in the order of the guide: sites as the model has them, not by name."""
    places = result.target.density.unravel(jnp.arange(result.target.dimension))
    return jnp.concatenate([jnp.ravel(places[site]) for site in guide._init_locs])


def _joint_scale(kind: str, family: Family, params: Params, order: Array) -> dict[str, Array]:
    """The scale of a guide over all sites at once, by NumPyro's names."""
    if kind == "AutoDiagonalNormal":
        return {"scale": family.sd(params)[order]}
    if kind == "AutoMultivariateNormal":
        covariance = family.covariance(params)[order][:, order]
        return {"scale_tril": jnp.linalg.cholesky(covariance)}
    diagonal = jnp.exp(params.scale["log_diagonal"])[order]
    # NumPyro keeps the factor in units of the diagonal: D (I + W W') D.
    return {"scale": diagonal, "cov_factor": params.scale["factor"][order] / diagonal[:, None]}
