"""Other libraries on the same log density of an unconstrained vector, from the same start."""

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


def normal_draws(mean, sd_or_factor) -> jax.Array:
    noise = jax.random.normal(jax.random.key(7), (DRAWS, mean.shape[0]), mean.dtype)
    scale = sd_or_factor
    return mean + (noise * scale if scale.ndim == 1 else noise @ scale.T)


def by_numpyro(guide_name, posterior):
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_value

    density, zeros = posterior.density, jnp.zeros(posterior.density.dimension)

    def model():
        support = dist.constraints.real_vector
        z = numpyro.sample("z", dist.ImproperUniform(support, (), zeros.shape))
        numpyro.factor("log_density", density.log_density(z))

    best = None
    for rate in RATES:
        start = init_to_value(values={"z": zeros})
        guide = getattr(autoguide, guide_name)(model, init_loc_fn=start)
        svi = SVI(model, guide, numpyro.optim.Adam(rate), Trace_ELBO())
        run = svi.run(jax.random.key(0), STEPS, progress_bar=False)
        loss = float(jnp.mean(run.losses[-STEPS // 10 :]))
        if best is None or loss < best[0] or not np.isfinite(best[0]):
            best = (loss, guide, run.params)
    _, guide, params = best
    z = guide.sample_posterior(jax.random.key(1), params, sample_shape=(DRAWS,))["z"]
    return moments(density, z)


def by_blackjax(posterior):
    import blackjax

    density, zeros = posterior.density, jnp.zeros(posterior.density.dimension)
    best = None
    for rate in RATES:
        method = blackjax.meanfield_vi(density.log_density, optax.adam(rate), 10)

        def body(state, key, method=method):
            return method.step(key, state)

        keys = jax.random.split(jax.random.key(0), STEPS)
        state, info = jax.jit(lambda s, k, body=body: jax.lax.scan(body, s, k))(
            method.init(zeros), keys
        )
        loss = float(jnp.mean(info.elbo[-STEPS // 10 :]))  # the field holds the loss
        if best is None or loss < best[0] or not np.isfinite(best[0]):
            best = (loss, state)
    state = best[1]
    return moments(density, normal_draws(state.mu, jnp.exp(state.rho)))


def pymc_model(posterior):
    import pymc as pm
    from pytensor import wrap_jax

    density = posterior.density
    potential = wrap_jax(density.log_density)
    with pm.Model() as model:
        z = pm.Flat("z", shape=density.dimension, initval=np.zeros(density.dimension))
        pm.Potential("log_density", potential(z))
    return model


def by_pymc(posterior):
    import pymc as pm

    with pymc_model(posterior):
        fitted = pm.fit(STEPS, method="advi", progressbar=False, random_seed=0)
    mean, sd = np.asarray(fitted.mean.eval()), np.asarray(fitted.std.eval())
    return moments(posterior.density, normal_draws(jnp.asarray(mean), jnp.asarray(sd)))


def by_dadvi(posterior):
    import pymc_extras

    # Its Hessian products need PyTensor gradients twice, which a JAX function does not have.
    draws = pymc_extras.fit_dadvi(
        pymc_model(posterior),
        draws=DRAWS,
        random_seed=0,
        progressbar=False,
        optimizer_method="L-BFGS-B",
        use_grad=True,
        use_hess=False,
        use_hessp=False,
    )
    z = np.asarray(draws.posterior["z"])[0]
    return moments(posterior.density, jnp.asarray(z))


def measured(call, posterior, errors) -> dict:
    """Errors and seconds of a peer; none of them gives a verdict."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mean, sd = call(posterior)
        except ImportError as error:
            return {"skipped": f"not installed: {error}"}
        except Exception as error:  # noqa: BLE001  a peer that breaks is a finding, not our failure
            return {"skipped": f"{type(error).__name__}: {error}"[:200]}
    return {
        "seconds": time.perf_counter() - began,
        "outcome": "no verdict",
        **errors(mean, sd, posterior.draws),
    }


PEERS = {
    "NumPyro AutoNormal": partial(by_numpyro, "AutoNormal"),
    "NumPyro AutoMultivariateNormal": partial(by_numpyro, "AutoMultivariateNormal"),
    "BlackJAX meanfield_vi": by_blackjax,
    "PyMC ADVI": by_pymc,
    "DADVI pymc-extras": by_dadvi,
}
