"""Curvature of regression bounds: rows of Martens' sums, cost of a step, a full covariance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

import curvi
from curvi._core.quadrature import gauss_hermite
from curvi.engine import Resources
from curvi.families import FullRank, MeanField
from curvi.glm._bound import Rows, SampledGLMProblem
from curvi.glm._design import DenseDesign
from curvi.likelihoods import Bernoulli, Gaussian
from curvi.linalg import hessian
from curvi.objective._draws import host_generator

pytestmark = pytest.mark.float64_only


def regression(random, rows, columns):
    X = random.normal(size=(rows, columns))
    y = np.where(random.random(rows) < special.expit(X[:, 0]), 1.0, -1.0)
    ones = jnp.ones
    return Rows(
        DenseDesign(jnp.asarray(X)), jnp.asarray(y), ones(rows), ones(columns), jnp.ones(())
    )


@pytest.mark.parametrize("per_row", [False, True])
def test_martens_sums_are_the_squared_gradients_of_single_rows(key, per_row):
    rows = regression(host_generator(key), 7, 3)
    problem = SampledGLMProblem(Bernoulli(), MeanField(), True, 4, None, per_row)
    sample = problem.sample(Resources(key, rows, noise=None), jnp.asarray(2))
    start = MeanField().init(jnp.full(3, 0.3), jnp.full(3, 0.5))
    point = problem.to_raw(problem.from_mean(start))
    found = problem.squared_gradients(problem.from_raw, point, sample)
    X, y = np.asarray(rows.design.matrix), np.asarray(rows.y)
    expected = np.zeros((2, 3))
    for i in range(7):
        noise = np.asarray(sample.noise[:, i] if per_row else sample.noise)
        predictor = (np.asarray(point.mean) + np.asarray(point.scale_params) * noise) @ X[i]
        pull = -y[i] * special.expit(-y[i] * predictor)
        slopes = np.mean(pull), np.mean(pull[:, None] * noise, axis=0)
        expected += [(slopes[0] * X[i]) ** 2, (slopes[1] * X[i]) ** 2]
    np.testing.assert_allclose(found.mean, expected[0], rtol=1e-9)
    np.testing.assert_allclose(found.scale_params, expected[1], rtol=1e-9)


def test_martens_preconditioner_is_refused_where_rows_cannot_be_told_apart(key):
    problem = SampledGLMProblem(Gaussian(), MeanField(), False, 4)
    rows = regression(host_generator(key), 7, 3)
    sample = problem.sample(Resources(key, rows, noise=None), jnp.asarray(0))
    start = MeanField().init(jnp.zeros(3), jnp.ones(3))
    with pytest.raises(curvi.InputError, match="does not show the gradients of its rows"):
        problem.squared_gradients(problem.from_raw, start, sample)


def flops_of_a_product(size, draws):
    """Of one product with the Hessian in (mu, R) of a bound on draws, counted by XLA."""
    family = FullRank()
    noise = jnp.ones((draws, size))

    def value(params):
        z = jax.vmap(lambda e: family.transform(params, e))(noise)
        return jnp.sum(jnp.cos(z)) - family.scale.log_det(params.scale_params)

    def product(params, direction):
        return hessian(value, params)[2](direction)

    params = family.init(jnp.zeros(size), jnp.ones(size))
    cost = jax.jit(product).lower(params, params).compile().cost_analysis()
    return (cost[0] if isinstance(cost, list) else cost)["flops"]


@pytest.mark.slow
def test_a_step_costs_k_products_of_the_order_of_draws_times_squared_dimension(key):
    """The paper's O(K d d_z^2): linear in K and in the draws, quadratic in the dimension."""
    small, wide, many = (flops_of_a_product(*s) for s in ((40, 16), (160, 16), (160, 64)))
    assert 1.7 < np.log(wide / small) / np.log(4) < 2.1
    assert 0.8 < np.log(many / wide) / np.log(4) < 1.1
    rows = regression(host_generator(key), 60, 20)
    problem = SampledGLMProblem(Bernoulli(), MeanField(), False, 8)
    resources = Resources(key, rows, noise=None)
    params = MeanField().init(jnp.zeros(20), jnp.full(20, 0.2))
    for count in (3, 6):
        method = curvi.HFSGVI(cg_steps=count)
        state = method.init(problem, params, resources)
        _, info = method.step(problem, state, resources, jnp.asarray(0), jnp.zeros(()))
        assert int(info.cg_steps) == count


def test_a_relevance_prior_with_full_covariance_ends_at_an_optimum_of_its_bound(key):
    """The bound by independent code: quadrature over predictors, log|det R| and the prior term."""
    random = host_generator(key)
    X = random.normal(size=(80, 3))
    y = random.random(80) < special.expit(2 * X[:, 0] - 1.5 * X[:, 1])
    model = curvi.BayesianLogisticRegression(
        prior="ard", covariance="full", fit_intercept=False, standardize=False, num_starts=1
    ).fit(X, y)
    signs = jnp.asarray(np.where(y, 1.0, -1.0))
    nodes, weights = map(jnp.asarray, gauss_hermite(40))

    def bound(flat):
        mean, entries = flat[:3], flat[3:].reshape(3, 3)
        R = jnp.tril(entries, -1) + jnp.diag(jnp.exp(jnp.diag(entries)))
        spread = jnp.linalg.norm(jnp.asarray(X) @ R, axis=1)
        t = (jnp.asarray(X) @ mean)[:, None] + spread[:, None] * nodes[None, :]
        energy = jnp.sum(jax.nn.log_sigmoid(signs[:, None] * t) @ weights)
        moment = jnp.sum(R**2, axis=1) + mean**2
        return energy + jnp.sum(jnp.diag(entries)) - 0.5 * jnp.sum(jnp.log(moment))

    q = model.result_.q
    flat = jnp.concatenate([jnp.asarray(q.mean), jnp.asarray(q.scale_params).ravel()])
    np.testing.assert_allclose(float(bound(flat)), model.elbo_, rtol=1e-6)
    climb = jax.jit(jax.value_and_grad(lambda flat: -bound(flat)))
    better = optimize.minimize(climb, np.asarray(flat), jac=True, method="L-BFGS-B")
    assert -better.fun < model.elbo_ + 1e-3
