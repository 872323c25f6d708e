"""A fit as an ArviZ object: InferenceData of 0.x, DataTree of 1.x, whichever is installed."""

from __future__ import annotations

import importlib.metadata
import warnings
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from curvi._core import validation
from curvi._core.errors import optional_import
from curvi._core.trees import precision_of
from curvi.diagnostics._moments import positions
from curvi.diagnostics._result import FitResult, sample_flat
from curvi.targets import Labels

_PURPOSE = "FitResult.to_arviz"
_TOGETHER = 256


def to_arviz(result: FitResult, num_draws: int = 1000, *, seed: int = 0) -> Any:
    r"""Draws from q with their densities, the data, and the course of the fit.

    Groups:

    ``posterior``
        one chain of draws from q in the user's space; axes named by the model where known;
    ``sample_stats``
        ``lp`` (:math:`\log p`, unnormalised), ``log_q`` and ``log_ratio`` = lp - log_q, all in
        the unconstrained space;
    ``observed_data``
        what the model was conditioned on, where known;
    ``fit``
        the trace over steps, and as attributes the verdict, the bound and its standard error.

    Parameters
    ----------
    result : FitResult
    num_draws : int
        Number of draws.
    seed : int
        Seed of the draws, as in ``result.sample``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree

    Raises
    ------
    MissingDependencyError
        If ArviZ is not installed.
    """
    validation.positive_integer(num_draws, "num_draws")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ArviZ 0.x announces 1.0 once a day
        arviz = optional_import("arviz", extra="arviz", purpose=_PURPOSE)
    labels = result.target.labels or Labels()
    with precision_of(result.target.dtype):
        flat = sample_flat(result.family, result.params, jax.random.key(seed), num_draws)
        posterior = _by_name(positions(result._space, flat))
        log_p, log_q = _densities(result, flat)
    groups = {
        "posterior": {name: value[None] for name, value in posterior.items()},
        "sample_stats": {
            "lp": log_p[None],
            "log_q": log_q[None],
            "log_ratio": (log_p - log_q)[None],
        },
    }
    if labels.observed:
        groups["observed_data"] = dict(labels.observed)
    named = {name for group in groups.values() for name in group}
    dims = {name: list(axes) for name, axes in labels.dims.items() if name in named and axes}
    coords = {name: v for name, v in labels.coords.items() if any(name in d for d in dims.values())}
    if int(importlib.metadata.version("arviz").split(".")[0]) >= 1:
        tree = arviz.from_dict(groups, coords=coords, dims=dims)
        tree["fit"] = _fit_group(result)
        return tree
    data = arviz.from_dict(**groups, coords=coords, dims=dims)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "fit" is our own group, on purpose
        data.add_groups({"fit": _fit_group(result)})
    return data


def _by_name(tree: PyTree) -> dict[str, np.ndarray]:
    """Leaves by name; a bare array is called x."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or "x": np.asarray(leaf)
        for path, leaf in leaves
    }


def _densities(
    result: FitResult, flat: Float[Array, "draws dimension"]
) -> tuple[np.ndarray, np.ndarray]:
    """``log p`` and ``log q`` of flat positions, a few at a time to bound memory."""

    def both(z: Float[Array, " dimension"]) -> tuple[Array, Array]:
        return result.target.log_prob(z), result.family.log_prob(result.params, z)

    log_p, log_q = jax.lax.map(both, flat, batch_size=min(_TOGETHER, flat.shape[0]))
    return np.asarray(log_p), np.asarray(log_q)


def _fit_group(result: FitResult) -> Any:
    import xarray

    columns = {name: ("step", np.asarray(v)) for name, v in result.trace.items() if name != "step"}
    steps = result.trace.get("step")
    return xarray.Dataset(
        columns,
        coords={} if steps is None else {"step": np.asarray(steps)},
        attrs={
            "outcome": result.outcome.name,
            "converged": int(result.converged),
            "message": result.message,
            "elbo": float(result.elbo),
            "elbo_se": float(result.elbo_se),
            "family": str(result.family),
            "method": str(result.method),
            "draws": str(result.draws),
            "seconds": float(result.seconds),
            "inference_library": "curvi",
        },
    )
