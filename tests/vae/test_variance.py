"""The noise of one draw of the code, against its bound."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi.vae import Bernoulli, Gaussian, MLPObjective, initial_params
from curvi.vae._variance import (
    best_num_draws,
    reconstruction_variance,
    relative_gradient_error,
)

pytestmark = pytest.mark.float64_only
PIXELS, LATENT = 6, 2


def network(seed, likelihood):
    params = initial_params(
        np.random.default_rng(seed),
        inputs=PIXELS,
        hidden=(5,),
        latent=LATENT,
        variances=PIXELS if likelihood.variances is None else likelihood.variances,
        dtype=np.float64,
    )
    objective = MLPObjective(likelihood=likelihood, num_draws=1, decoder_l2=0.0, activation="tanh")
    return objective, params


def test_the_measured_variance_stays_below_its_bound(key):
    rng = np.random.default_rng(3)
    images = rng.random((20, PIXELS))
    objective, params = network(0, Bernoulli())
    found = reconstruction_variance(objective, params, images, num_draws=400, seed=key.size)
    assert 0 < found.measured < found.sharp


def test_a_gaussian_likelihood_has_no_bound():
    objective, params = network(1, Gaussian())
    images = np.random.default_rng(4).normal(size=(5, PIXELS))
    found = reconstruction_variance(objective, params, images, num_draws=4)
    assert np.isinf(found.sharp)
    assert found.measured > 0


def test_more_rows_average_out_the_noise_of_a_gradient():
    """The relative error falls as one over the root of the number of equal rows."""
    objective, params = network(2, Bernoulli())
    image = np.random.default_rng(5).random((1, PIXELS))
    few, many = (
        relative_gradient_error(objective, params, np.repeat(image, count, axis=0), num_draws=500)
        for count in (4, 64)
    )
    assert 2.5 < few / many < 6.0  # 4, and six sds of each estimate


def test_different_rows_call_for_one_draw_and_equal_rows_for_many():
    """Sure codes of different rows: the batch decides. Vague codes of equal rows: draws do."""
    objective, params = network(3, Bernoulli())
    generator = np.random.default_rng(6)
    different = np.repeat(generator.random((200, 1)) < 0.5, PIXELS, axis=1).astype(float)
    heads = params.heads.at[:, LATENT:].set(0.0).at[-1, LATENT:].set(-8.0)  # sds of 0.02
    assert best_num_draws(objective, params._replace(heads=heads), different, batch_size=10) == 1
    equal = 0.5 + 1e-4 * generator.random((200, PIXELS))
    assert best_num_draws(objective, params, equal, batch_size=10) > 1
    assert best_num_draws(objective, params, equal, batch_size=10, max_draws=2) == 2
    # More batches see smaller differences between them.
    assert best_num_draws(objective, params, equal, batch_size=10, num_batches=400) > 3


def test_the_number_of_draws_follows_from_variances_that_are_known():
    """g = x + 3 eps has V_b = 1/B and V_d = 9/B: the best M is 3."""
    objective = _Line()
    rows = np.random.default_rng(7).standard_normal((5000, 1))
    found = [best_num_draws(objective, {"a": jnp.zeros(200)}, rows, batch_size=1, seed=seed)
             for seed in range(3)]  # fmt: skip
    assert all(2 <= number <= 4 for number in found), found


@dataclass(frozen=True)
class _Line:
    """Slopes of 200 parameters, each with a fresh draw, whose batches are independent too."""

    num_draws: int = 1

    def __call__(self, params, batch, key):
        # The row decides 200 standard normal numbers, the key the noise.
        seed = (jnp.abs(batch[0, 0]) * 1e6).astype(jnp.int32)
        signal = jax.random.normal(jax.random.fold_in(jax.random.key(0), seed), (200,))
        return jnp.sum(params["a"] * (signal + 3 * jax.random.normal(key, (200,))))
