"""The chain against the Kalman smoother, and its cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import multivariate_normal

import curvi
from tests.families.kalman import LinearGaussian, smoothed

LENGTH, WIDTH, SEEN = 9, 2, 2


def random_model(rng):
    """A stable transition, correlated noise, and more than one emission."""
    rotation = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]

    def covariance(size):
        root = rng.normal(size=(size, size))
        return 0.3 * root @ root.T + 0.2 * np.eye(size)

    emission = rng.normal(size=(SEEN, WIDTH))
    sizes = covariance(WIDTH), emission, covariance(SEEN), covariance(WIDTH)
    return LinearGaussian(0.9 * rotation, *sizes)


def log_joint(model, y):
    """The log density of states and observations; rows of NaN are missing."""
    F, Q, H, R, start = (jnp.asarray(part) for part in model)
    seen, values = np.isfinite(y).all(axis=1), jnp.asarray(np.nan_to_num(y))

    def log_density(x):
        total = multivariate_normal.logpdf(x[0], jnp.zeros(WIDTH), start)
        moved = jax.vmap(lambda a, b: multivariate_normal.logpdf(b, F @ a, Q))(x[:-1], x[1:])
        rows = jax.vmap(lambda a, b: multivariate_normal.logpdf(b, H @ a, R))(x, values)
        return total + jnp.sum(moved) + jnp.sum(jnp.where(jnp.asarray(seen), rows, 0.0))

    return log_density


@pytest.mark.float64_only
def test_on_a_linear_gaussian_model_the_best_chain_is_the_kalman_smoother(key):
    rng = np.random.default_rng(int(jax.random.bits(key)))
    model = random_model(rng)
    y = rng.normal(size=(LENGTH, SEEN)) * 2
    y[[0, 4, 5]] = np.nan
    family = curvi.Chain(LENGTH, WIDTH)
    target = curvi.Target(log_joint(model, y), jnp.zeros((LENGTH, WIDTH)))
    result = curvi.fit(target, family=family, tolerance=1e-16, num_draws=LENGTH * WIDTH + 1)
    means, covariances, evidence = smoothed(model, y)
    np.testing.assert_allclose(result.mean, means, atol=1e-8)
    sd = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    np.testing.assert_allclose(family.sd(result.params).reshape(LENGTH, WIDTH), sd, rtol=1e-8)
    marginals = family.scale.marginals(result.params.scale_params)
    np.testing.assert_allclose(marginals, covariances, atol=1e-8)
    # Whitened draws integrate a quadratic exactly: their bound has no Monte-Carlo error.
    assert result.trace["elbo"][-1] == pytest.approx(evidence, abs=1e-8)


def test_the_precision_of_a_chain_is_block_tridiagonal(key, dtype):
    family = curvi.Chain(5, 2)
    params = family.init(jnp.zeros(10, dtype), 0.5).scale_params
    noise = jax.random.normal(key, params["links"].shape, dtype)
    params = {**params, "links": 0.5 * noise}
    metric = family.scale.mean_metric(params)
    precision = np.asarray(jax.vmap(metric.apply)(jnp.eye(10, dtype=dtype)), float)
    step = np.arange(10) // 2
    far = np.abs(step[:, None] - step[None]) > 1
    assert np.abs(precision[far]).max() == 0
    covariance = np.asarray(family.scale.covariance(params), float)
    tolerance = 1e-10 if dtype == jnp.float64 else 1e-3
    np.testing.assert_allclose(precision @ covariance, np.eye(10), atol=tolerance)


def test_too_few_fixed_draws_leave_a_long_chain_without_an_optimum(dtype):
    """The proof of ``min_fixed_draws``: later links turn z_{t+1} onto epsilon_t, S_t then grows."""
    family, draws, length = curvi.Chain(4, 1), 3, 4
    noise = np.asarray([[1.0, 0.0, 1.0, 1.0], [0.0, 1.0, -1.0, 1.0], [-1.0, -1.0, 0.0, -2.0]])
    noise = jnp.asarray(noise, dtype)  # centred: three draws span two directions
    assert np.linalg.matrix_rank(noise) == draws - 1
    params = family.init(jnp.zeros(length, dtype), 1.0)
    # z_3 = e_3, z_2 = e_2 + a e_3, z_1 = e_1 + b z_2 parallel to e_0, z_0 = s e_0 + c z_1.
    direction = np.linalg.lstsq(noise[:, 2:], noise[:, :1] - noise[:, 1:2], rcond=None)[0][:, 0]
    b, a = direction[0], direction[1] / direction[0]
    values, spreads = [], []
    for log_s in (0.0, 5.0, 10.0):
        s = np.exp(log_s)
        links = jnp.asarray([1 - s, b, a], dtype).reshape(3, 1, 1)
        steps = params.scale_params["steps"].at[0].set(log_s)
        moved = curvi.families.Params(params.mean, {"steps": steps, "links": links})
        z = jax.vmap(lambda e, q=moved: family.transform(q, e))(noise)
        spreads.append(float(jnp.mean(jnp.sum(z**2, axis=1))))
        values.append(0.5 * spreads[-1] - float(family.entropy(moved)))
    tolerance = 1e-6 if dtype == jnp.float64 else 0.2
    np.testing.assert_allclose(spreads, spreads[0], rtol=tolerance)
    assert values[2] < values[1] - 4 < values[0] - 8
    assert family.min_fixed_draws(length) == length + 1


@pytest.mark.parametrize("name", ["transform", "log_prob", "sd", "metric"])
def test_the_memory_of_a_chain_is_linear_in_its_length(name, dtype):
    length = 400
    family = curvi.Chain(length, 2)
    calls = {
        "transform": lambda p: family.transform(p, p.mean),
        "log_prob": lambda p: family.log_prob(p, p.mean),
        "sd": family.sd,
        "metric": lambda p: family.metric(p).solve(family.project(p, p)),
    }
    params = jax.eval_shape(family.init, jax.ShapeDtypeStruct((2 * length,), dtype))
    jaxpr = jax.make_jaxpr(calls[name])(params)
    sizes = [np.prod(v.aval.shape) for eqn in jaxpr.eqns for v in eqn.outvars]
    assert max(sizes) <= 16 * length
