"""NUTS on the same posteriors: processor seconds until every mean is known to 0.05 sd.

That takes 400 effective draws of the worst quantity. Compilation is apart and counts once; of what
is left warm-up counts whole and draws in proportion, so that a run that drew too many is not
punished. A run with too few goes on until it has them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import clocks
from benchmarks.posterior_problems import Problem

Answer = dict[str, Any]
_MOST_RHAT, _CHAINS = 1.01, 4


def _moments(x: np.ndarray, divergences: int) -> Answer:
    """Moments of draws (chains, draws, D), and what their diagnostics say."""
    from numpyro.diagnostics import split_gelman_rubin

    rhat = float(np.nanmax(split_gelman_rubin(x)))
    said = [] if rhat <= _MOST_RHAT else [f"R-hat {rhat:.3f}"]
    said += [f"{divergences} divergences"] * bool(divergences)
    return {"mean": x.mean(axis=(0, 1)), "sd": x.std(axis=(0, 1)), "said": said}


def _constrained(problem: Problem, z: Any) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(jax.vmap(problem.constrain)))(jnp.asarray(z)), float)


def by_numpyro(problem: Problem) -> Answer:
    """NumPyro's NUTS at its defaults, four vectorised chains of 1,000 + 1,000."""
    from numpyro.infer import NUTS

    if problem.numpyro is not None:
        model, args, kwargs = problem.numpyro
        kernel, init = partial(NUTS, partial(model, *args, **kwargs)), None
    else:
        kernel = partial(NUTS, potential_fn=lambda z: -problem.log_density(z))
        init = jax.random.uniform(
            jax.random.key(3), (_CHAINS, problem.dimension), minval=-2.0, maxval=2.0
        )

    def values(draws: dict[str, np.ndarray]) -> np.ndarray:
        if problem.from_sites is None:
            return _constrained(problem, draws["z"])
        return np.asarray(jax.jit(jax.vmap(jax.vmap(problem.from_sites)))(draws), float)

    run = clocks.nuts(kernel, values, num_chains=_CHAINS, init_params=init)
    enough = [] if run.enough else [f"{run.ess:.0f} effective draws after {len(run.values[0])}"]
    answer = _moments(run.values, run.divergences)
    return answer | {
        "said": answer["said"] + enough, "ess": run.ess, "draws": run.values.shape[1],
        "seconds": run.seconds, "compiling": run.compiling,
    }  # fmt: skip


def by_nutpie(problem: Problem) -> Answer:
    """nutpie on the compiled density, four chains at its defaults."""
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    with clocks.spent() as prepared:
        compiled = jax.jit(jax.value_and_grad(problem.log_density))
        jax.block_until_ready(compiled(jnp.zeros(problem.dimension)))

    def make_log_density():
        def value(z):
            found, slope = compiled(z)
            return float(found), np.asarray(slope, float)

        return value

    def make_expand(*_):
        return lambda z: {"z": np.asarray(z, float)}

    model = from_pyfunc(
        problem.dimension, make_log_density, make_expand, [np.dtype(np.float64)],
        [(problem.dimension,)], ["z"],
        make_initial_point_fn=lambda seed: np.random.default_rng(seed).uniform(
            -0.5, 0.5, problem.dimension
        ),
    )  # fmt: skip
    with clocks.spent() as sampling:
        run = nutpie.sample(model, chains=_CHAINS, seed=0, progress_bar=False)
    early = float(np.sum(run.warmup_sample_stats["n_steps"].to_numpy()))
    late = float(np.sum(run.sample_stats["n_steps"].to_numpy()))
    x = _constrained(problem, run.posterior["z"].to_numpy())
    answer = _moments(x, int(np.sum(run.sample_stats["diverging"].to_numpy())))
    ess = float(clocks.effective(x).min())
    step = sampling.running / (early + late)
    running = prepared.running + step * (early + clocks.WANTED / ess * late)
    compiling = prepared.compiling + sampling.compiling
    few = [f"{ess:.0f} effective draws"] * (ess < clocks.WANTED)
    return answer | {
        "said": answer["said"] + few, "ess": ess, "draws": x.shape[1],
        "seconds": compiling + running, "compiling": compiling,
    }  # fmt: skip


SAMPLERS = {
    "NumPyro NUTS": (by_numpyro, ("numpyro",)),
    "nutpie": (by_nutpie, ("nutpie",)),
}
