"""The noise of one draw of the code, against its bound."""

from __future__ import annotations

import numpy as np
import pytest

from curvi.models.vae import Bernoulli, Gaussian, MLPObjective, initial_params
from curvi.models.vae.variance import reconstruction_variance, relative_gradient_error

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
