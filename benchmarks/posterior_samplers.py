"""NUTS on the same posteriors: processor seconds until every mean is known to 0.05 sd.

That takes 400 effective draws of the worst quantity. Compilation and warm-up count once, draws in
proportion, so that a run that drew too many or too few is neither punished nor flattered.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.hierarchical_references import USUAL, WANTED, effective
from benchmarks.posterior_problems import Problem

Answer = dict[str, Any]
_MOST_RHAT = 1.01


def _answer(problem: Problem, z: jax.Array, seconds: Any) -> Answer:
    """Moments of draws (chains, draws, D), and the seconds for WANTED effective ones."""
    from numpyro.diagnostics import split_gelman_rubin

    x = np.asarray(jax.jit(jax.vmap(jax.vmap(problem.constrain)))(z), float)
    least, rhat = float(effective(x).min()), float(np.nanmax(split_gelman_rubin(x)))
    said = [] if rhat <= _MOST_RHAT else [f"R-hat {rhat:.3f}"]
    return {
        "mean": x.mean(axis=(0, 1)), "sd": x.std(axis=(0, 1)), "said": said, "ess": least,
        "seconds": seconds(WANTED / least),
    }  # fmt: skip


def by_numpyro(problem: Problem) -> Answer:
    """NumPyro's NUTS at its defaults, four vectorised chains of 1,000 + 1,000."""
    from numpyro.infer import MCMC, NUTS

    began = time.process_time()
    kernel = NUTS(potential_fn=lambda z: -problem.log_density(z))
    run = MCMC(kernel, chain_method="vectorized", progress_bar=False, **USUAL)
    jitter = jax.random.uniform(
        jax.random.key(3), (USUAL["num_chains"], problem.dimension), minval=-0.5, maxval=0.5
    )
    run.warmup(jax.random.key(0), init_params=jitter, extra_fields=("diverging",))
    jax.block_until_ready(run.last_state.z)
    prepared = time.process_time() - began
    run.run(run.last_state.rng_key)  # compiles the loop over draws, which a plain call does once
    run.post_warmup_state = run.last_state
    began = time.process_time()
    run.run(run.last_state.rng_key, extra_fields=("diverging",))
    z = jax.block_until_ready(run.get_samples(group_by_chain=True))
    sampling = time.process_time() - began
    answer = _answer(problem, z, lambda share: prepared + share * sampling)
    if diverging := int(run.get_extra_fields()["diverging"].sum()):
        answer["said"].append(f"{diverging} divergences")
    return answer


def by_nutpie(problem: Problem) -> Answer:
    """nutpie on the compiled density, four chains at its defaults."""
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    began = time.process_time()
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
    prepared = time.process_time() - began
    began = time.process_time()
    run = nutpie.sample(model, chains=USUAL["num_chains"], seed=0, progress_bar=False)
    spent = time.process_time() - began
    early = float(np.sum(run.warmup_sample_stats["n_steps"].to_numpy()))
    late = float(np.sum(run.sample_stats["n_steps"].to_numpy()))
    step = spent / (early + late)
    z = jnp.asarray(run.posterior["z"].to_numpy())
    answer = _answer(problem, z, lambda share: prepared + step * (early + share * late))
    if diverging := int(np.sum(run.sample_stats["diverging"].to_numpy())):
        answer["said"].append(f"{diverging} divergences")
    return answer


SAMPLERS = {
    "NumPyro NUTS": (by_numpyro, ("numpyro",)),
    "nutpie": (by_nutpie, ("nutpie",)),
}
