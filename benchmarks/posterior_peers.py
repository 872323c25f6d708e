"""Other libraries on the same posteriors, from the same start (zeros), with budgets of steps.

NumPyro and BlackJAX take the log density itself. PyMC and pymc-extras run on models written in
PyMC (``pymc_models``), where there is one: their gradients need PyTensor graphs.
"""

from __future__ import annotations

import time
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS = 10_000
RATES = (1e-3, 1e-2, 1e-1)
DRAWS = 4096


def moments(density, z) -> tuple[np.ndarray, np.ndarray]:
    x = jax.vmap(density.constrain)(z)
    return np.asarray(x.mean(axis=0)), np.asarray(x.std(axis=0))


def normal_draws(mean, sd) -> jax.Array:
    noise = jax.random.normal(jax.random.key(7), (DRAWS, mean.shape[0]), mean.dtype)
    return mean + noise * sd


def best_of_rates(run_one):
    """The run with the lowest loss over its last tenth, of all learning rates, and its seconds."""
    runs, seconds = [], []
    for rate in RATES:
        began = time.perf_counter()
        runs.append(run_one(rate))
        seconds.append(time.perf_counter() - began)
    losses = [loss if np.isfinite(loss) else np.inf for loss, _ in runs]
    best = int(np.argmin(losses))
    return runs[best][1], seconds[best]


def by_numpyro(guide_name, posterior):
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_value

    density, zeros = posterior.density, jnp.zeros(posterior.density.dimension)

    def model():
        support = dist.constraints.real_vector
        z = numpyro.sample("z", dist.ImproperUniform(support, (), zeros.shape))
        numpyro.factor("log_density", density.log_density(z))

    def run_one(rate):
        start = init_to_value(values={"z": zeros})
        guide = getattr(autoguide, guide_name)(model, init_loc_fn=start)
        svi = SVI(model, guide, numpyro.optim.Adam(rate), Trace_ELBO())
        run = svi.run(jax.random.key(0), STEPS, progress_bar=False)
        return float(jnp.mean(run.losses[-STEPS // 10 :])), (guide, run.params)

    (guide, params), seconds = best_of_rates(run_one)
    z = guide.sample_posterior(jax.random.key(1), params, sample_shape=(DRAWS,))["z"]
    return moments(density, z), None, seconds


def by_blackjax(posterior):
    import blackjax

    density, zeros = posterior.density, jnp.zeros(posterior.density.dimension)
    keys = jax.random.split(jax.random.key(0), STEPS)

    def run_one(rate):
        method = blackjax.meanfield_vi(density.log_density, optax.adam(rate), 10)
        scan = jax.jit(lambda s, k: jax.lax.scan(lambda s, k: method.step(k, s), s, k))
        state, info = scan(method.init(zeros), keys)
        return float(jnp.mean(info.elbo[-STEPS // 10 :])), state  # the field holds the loss

    state, seconds = best_of_rates(run_one)
    return moments(density, normal_draws(state.mu, jnp.exp(state.rho))), None, seconds


class NotExpressedError(Exception):
    """The peer cannot be given this model."""


def pymc_model(posterior):
    from benchmarks.pymc_models import native

    found = native(posterior)
    if found is None:
        raise NotExpressedError("not written in PyMC")
    return found


def pymc_moments(draws, names):
    columns = [np.asarray(draws.posterior[name])[0] for name in names]
    x = np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)
    return x.mean(axis=0), x.std(axis=0)


def by_pymc(posterior):
    import pymc as pm

    model, names = pymc_model(posterior)
    began = time.perf_counter()  # our own density is built before its clock starts, too
    with model:
        fitted = pm.fit(STEPS, method="advi", progressbar=False, random_seed=0)
        draws = fitted.sample(1000, random_seed=0)
    return pymc_moments(draws, names), None, time.perf_counter() - began


def by_dadvi(posterior):
    """At its defaults: 30 fixed draws, trust-ncg, 1,000 draws back."""
    from pymc_extras.inference import fit_dadvi

    model, names = pymc_model(posterior)
    began = time.perf_counter()
    draws = fit_dadvi(model, random_seed=0, progressbar=False)
    seconds = time.perf_counter() - began
    return pymc_moments(draws, names), bool(np.all(draws.optimizer_result["success"])), seconds


def measured(call, posterior, errors, *, again=False) -> dict:
    """Errors and seconds of a peer, of a second call too; converged where it says so itself."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            (mean, sd), converged, seconds = call(posterior)
            everything = time.perf_counter() - began
            # The first call may fill a cache of compiled modules on the disk.
            warm = {"seconds_warm": call(posterior)[2]} if again else {}
        except ImportError as error:
            return {"skipped": f"not installed: {error}"[:200]}
        except NotExpressedError as error:
            return {"skipped": str(error)}
        except Exception as error:  # noqa: BLE001  a peer that breaks is a finding, not our failure
            return {"skipped": f"{type(error).__name__}: {error}"[:200]}
    outcome = {None: "no verdict", True: "converged", False: "not converged"}[converged]
    return {
        "seconds": seconds,
        "seconds_all": everything,
        **warm,
        "outcome": outcome,
        "converged": converged,
        **errors(mean, sd, posterior),
    }


PEERS = {
    "NumPyro AutoNormal": partial(by_numpyro, "AutoNormal"),
    "BlackJAX meanfield_vi": by_blackjax,
    "PyMC ADVI": by_pymc,
    "DADVI pymc-extras": by_dadvi,
}
