"""Other variational methods on the same posteriors, from zeros, at the settings of their tutorials.

All take the log density of the unconstrained vector; PyMC and pymc-extras get the models of
``pymc_models`` where there is one, else the density as an operation of PyTensor. A method with a
learning rate has one row for each rate (``NAME@RATE``) and is shown at its best bound.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.posterior_problems import Problem

STEPS, DRAWS, PATHS = 10_000, 4096, 20
Answer = dict[str, Any]


def moments(problem: Problem, z: jax.Array) -> Answer:
    """Means and sds of the compared quantities, from unconstrained draws."""
    x = jax.jit(jax.vmap(problem.constrain))(jnp.asarray(z))
    return {"mean": np.asarray(x.mean(axis=0)), "sd": np.asarray(x.std(axis=0))}


def normal_draws(mean: jax.Array, factor: jax.Array) -> jax.Array:
    """Draws of a normal distribution with covariance ``factor factor'``, or sds ``factor``."""
    noise = jax.random.normal(jax.random.key(7), (DRAWS, mean.shape[0]), mean.dtype)
    return mean + (noise * factor if factor.ndim == 1 else noise @ factor.T)


def by_numpyro(guide_name: str, problem: Problem, rate: float) -> Answer:
    """One of NumPyro's automatic guides with Adam."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_value

    zeros = jnp.zeros(problem.dimension)

    def model():
        support = dist.constraints.real_vector
        z = numpyro.sample("z", dist.ImproperUniform(support, (), zeros.shape))
        with numpyro.handlers.block():  # the density may run a model of its own
            value = problem.log_density(z)
        numpyro.factor("log_density", value)

    guide = getattr(autoguide, guide_name)(model, init_loc_fn=init_to_value(values={"z": zeros}))
    svi = SVI(model, guide, numpyro.optim.Adam(rate), Trace_ELBO())
    run = svi.run(jax.random.key(0), STEPS, progress_bar=False)
    z = guide.sample_posterior(jax.random.key(1), run.params, sample_shape=(DRAWS,))["z"]
    return moments(problem, z) | {"loss": float(jnp.mean(run.losses[-STEPS // 10 :]))}


def by_blackjax(name: str, problem: Problem, rate: float) -> Answer:
    """Mean field or full rank of BlackJAX with Adam, ten draws a step."""
    import blackjax
    import optax

    method = getattr(blackjax, name)(problem.log_density, optax.adam(rate), 10)
    keys = jax.random.split(jax.random.key(0), STEPS)
    scan = jax.jit(lambda s, k: jax.lax.scan(lambda s, k: method.step(k, s), s, k))
    state, info = scan(method.init(jnp.zeros(problem.dimension)), keys)
    z = method.sample(jax.random.key(1), state, DRAWS)
    return moments(problem, z) | {"loss": float(jnp.mean(info.elbo[-STEPS // 10 :]))}


def by_pathfinder(problem: Problem) -> Answer:
    """A single path of BlackJAX at its defaults."""
    import blackjax

    path = blackjax.vi.pathfinder
    start = jnp.zeros(problem.dimension)
    state, _ = jax.jit(lambda key: path.approximate(key, problem.log_density, start))(
        jax.random.key(0)
    )
    z, _ = path.sample(jax.random.key(1), state, DRAWS)
    return moments(problem, z)


def by_many_paths(problem: Problem) -> Answer:
    """Twenty paths of BlackJAX, Pareto-smoothed weights; a Pareto k above 0.7 is its warning."""
    import blackjax
    from blackjax.vi.multipathfinder import psis_weights

    method = blackjax.multipathfinder(problem.log_density)
    starts = jax.random.uniform(jax.random.key(2), (PATHS, problem.dimension), minval=-2, maxval=2)
    state, _ = jax.jit(method.init)(jax.random.key(0), starts)
    z = method.sample(jax.random.key(1), state, DRAWS)
    k = float(psis_weights(state)[1])
    return moments(problem, z) | {"said": [f"Pareto k {k:.2f}"] if not k <= 0.7 else []}


def by_gsm(problem: Problem) -> Answer:
    """Gaussian score matching of gsmvi at its defaults: 5,000 steps of two draws."""
    from gsmvi.gsm import GSM

    scores = jax.jit(jax.vmap(jax.grad(problem.log_density)))
    method = GSM(D=problem.dimension, lp=problem.log_density, lp_g=scores)
    mean, covariance = method.fit(jax.random.PRNGKey(0), verbose=False)
    return moments(problem, normal_draws(mean, jnp.linalg.cholesky(jnp.asarray(covariance))))


def by_batch_and_match(problem: Problem) -> Answer:
    """Algorithm 1 of its paper."""
    from benchmarks.batch_and_match import batch_and_match

    return moments(problem, normal_draws(*batch_and_match(problem.log_density, problem.dimension)))


def by_laplace(problem: Problem) -> Answer:
    """SciPy's L-BFGS-B to the mode, then the exact Hessian; refused where that is indefinite."""
    from scipy.optimize import minimize

    compiled = jax.jit(jax.value_and_grad(lambda z: -problem.log_density(z)))

    def value(z):
        found, slope = compiled(z)
        return float(found), np.asarray(slope, float)

    options = {"maxiter": 20_000, "maxfun": 50_000}
    mode = minimize(
        value, np.zeros(problem.dimension), jac=True, method="L-BFGS-B", options=options
    )
    hessian = jax.jit(jax.hessian(lambda z: -problem.log_density(z)))(mode.x)
    values, vectors = np.linalg.eigh(np.asarray(hessian))
    if values[0] <= 0:
        raise ValueError(f"the Hessian at the mode has the eigenvalue {values[0]:.3g}")
    z = normal_draws(jnp.asarray(mode.x), jnp.asarray(vectors / np.sqrt(values)))
    return moments(problem, z) | {"converged": bool(mode.success), "outcome": str(mode.message)}


