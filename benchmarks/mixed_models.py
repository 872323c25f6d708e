"""Mixed models on real data, and NUTS on exactly the same model, priors included."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from curvi import datasets
from curvi.mixed import MixedModel
from curvi.mixed._origins import at_zero

CENTRED = 50  # rows per level from which NUTS mixes better on the effects themselves


@dataclass(frozen=True)
class Case:
    """One model, and the draws per chain that make NUTS a reference."""

    data: str
    formula: str
    likelihood: str
    draws: int
    target: float  # times faster than NUTS that is asked for

    def model(self) -> MixedModel:
        """Not fitted."""
        return MixedModel(self.formula, likelihood=self.likelihood)

    def table(self):
        """As a pandas table."""
        return datasets.load(self.data, download=False).table


CASES = {
    "sleepstudy": Case(
        "sleepstudy", "Reaction ~ Days + (1 + Days | Subject)", "gaussian", 3000, 10
    ),
    "radon": Case(
        "radon", "log_radon ~ basement + uranium + (1 + basement | county)", "gaussian", 3000, 10
    ),
    "epil": Case("epil", "y ~ lbase * trt + lage + V4 + (1 | subject)", "poisson", 2000, 10),
    "verbagg": Case(
        "verbagg",
        "r2 ~ Anger + Gender + btype + situ + mode + (1 | id) + (1 | item)",
        "bernoulli",
        1500,
        50,
    ),
    "ohio": Case("ohio", "resp ~ age * smoke + (1 | id)", "bernoulli", 3000, 50),
}


def numpyro_model(design, layout, likelihood):
    """The model of a design as a NumPyro function; rows are those of the design.

    Priors are stated where the columns are at their origins, which are their means.
    """
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def model():
        beta = numpyro.sample("beta", dist.Normal(0.0, jnp.asarray(design.scales)).to_event(1))
        t = jnp.asarray(design.X - design.origin) @ beta + jnp.asarray(design.offset)
        for index, factor in enumerate(design.factors):
            (block,) = factor.blocks
            sd = numpyro.sample(
                f"sd_{index}", dist.HalfNormal(jnp.asarray(block.scales)).to_event(1)
            )
            root = sd[:, None] * jnp.eye(block.size)
            if block.correlations:
                lkj = numpyro.sample(f"cholesky_{index}", dist.LKJCholesky(block.size, 2.0))
                root = sd[:, None] * lkj
            shape = (factor.levels, block.size)
            if design.rows / factor.levels >= CENTRED and block.size == 1:
                effects = numpyro.sample(
                    f"effects_{index}", dist.Normal(jnp.zeros(shape), sd).to_event(2)
                )
            else:
                white = numpyro.sample(
                    f"white_{index}", dist.Normal(jnp.zeros(shape), 1.0).to_event(2)
                )
                effects = numpyro.deterministic(f"effects_{index}", white @ root.T)
            columns = jnp.asarray(factor.columns - factor.origin)
            t = t + jnp.sum(effects[factor.codes] * columns, axis=1)
        y = jnp.asarray(design.y)
        if likelihood == "gaussian":
            noise = numpyro.sample("noise", dist.HalfNormal(layout.extras[0].scale))
            numpyro.sample("y", dist.Normal(t, noise), obs=y)
        elif likelihood == "poisson":
            numpyro.sample("y", dist.Poisson(jnp.exp(t)), obs=y)
        else:
            numpyro.sample("y", dist.Bernoulli(logits=t), obs=y)

    return model


def quantities(design, layout, draws: dict) -> dict[str, np.ndarray]:
    """Draws of all quantities where columns are zero, by name: effects, sds, correlations, noise.

    Each is an array (chains, draws).
    """
    beta = np.array(draws["beta"])
    beta[..., design.names.index("Intercept")] -= beta @ design.origin
    beta = at_zero(beta, design.within)
    out = {name: beta[..., i] for i, name in enumerate(design.names)}
    for index, factor in enumerate(design.factors):
        (block,) = factor.blocks
        shape, turn = np.eye(block.size), block.to_zero()
        root = turn @ (draws[f"sd_{index}"][..., None] * draws.get(f"cholesky_{index}", shape))
        sds = np.linalg.norm(root, axis=-1)
        for i, column in enumerate(block.columns):
            out[f"sd {column}|{factor.name}"] = sds[..., i]
        if block.correlations:
            matrix = root @ np.swapaxes(root, -1, -2) / (sds[..., None] * sds[..., None, :])
            for i in range(block.size):
                for j in range(i):
                    name = f"correlation {block.columns[j]},{block.columns[i]}|{factor.name}"
                    out[name] = matrix[..., i, j]
        effects = draws[f"effects_{index}"] @ turn.T
        for level, label in enumerate(factor.labels):
            for i, column in enumerate(block.columns):
                out[f"{column}|{factor.name}[{label}]"] = effects[..., level, i]
    if layout.extras:
        out[layout.extras[0].name] = draws["noise"]
    return out


def run_nuts(case: Case, *, draws: int, chains: int = 4, warmup: int = 1000, seed: int = 0) -> dict:
    """Means, sds and effective draws of every quantity; processor seconds without compilation."""
    import jax
    from numpyro.diagnostics import effective_sample_size, gelman_rubin
    from numpyro.infer import MCMC, NUTS

    with jax.enable_x64(True):
        design, layout = case.model().design(case.table())
        kernel = NUTS(
            numpyro_model(design, layout, case.likelihood),
            target_accept_prob=0.9,
            dense_mass=[("beta",)],
        )
        mcmc = MCMC(
            kernel, num_warmup=warmup, num_samples=draws, num_chains=chains,
            chain_method="sequential", progress_bar=False,
        )  # fmt: skip
        small = MCMC(kernel, num_warmup=5, num_samples=5, num_chains=1, progress_bar=False)
        small.run(jax.random.key(seed))  # what can be compiled beforehand
        started = time.process_time()
        mcmc.warmup(jax.random.key(seed), collect_warmup=False)
        warm = time.process_time() - started
        mcmc.run(jax.random.key(seed + 1))
        total = time.process_time() - started
        table = quantities(design, layout, jax.device_get(mcmc.get_samples(group_by_chain=True)))
    ess = {name: float(effective_sample_size(values)) for name, values in table.items()}
    return {
        "mean": {name: float(values.mean()) for name, values in table.items()},
        "sd": {name: float(values.std()) for name, values in table.items()},
        "least_ess": min(ess.values()),
        "least_ess_of": min(ess, key=ess.get),
        "largest_rhat": max(float(gelman_rubin(values)) for values in table.values()),
        "largest_error_sds": min(ess.values()) ** -0.5,
        "warmup_seconds": warm,
        "sampling_seconds": total - warm,
        "chains": chains,
        "draws": draws,
        "warmup": warmup,
    }
