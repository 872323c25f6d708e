"""curvi's own rows: nothing chosen, and its families by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.clocks import spent
from benchmarks.posterior_problems import Problem

Answer = dict[str, Any]  # mean, sd, and what the library says about itself


def target_of(problem: Problem) -> Any:
    """As a user hands it over: the NumPyro model where there is one."""
    import curvi

    if problem.numpyro is not None:
        model, args, kwargs = problem.numpyro
        return curvi.from_numpyro(model, *args, **kwargs)
    zeros = jnp.zeros(problem.dimension)
    return curvi.Target(problem.log_density, zeros, problem.constrain)


def in_order(problem: Problem, result: Any, sd: Any) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of the compared quantities, in the order of the reference.

    A quantity on the unconstrained scale is not a site of the result: it comes from draws.
    """
    if problem.from_sites is None:
        return np.asarray(result.mean), np.asarray(sd)
    # On the host: compiling a concatenation would be counted as time of the fit.
    moments = [{k: np.asarray(v) for k, v in part.items()} for part in (result.mean, sd)]
    mean, spread = (np.array(problem.from_sites(part, np)) for part in moments)
    on_draws = [i for i, label in enumerate(problem.labels) if label.startswith("~")]
    if on_draws:
        draws = np.asarray(jax.jit(jax.vmap(problem.from_sites))(result.sample(4000)))
        mean[on_draws], spread[on_draws] = draws.mean(axis=0)[on_draws], draws.std(axis=0)[on_draws]
    return mean, spread


def by_curvi(problem: Problem, family: str | None = None, *, respond: bool = False) -> Answer:
    """One call: the target, the fit, its moments, and linear response where asked for.

    The clock stops when a user has the answer: as for NUTS, quantities that only the reference has
    are computed after it.
    """
    import curvi

    options = {} if family is None else {"family": getattr(curvi, family)()}
    with spent() as clock:
        result = curvi.fit(target_of(problem), progress=False, on_failure="return", **options)
        sd, said = result.sd, [str(one) for one in result.warnings]
        if respond and result.converged:
            try:
                sd = result.linear_response()
            except curvi.NumericalError as error:
                said.append(str(error))
        _ = result.mean
    mean, sd = in_order(problem, result, sd)
    return {
        "mean": mean, "sd": sd, "said": said,
        "seconds": clock.seconds, "compiling": clock.compiling,
        "converged": bool(result.converged), "outcome": result.outcome.name,
        "rung": _rung(result), "result": result,
    }  # fmt: skip


def _rung(result: Any) -> str:
    """Which family answered, where the result says so."""
    for name in ("rung", "answered_by"):
        if getattr(result, name, None):
            return str(getattr(result, name))
    return type(result.family).__name__ if hasattr(result, "family") else ""


def plain_mean_field(problem: Problem) -> Answer:
    """Mean field with the sds of q itself, whatever the result shows by default."""
    answer = by_curvi(problem, "MeanField")
    draws = answer["result"].sample(4000)
    values = draws if problem.from_sites is None else jax.jit(jax.vmap(problem.from_sites))(draws)
    return answer | {"sd": np.asarray(values).std(axis=0)}


OURS: dict[str, Callable[[Problem], Answer]] = {
    "curvi": by_curvi,
    "curvi MeanField, plain sds": plain_mean_field,
    "curvi MeanField, linear response": lambda p: by_curvi(p, "MeanField", respond=True),
    "curvi FullRank": lambda p: by_curvi(p, "FullRank"),
}
