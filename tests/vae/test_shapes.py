"""Images of any shape, missing entries, conditions, weights of the KL term, importance weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import curvi
from curvi.vae import Bernoulli, Gaussian, MLPObjective, Rows, VAEModel, VAEObjective
from curvi.vae._networks import initial_params
from tests.vae.test_objective import generator_of


def networks(key, shape, dtype, *, latent=2, likelihood=None, **options):
    """One affine layer each way, for rows of any shape; the flat form is the reference."""
    size, rng = int(np.prod(shape)), generator_of(key)
    params = {
        "mean": jnp.asarray(rng.normal(size=(size, latent)), dtype),
        "spread": jnp.asarray(rng.normal(size=(size, latent)), dtype),
        "out": jnp.asarray(rng.normal(size=(latent, size)), dtype),
    }

    def encode(p, x):
        flat = x.reshape(len(x), -1)
        return flat @ p["mean"], flat @ p["spread"]

    def decode(p, z):
        return (z @ p["out"]).reshape(-1, *shape)

    return VAEObjective(encode, decode, likelihood or Bernoulli(), **options), params


@pytest.mark.parametrize("likelihood", [Bernoulli(), Gaussian(0.3)], ids=["binary", "real"])
@pytest.mark.parametrize("shape", [(4, 3), (1, 4, 3), (12, 1, 1)])
def test_images_of_any_shape_have_the_bound_of_their_flattened_form(key, likelihood, shape, dtype):
    """Value and gradient: the pixels were summed over the last axis only."""
    objective, params = networks(key, shape, dtype, likelihood=likelihood, num_draws=2)
    flat, _ = networks(key, (12,), dtype, likelihood=likelihood, num_draws=2)
    x = jnp.asarray(generator_of(key).random((5, 12)), dtype)
    ours = jax.value_and_grad(objective)(params, x.reshape(5, *shape), key)
    theirs = jax.value_and_grad(flat)(params, x, key)
    tolerance = 1e-12 if dtype == jnp.float64 else 1e-4
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), ours, theirs
    )


@pytest.mark.float64_only
def test_a_grey_prediction_costs_log_2_per_pixel():
    objective = VAEObjective(
        lambda p, x: (jnp.zeros((len(x), 2)), jnp.zeros((len(x), 2))),
        lambda p, z: p * jnp.zeros((len(z), 1, 28, 28)),
    )
    x = jnp.asarray(np.random.default_rng(0).random((3, 1, 28, 28)))
    value = objective(jnp.ones(()), x, jax.random.key(0))
    np.testing.assert_allclose(value, 784 * np.log(2))
    np.testing.assert_allclose(  # outputs in another shape are brought to that of the rows
        objective(jnp.ones(()), x.reshape(3, 784), jax.random.key(0)), 784 * np.log(2)
    )


@pytest.mark.float64_only
def test_a_decoder_of_another_size_is_refused(key):
    objective, params = networks(key, (4, 3), np.float64)
    with pytest.raises(curvi.InputError, match=r"decode\(\) returned shape \(5, 4, 3\)"):
        objective(params, Rows(jnp.ones((5, 12)), jnp.ones((5, 13))), key)


@pytest.mark.float64_only
def test_the_bound_with_gaps_is_that_of_the_observed_entries(key):
    """Against the sum over observed entries alone; and gaps say nothing to any parameter."""
    rng = generator_of(key)
    x = rng.random((6, 5))
    gaps = rng.random((6, 5)) < 0.4
    objective = MLPObjective(missing=True, num_draws=2)
    params = initial_params(rng, inputs=5, hidden=(4,), latent=2, dtype=np.float64)
    batch = Rows(jnp.asarray(np.where(gaps, 0.3, x)), jnp.asarray(np.where(gaps, np.nan, x)))
    outputs = objective.outputs(params, batch, key)
    logits = np.asarray(objective.decoded(params, _codes(objective, params, batch, key)))
    terms = np.tile(x, (2, 1)) * logits - np.logaddexp(0, logits)
    fit = np.sum(np.where(np.tile(gaps, (2, 1)), 0, terms), axis=1).reshape(2, 6).mean(axis=0)
    mean, s = np.asarray(outputs.mean), np.asarray(outputs.log_variance)
    kl = 0.5 * np.sum(mean**2 + np.exp(s) - s - 1, axis=1)
    np.testing.assert_allclose(objective.row_losses(outputs, batch), kl - fit, rtol=1e-10)
    dense = jax.jit(lambda p: objective.gauss_newton(p, batch, key)[2].dense())(params)
    assert np.isfinite(dense).all()


def _codes(objective, params, batch, key):
    mean, s = objective.code(params, batch.features)
    z = mean[None] + jnp.exp(s / 2)[None] * objective.noise(key, mean)
    return z.reshape(-1, mean.shape[1])


@pytest.mark.float64_only
@pytest.mark.slow
def test_the_importance_weighted_bound_is_the_log_mean_of_its_weights(key):
    rng = generator_of(key)
    x = jnp.asarray(rng.random((6, 5)))
    params = initial_params(rng, inputs=5, hidden=(4,), latent=2, dtype=np.float64)
    objective = MLPObjective(importance_weighted=True, num_draws=4)
    mean, s = (np.asarray(part) for part in objective.code(params, x))
    z = np.asarray(_codes(objective, params, Rows(x, x), key)).reshape(4, 6, 2)
    logits = np.asarray(objective.decoded(params, jnp.asarray(z.reshape(24, 2)))).reshape(4, 6, 5)
    joint = np.sum(np.asarray(x) * logits - np.logaddexp(0, logits), axis=2)
    joint += np.sum(-0.5 * z**2, axis=2)
    q = np.sum(-0.5 * (z - mean) ** 2 / np.exp(s) - 0.5 * s, axis=2)
    expected = np.log(4) - special.logsumexp(joint - q, axis=0)
    found = objective.row_losses(objective.outputs(params, x, key), x)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    one = MLPObjective(importance_weighted=True)
    plain = MLPObjective()
    gradients = [jax.grad(o)(params, x, key) for o in (one, plain)]
    assert len({jax.tree.structure(g) for g in gradients}) == 1


@pytest.mark.float64_only
def test_beta_weighs_the_divergence_and_its_curvature(key):
    rng = generator_of(key)
    x = jnp.asarray(rng.random((6, 5)))
    params = initial_params(rng, inputs=5, hidden=(4,), latent=2, dtype=np.float64)
    values = [float(MLPObjective(beta=b)(params, x, key)) for b in (1.0, 2.0, 4.0)]
    np.testing.assert_allclose(values[2] - values[1], 2 * (values[1] - values[0]))
    outputs = MLPObjective(beta=4.0).outputs(params, x, key)
    np.testing.assert_allclose(MLPObjective(beta=4.0).curvature(outputs).mean, 4)


@pytest.mark.float64_only
def test_a_condition_is_one_more_column_of_both_networks(key):
    """The same weights applied by hand to rows with their condition appended."""
    rng = generator_of(key)
    x, c = jnp.asarray(rng.random((6, 5))), jnp.asarray(rng.normal(size=(6, 3)))
    params = initial_params(rng, inputs=5, hidden=(4,), latent=2, conditions=3, dtype=np.float64)
    objective = MLPObjective(conditional=True)
    hidden = jnp.tanh(jnp.concatenate([x, c], axis=1) @ params.encoder[0][:-1])
    heads = hidden @ params.heads[:-1]
    np.testing.assert_allclose(objective.code(params, x, c)[0], heads[:, :2])
    with pytest.raises(curvi.InputError, match="condition"):
        objective(params, x, key)
    assert np.isfinite(objective(params, Rows(x, x, c), key))


@pytest.mark.float64_only
def test_networks_of_one_s_own_can_be_used_like_the_built_in_ones(key):
    objective, params = networks(key, (4, 3), np.float64)
    model = VAEModel(objective, params, latent=2)
    x = generator_of(key).random((5, 4, 3))
    mean, sd = model.encode(x)
    np.testing.assert_allclose(mean, x.reshape(5, -1) @ params["mean"], rtol=1e-10)
    assert (sd > 0).all()
    assert model.reconstruct(x).shape == model.denoise(x, 3).shape == x.shape
    holes = np.where(generator_of(key).random(x.shape) < 0.3, np.nan, x)
    full = model.impute(holes, num_sweeps=4)
    np.testing.assert_array_equal(full[~np.isnan(holes)], x[~np.isnan(holes)])
    assert np.isfinite(full).all()
    assert np.isfinite(model.score(holes))
    assert model.sample(3, noise=True).shape == (3, 4, 3)
    assert not np.array_equal(model.sample(3), model.sample(3))
    np.testing.assert_array_equal(model.sample(3, 1), model.sample(3, 1))
