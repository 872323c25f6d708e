"""The textbook models as a plain log density and with a NumPyro guide."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from tests.interop.models import (
    COINS,
    COUNTS,
    GROUPS,
    NORMAL,
    assert_right,
    best_gaussian,
    numpyro_arguments,
    numpyro_model,
)

# Mean field misses the correlation of the hierarchical part, and says so.
pytestmark = [
    pytest.mark.float64_only,
    pytest.mark.filterwarnings("ignore::curvi._core.errors.MisfitWarning"),
]


def textbook(z):
    """The model of the other tests, with the Jacobians of the logistic function and of exp."""
    sig = jax.nn.log_sigmoid
    heads, tails = float(COINS.sum()), float((1 - COINS).sum())
    value = -0.5 * jnp.sum((NORMAL - z["mean"]) ** 2) - 0.005 * z["mean"] ** 2
    value += (2 + heads) * sig(z["chance"]) + (2 + tails) * sig(-z["chance"])
    shape, rate = 3.0 + float(COUNTS.sum()), 1.0 + len(COUNTS)
    value += shape * z["rate"] - rate * jnp.exp(z["rate"])
    value += -0.5 * (z["centre"] / 5) ** 2 - 0.5 * jnp.sum((z["effect"] - z["centre"]) ** 2)
    return value - 0.5 * jnp.sum((GROUPS - z["effect"]) ** 2)


def to_natural(z):
    return {**z, "chance": jax.nn.sigmoid(z["chance"]), "rate": jnp.exp(z["rate"])}


def test_textbook_models_are_right_as_a_plain_log_density(dtype):
    zeros = {name: jnp.zeros((), dtype) for name in ("mean", "chance", "rate", "centre")}
    position = {**zeros, "effect": jnp.zeros(3, dtype)}
    result = curvi.fit(curvi.Target(textbook, position, to_natural), progress=False)
    assert_right(result)
    start = result.to_blackjax()
    value = start.logdensity_fn(jax.tree.map(lambda leaf: leaf[0], start.positions))
    assert np.isfinite(value)


@pytest.mark.slow
def test_textbook_models_are_right_through_the_drop_in_for_svi(key, dtype):
    """4,000 draws know a mean to sd/63 and an sd to 1.1 %; six of those beyond the 5 % of a fit."""
    numpyro = pytest.importorskip("numpyro")
    arguments = numpyro_arguments(dtype)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        guide = numpyro.infer.autoguide.AutoNormal(numpyro_model)
        run = curvi.SVI(numpyro_model, guide).run(key, 200, *arguments, progress_bar=False)
        draws = guide.sample_posterior(key, run.params, sample_shape=(4000,))
    assert run.state.converged
    for name, (mean, sd) in best_gaussian().items():
        found = np.asarray(draws[name])
        assert np.abs((found.mean(axis=0) - mean) / sd).max() < 0.05 + 6 / 63, name
        assert np.abs(found.std(axis=0) / sd - 1).max() < 0.05 + 6 * 0.0112, name
