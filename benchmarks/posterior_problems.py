"""Every posterior of the benchmark in one form: a log density of a vector, and its reference.

Twenty with reference draws (CURVI_DATA), ten of ``own_models``, and the hierarchical and latent
Gaussian models of ``hierarchical``, which contenders that read NumPyro get as they are written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import own_models, posteriors
from benchmarks.common import data_folder
from benchmarks.hierarchical import MODELS
from benchmarks.hierarchical_references import REFERENCES, quantities

Array = Any


@dataclass(frozen=True)
class Problem:
    """A posterior with the reference means and sds of the quantities that are compared."""

    name: str
    dimension: int
    log_density: Callable[[Array], Array]
    constrain: Callable[[Array], Array]  # unconstrained vector -> the quantities, in order
    mean: np.ndarray
    sd: np.ndarray
    labels: list[str]
    numpyro: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None
    from_sites: Callable[..., Array] | None = None  # values of the sites -> the quantities
    unravel: Callable[[Array], dict[str, Array]] | None = None
    posterior: posteriors.Posterior | None = None


def names() -> list[str]:
    """Every posterior that can be loaded here, references included."""
    with_draws = data_folder() is not None and (data_folder() / "posteriordb").is_dir()
    known = references()
    found = [*posteriors.MODELS] if with_draws else []
    return found + [*own_models.OWN] + [name for name in MODELS if "sites" in known.get(name, {})]


def references() -> dict[str, Any]:
    """References of the hierarchical models that exist so far."""
    return json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}


def load(name: str) -> Problem:
    """One posterior, built anew."""
    if name in MODELS:
        return _from_numpyro(name)
    known = own_models.load(name) if name in own_models.OWN else posteriors.load(
        data_folder(), name
    )  # fmt: skip
    density = known.density
    return Problem(
        name, density.dimension, density.log_density, density.constrain, known.mean, known.sd,
        list(known.parameters), posterior=known,
    )  # fmt: skip


def scored_sites(name: str, reference: dict[str, Any]) -> list[str]:
    """Sites on their natural scale; those without a second moment on the unconstrained one."""
    heavy = {f"~{site}" for site in MODELS[name].heavy}
    return [key for key in reference["sites"] if not key.startswith("~") or key in heavy]


def _from_numpyro(name: str) -> Problem:
    from jax.flatten_util import ravel_pytree
    from numpyro import handlers
    from numpyro.infer.util import constrain_fn, initialize_model, potential_energy

    entry, reference = MODELS[name], references()[name]
    model, args, kwargs = entry.build()
    _, transforms = quantities(entry)
    seeded = handlers.seed(model, jax.random.key(0))
    info = initialize_model(
        jax.random.key(0), seeded, model_args=args, model_kwargs=kwargs, validate_grad=False
    )
    _, unravel = ravel_pytree(info.param_info.z)
    keys = scored_sites(name, reference)
    means, sds = (
        np.concatenate([np.ravel(reference["sites"][key][part]) for key in keys])
        for part in ("mean", "sd")
    )
    free = np.flatnonzero(sds > 0)  # a factor of a correlation holds constants
    labels = [f"{key}[{i}]" for key in keys for i in range(np.size(reference["sites"][key]["sd"]))]

    def from_sites(sites, numbers=jnp):
        """The quantities, from the values of all sites: one draw; ``numbers`` is jnp or np."""
        parts = [
            transforms[key[1:]].inv(sites[key[1:]]) if key.startswith("~") else sites[key]
            for key in keys
        ]
        return numbers.concatenate([numbers.ravel(part) for part in parts])[free]

    def log_density(z):
        return -potential_energy(seeded, args, kwargs, unravel(z))

    def constrain(z):
        return from_sites(constrain_fn(seeded, args, kwargs, unravel(z), return_deterministic=True))

    return Problem(
        name, entry.dimension, log_density, constrain, means[free], sds[free],
        [labels[i] for i in free],
        numpyro=(model, args, kwargs), from_sites=from_sites, unravel=unravel,
    )  # fmt: skip
