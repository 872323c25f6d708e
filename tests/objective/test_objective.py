"""The negative bound against closed forms, and its batch and per-row forms against the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import curvi
from curvi._core.errors import InputError
from curvi.objective import neg_elbo, sample_draws


@pytest.fixture
def regression(dtype):
    rng = np.random.default_rng(0)
    data = {
        "x": jnp.asarray(rng.normal(size=(12, 3)), dtype),
        "y": jnp.asarray(rng.normal(size=12), dtype),
    }

    def log_likelihood(position, rows):
        return -0.5 * (rows["y"] - rows["x"] @ position) ** 2

    return curvi.DataTarget(
        log_likelihood, data, lambda p: -0.5 * jnp.sum(p**2), jnp.zeros(3, dtype)
    )


def loose(dtype):
    return 1e-10 if dtype == jnp.float64 else 1e-4


@pytest.mark.parametrize("family", [curvi.FullRank(), curvi.LowRank(1)], ids=str)
def test_whitened_draws_give_the_closed_form_of_a_gaussian_target(family, key, dtype):
    precision = jnp.asarray([[2.0, 0.5, 0.1], [0.5, 1.0, 0.0], [0.1, 0.0, 3.0]], dtype)
    centre = jnp.asarray([1.0, -1.0, 0.5], dtype)
    target = curvi.Target(
        lambda z: -0.5 * (z - centre) @ precision @ (z - centre), jnp.zeros(3, dtype)
    )
    params = family.init(target.start, 0.4)
    noise = sample_draws(key, 9, family.num_noise(3), kind="whitened", dtype=dtype)
    shift = params.mean - centre
    energy = 0.5 * (jnp.trace(precision @ family.covariance(params)) + shift @ precision @ shift)
    np.testing.assert_allclose(
        neg_elbo(target.density, family, params, noise),
        energy - family.entropy(params),
        rtol=loose(dtype),
    )


def test_all_rows_equal_the_plain_target(regression, key, dtype):
    family = curvi.MeanField()
    params = family.init(regression.start, 0.3)
    noise = sample_draws(key, 8, 3, dtype=dtype)
    whole = neg_elbo(regression.density, family, params, noise, regression.rows)
    plain = curvi.Target(regression.log_prob, regression.position)
    np.testing.assert_allclose(
        whole, neg_elbo(plain.density, family, params, noise), rtol=loose(dtype)
    )


def test_minibatches_average_to_the_whole(regression, key, dtype):
    """Over the batches of a partition the scaled objective averages to the full one."""
    family = curvi.MeanField()
    params = family.init(regression.start, 0.3)
    noise = sample_draws(key, 8, 3, dtype=dtype)
    density = regression.with_batches([3]).density
    parts = [
        neg_elbo(
            density,
            family,
            params,
            noise,
            jax.tree.map(lambda leaf, i=i: leaf[3 * i : 3 * i + 3], regression.data),
        )
        for i in range(4)
    ]
    whole = neg_elbo(regression.density, family, params, noise, regression.rows)
    np.testing.assert_allclose(np.mean(parts), whole, rtol=loose(dtype))


def test_draws_per_row_that_are_all_equal_give_the_shared_objective(regression, key, dtype):
    family = curvi.FullRank()
    params = family.init(regression.start, 0.3)
    noise = sample_draws(key, 5, 3, dtype=dtype)
    repeated = jnp.broadcast_to(noise[:, None, :], (5, 12, 3))
    shared = neg_elbo(regression.density, family, params, noise, regression.rows)
    np.testing.assert_allclose(
        neg_elbo(regression.density, family, params, repeated, regression.rows),
        shared,
        rtol=loose(dtype),
    )


def test_draws_per_row_average_over_rows_of_the_prior(regression, key, dtype):
    """Against a loop over rows and draws."""
    family = curvi.MeanField()
    params = family.init(regression.start, 0.3)
    noise = jax.random.normal(key, (2, 12, 3), dtype)
    total = 0.0
    for m in range(2):
        for b in range(12):
            z = family.transform(params, noise[m, b])
            row = jax.tree.map(lambda leaf, b=b: leaf[b : b + 1], regression.data)
            total += float(regression.density.log_likelihood_rows(z, row)[0]) / 2
            total += float(regression.density.log_prior_prob(z)) / 24
    expected = -total - float(family.entropy(params))
    np.testing.assert_allclose(
        neg_elbo(regression.density, family, params, noise, regression.rows),
        expected,
        rtol=loose(dtype) * 10,
    )


def test_rows_of_a_plain_target_are_refused(dtype):
    target = curvi.Target(lambda z: -jnp.sum(z**2), jnp.zeros(2, dtype))
    params = curvi.MeanField().init(target.start)
    with pytest.raises(InputError, match="need a DataTarget"):
        neg_elbo(
            target.density, curvi.MeanField(), params, jnp.zeros((2, 2), dtype), {"x": jnp.ones(3)}
        )


@pytest.mark.float64_only
def test_the_gradient_vanishes_at_the_exact_posterior_of_a_linear_model(regression, key):
    """Conjugate oracle: full rank with whitened draws has its optimum at the true posterior."""
    family = curvi.FullRank()
    x, y = np.asarray(regression.data["x"]), np.asarray(regression.data["y"])
    covariance = np.linalg.inv(x.T @ x + np.eye(3))
    factor = np.linalg.cholesky(covariance)
    scale = np.tril(factor, -1) + np.diag(np.log(np.diag(factor)))
    params = family.init(regression.start)
    params = params._replace(
        mean=jnp.asarray(covariance @ x.T @ y), scale_params=jnp.asarray(scale)
    )
    noise = sample_draws(key, 6, 3, kind="whitened")
    gradient = jax.grad(lambda p: neg_elbo(regression.density, family, p, noise, regression.rows))(
        params
    )
    gradient = ravel_pytree(family.project(params, gradient))[0]
    np.testing.assert_allclose(gradient, 0, atol=1e-10)