def pymc_model(problem: Problem) -> tuple[Any, Callable[[Any], Answer]]:
    """A model of PyMC, and how its draws become moments: native where written, else wrapped."""
    import pymc as pm
    from pytensor import wrap_jax

    from benchmarks.pymc_models import native

    found = native(problem.posterior) if problem.posterior is not None else None
    if found is not None:
        model, names = found

        def read(draws: Any) -> Answer:
            columns = [np.asarray(draws.posterior[name])[0] for name in names]
            x = np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)
            return {"mean": x.mean(axis=0), "sd": x.std(axis=0)}

        return model, read
    with pm.Model() as model:
        z = pm.Flat("z", shape=problem.dimension, initval=np.zeros(problem.dimension))
        pm.Potential("log_density", wrap_jax(jax.jit(problem.log_density))(z))
    return model, partial(_read_wrapped, problem)


def _read_wrapped(problem: Problem, draws: Any) -> Answer:
    return moments(problem, np.asarray(draws.posterior["z"])[0])


def by_pymc(method: str, problem: Problem, rate: float) -> Answer:
    """ADVI of PyMC, mean field or full rank, with Adam."""
    import pymc as pm

    model, read = pymc_model(problem)
    with model:
        fitted = pm.fit(
            STEPS, method=method, progressbar=False, random_seed=0,
            obj_optimizer=pm.adam(learning_rate=rate),
        )  # fmt: skip
        draws = fitted.sample(DRAWS, random_seed=0)
    return read(draws) | {"loss": float(np.mean(fitted.hist[-STEPS // 10 :]))}


def by_dadvi(problem: Problem) -> Answer:
    """DADVI of pymc-extras at its defaults: 30 fixed draws, trust-ncg, 1,000 draws back."""
    from pymc_extras.inference import fit_dadvi

    model, read = pymc_model(problem)
    draws = fit_dadvi(model, random_seed=0, progressbar=False)
    return read(draws) | {"converged": bool(np.all(draws.optimizer_result["success"]))}


_PYMC = ("pymc", "pymc_extras.inference", "pytensor")
WITH_RATE: dict[str, tuple[Callable[[Problem, float], Answer], tuple[str, ...]]] = {
    "NumPyro AutoNormal": (partial(by_numpyro, "AutoNormal"), ("numpyro",)),
    "NumPyro AutoMultivariateNormal": (
        partial(by_numpyro, "AutoMultivariateNormal"), ("numpyro",),
    ),
    "NumPyro AutoIAFNormal (flow)": (partial(by_numpyro, "AutoIAFNormal"), ("numpyro",)),
    "BlackJAX meanfield_vi": (partial(by_blackjax, "meanfield_vi"), ("blackjax", "optax")),
    "BlackJAX fullrank_vi": (partial(by_blackjax, "fullrank_vi"), ("blackjax", "optax")),
    "PyMC ADVI": (partial(by_pymc, "advi"), _PYMC),
    "PyMC ADVI, full rank": (partial(by_pymc, "fullrank_advi"), _PYMC),
}  # fmt: skip
WITHOUT_RATE: dict[str, tuple[Callable[[Problem], Answer], tuple[str, ...]]] = {
    "DADVI pymc-extras": (by_dadvi, _PYMC),
    "Laplace": (by_laplace, ("scipy.optimize",)),
    "BlackJAX Pathfinder": (by_pathfinder, ("blackjax",)),
    "BlackJAX multi-path Pathfinder, PSIS": (by_many_paths, ("blackjax",)),
    "GSM gsmvi": (by_gsm, ("gsmvi.gsm",)),
    "Batch and match": (by_batch_and_match, ("scipy.linalg",)),
}
