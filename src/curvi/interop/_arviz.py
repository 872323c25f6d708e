"""A fit as an ArviZ object: InferenceData of 0.x, DataTree of 1.x, whichever is installed."""

from __future__ import annotations

import importlib.metadata
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from curvi._core import validation
from curvi._core.errors import InputError, optional_import
from curvi._core.trees import precision_of
from curvi.diagnostics import FitResult, require_positions, user_space
from curvi.targets import Labels, StoredTarget


def to_arviz(result: FitResult, num_draws: int = 1000, *, seed: int = 0) -> Any:
    r"""Draws from q with their densities, the data, and the course of the fit.

    Groups:

    ``posterior``
        one chain of draws as ``result.sample`` gives them; axes named by the model where known;
    ``sample_stats``
        ``lp`` (:math:`\log p`, unnormalised), ``log_q`` and ``log_ratio`` = lp - log_q, all in
        the unconstrained space; not there where the result was loaded without its target;
    ``observed_data``
        what the model was conditioned on, where known;
    ``fit``
        the trace over steps, and as attributes the outcome, the ELBO and its standard error.

    Parameters
    ----------
    result : FitResult
        The fit to export.
    num_draws : int
        Number of draws.
    seed : int
        Seed of the draws, as in ``result.sample``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        The former with ArviZ 0.x, the latter with ArviZ 1.x.

    Raises
    ------
    InputError
        If ``num_draws`` is not a positive integer, or two variables have the same name.
    MemoryBudgetError
        If the draws would not fit into the memory budget.
    MissingDependencyError
        If ArviZ is not installed.

    Examples
    --------
    >>> import curvi, jax.numpy as jnp
    >>> result = curvi.fit(lambda x: -0.5 * jnp.sum(x**2), jnp.ones(2), progress=False)
    >>> result.to_arviz(num_draws=100).posterior["x"].shape  # doctest: +SKIP
    (1, 100, 2)
    """
    validation.positive_integer(num_draws, "num_draws")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ArviZ 0.x announces 1.0 once a day
        arviz = optional_import("arviz", extra="arviz", purpose="FitResult.to_arviz")
    labels = result.target.labels or Labels()
    draws = {}
    if not isinstance(result.target, StoredTarget):
        with precision_of(result.target.dtype):
            space = user_space(result.target, result.family)
            require_positions(space, result.target, 2 * num_draws)
        log_p, log_q = _densities(result, num_draws, seed)
        draws["sample_stats"] = {"lp": log_p, "log_q": log_q, "log_ratio": log_p - log_q}
    draws["posterior"] = _by_name(result.sample(num_draws, seed))
    groups = jax.tree.map(lambda values: values[None], draws)  # one chain
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


def arviz_of_draws(
    draws: dict[str, np.ndarray],
    *,
    log_likelihood: dict[str, np.ndarray],
    observed: dict[str, np.ndarray],
    dims: dict[str, list[str]],
    coords: dict[str, list[str]],
) -> Any:
    """Draws by name (axis of draws first) as one chain, with log likelihoods of the rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ArviZ 0.x announces 1.0 once a day
        arviz = optional_import("arviz", extra="arviz", purpose="to_arviz")
    groups: dict[str, Any] = {
        "posterior": {name: values[None] for name, values in draws.items()},
        "log_likelihood": {name: values[None] for name, values in log_likelihood.items()},
        "observed_data": observed,
    }
    if int(importlib.metadata.version("arviz").split(".")[0]) >= 1:
        return arviz.from_dict(groups, coords=coords, dims=dims)
    return arviz.from_dict(**groups, coords=coords, dims=dims)


def _by_name(tree: PyTree) -> dict[str, np.ndarray]:
    """Leaves by name; a bare array is called x."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named: dict[str, np.ndarray] = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "x"
        if name in named:
            raise InputError(
                f"two variables of the position are both called {name} in ArviZ, where a dot joins "
                "the keys of nested dicts; rename one of them"
            )
        named[name] = np.asarray(leaf)
    return named


def _densities(
    result: FitResult, num_draws: int, seed: int, *, block: int = 256
) -> tuple[np.ndarray, np.ndarray]:
    """``log p`` and ``log q`` at the draws of ``result.sample``, in blocks to limit the memory.

    ``block``: draws whose densities are evaluated together.
    """
    target, family, params = result.target, result.family, result.params

    def both(z: Float[Array, " dimension"]) -> tuple[Array, Array]:
        return target.log_prob(z), family.log_prob(params, z)

    with precision_of(target.dtype):
        if result.correction is None:
            flat = family.sample(params, validation.random_key(seed), num_draws)
        else:
            flat = jnp.asarray(result.correction.draws[result.correction.chosen(num_draws, seed)])
        log_p, log_q = jax.lax.map(both, flat, batch_size=min(block, num_draws))
    return np.asarray(log_p), np.asarray(log_q)


def _fit_group(result: FitResult) -> Any:
    import xarray

    return xarray.Dataset(
        {name: ("step", np.asarray(values)) for name, values in result.trace.items()},
        attrs={
            "outcome": result.outcome.name,
            "converged": int(result.converged),
            "inference_library": "curvi",
            **{name: float(getattr(result, name)) for name in ("elbo", "elbo_se", "seconds")},
            **{
                name: str(getattr(result, name))
                for name in ("message", "family", "method", "draws")
            },
        },
    )
