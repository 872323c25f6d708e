"""What a trace of a NumPyro model says about its sites and plates."""

from __future__ import annotations

from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi.targets import Labels

Trace = dict[str, Any]


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
