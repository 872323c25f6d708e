"""The bounds, their derivatives, and the identities that tie them together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import optimize

from curvi._core.errors import InputError
from curvi.engine import Resources
from curvi.families import FullRank, LowRank, MeanField, Params
from curvi.glm._bound import Batch, GLMProblem, Rows, SampledGLMProblem
from curvi.glm._dense import DenseBound
from curvi.glm._design import DenseDesign, SparseDesign
from curvi.glm._fit import fit_glm, relevant_columns
from curvi.glm._rows import WholeTable
from curvi.glm._softmax import SoftmaxBound, SoftmaxProblem, logit_draws
from curvi.likelihoods import Bernoulli, Gaussian, Poisson

pytestmark = pytest.mark.float64_only
ROWS, COLUMNS, CLASSES = 25, 3, 3
LIKELIHOODS = {
    "bernoulli": (Bernoulli(), 1.0),
    "poisson": (Poisson(), 1.0),
    "gaussian": (Gaussian(), 0.5),
    "gaussian, free noise": (Gaussian(), -1e-9),
}


def rows_of(likelihood, noise=1.0, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(ROWS, COLUMNS))
    y = {
        Bernoulli: np.where(random.uniform(size=ROWS) > 0.4, 1.0, -1.0),
        Poisson: random.poisson(2.0, ROWS).astype(float),
        Gaussian: random.normal(size=ROWS),
    }[type(likelihood)]
    weight, precision = random.uniform(0.5, 2, ROWS), random.uniform(0.5, 2, COLUMNS)
    return Rows(DenseDesign(X), y, weight, precision, np.asarray(noise))


def device(rows):
    return jax.tree.map(jnp.asarray, rows)


def derivatives(value, at):
    """Value, gradient and Hessian by autodiff, in one compiled function."""

    def gradient(x):
        found, slope = jax.value_and_grad(value)(x)
        return slope, (found, slope)

    hessian, (found, slope) = jax.jit(jax.jacfwd(gradient, has_aux=True))(jnp.asarray(at))
    return found, slope, hessian


@pytest.mark.parametrize("relevance", [False, True])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_dense_hessian_is_that_of_the_compiled_bound(name, relevance):
    likelihood, noise = LIKELIHOODS[name]
    rows = rows_of(likelihood, noise)
    problem = GLMProblem(likelihood, MeanField(), relevance)
    table = WholeTable(rows.design.matrix, rows.y, rows.weight)
    bound = DenseBound(relevance, rows.precision, likelihood, table, noise)
    params = 0.5 * np.random.default_rng(1).normal(size=2 * COLUMNS)

    def value(flat):
        return problem.value(Params(flat[:COLUMNS], flat[COLUMNS:]), device(rows))

    found = bound.second_order(params)
    exact, gradient, hessian = derivatives(value, params)
    np.testing.assert_allclose(found.value, exact, rtol=1e-10)
    np.testing.assert_allclose(bound.value(params), found.value, rtol=1e-12)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("mean", [0.2, 5.0])  # the prior of the intercept is given, or chosen
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_dense_hessian_with_an_intercept_is_that_of_the_compiled_bound(name, mean):
    likelihood, noise = LIKELIHOODS[name]
    rows = rows_of(likelihood, noise)
    rows = rows._replace(precision=np.full(COLUMNS, 0.5))
    problem = GLMProblem(likelihood, MeanField(), relevance=True, intercept=True)
    table = WholeTable(rows.design.matrix, rows.y, rows.weight)
    relevant = relevant_columns(COLUMNS, relevance=True, intercept=True)
    bound = DenseBound(relevant, rows.precision, likelihood, table, noise)
    params = 0.5 * np.random.default_rng(1).normal(size=2 * COLUMNS)
    params[COLUMNS - 1] = mean

    def value(flat):
        return problem.value(Params(flat[:COLUMNS], flat[COLUMNS:]), device(rows))

    found = bound.second_order(params)
    exact, gradient, hessian = derivatives(value, params)
    np.testing.assert_allclose(found.value, exact, rtol=1e-10)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("family", [MeanField(), FullRank()])
@pytest.mark.parametrize("mean", [0.2, 5.0])
def test_the_prior_variance_of_an_intercept_is_chosen_but_not_too_small(family, mean):
    rows = rows_of(Bernoulli(), 1.0)
    problem = GLMProblem(Bernoulli(), family, relevance=True, intercept=True)
    plain = GLMProblem(Bernoulli(), family, relevance=False)
    q = family.init(jnp.asarray([0.3, -0.8, mean]), jnp.asarray([0.2, 0.5, 0.4]))
    moments = q.mean**2 + family.scale.variance(q.scale_params)
    least = 1 / rows.precision[-1]
    best = moments.at[-1].max(least)
    assert (best[-1] > least) == (mean == 5.0)
    expected = plain.value(q, device(rows._replace(precision=np.asarray(1 / best))))
    value = problem.value(problem.from_mean(q), device(rows))
    assert float(value) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_coordinate_takes_its_derivatives_in_its_own_parameterisation(name):
    likelihood, noise = LIKELIHOODS[name]
    rows = rows_of(likelihood, noise)
    problem = GLMProblem(likelihood, MeanField(), relevance=True)
    table = WholeTable(rows.design.matrix, rows.y, rows.weight)
    bound = DenseBound(True, rows.precision, likelihood, table, noise)
    params = np.array([0.3, -9.0, 6.0, -0.7, -3.0, -2.5])  # the first alpha is small
    in_mean = jnp.asarray([False, True, True])

    def moved(step):
        (alpha, rho), (first, second) = jnp.split(jnp.asarray(params), 2), jnp.split(step, 2)
        by_mean = (alpha * jnp.exp(rho) + first) * jnp.exp(-rho - second)
        return jnp.concatenate([jnp.where(in_mean, by_mean, alpha + first), rho + second])

    def value(step):
        flat = moved(step)
        return problem.value(Params(flat[:COLUMNS], flat[COLUMNS:]), device(rows))

    step = 0.1 * np.random.default_rng(2).normal(size=params.size)
    np.testing.assert_array_equal(bound.in_mean(params), in_mean)
    np.testing.assert_allclose(bound.moved(params, step), moved(jnp.asarray(step)), rtol=1e-12)
    found = bound.second_order(params)
    _, gradient, hessian = derivatives(value, np.zeros(params.size))
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-7, atol=1e-7)
    first = bound.first_order(params)
    np.testing.assert_allclose(first[0], found.value, rtol=1e-12)
    np.testing.assert_allclose(first[1], found.gradient, rtol=1e-12)


def test_a_sum_over_rows_has_the_same_bits_on_any_number_of_threads():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(9001, 4)), np.sign(random.normal(size=9001))
    params = random.normal(size=8)
    found = [
        DenseBound(
            False, np.ones(4), Bernoulli(), WholeTable(X, y, np.ones(9001)), threads=threads
        ).second_order(params)
        for threads in (1, 3)
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_table_of_zeros_and_ones_is_treated_as_any_other():
    random = np.random.default_rng(0)
    X = (random.uniform(size=(50, 3)) > 0.5).astype(float)
    binary = WholeTable(X, np.sign(random.normal(size=50)), np.ones(50))
    general = WholeTable(binary.matrix, binary.y, binary.weight)
    object.__setattr__(general, "squares", X * X)
    assert next(iter(binary)).is_binary
    assert not next(iter(general)).is_binary
    params = random.normal(size=6)
    found = [
        DenseBound(False, np.ones(3), Bernoulli(), table).second_order(params)
        for table in (binary, general)
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize(
    ("relevance", "intercept"),
    [
        pytest.param(False, False, marks=pytest.mark.slow),
        pytest.param(True, False, marks=pytest.mark.slow),
        (True, True),
    ],
)
def test_the_dense_hessian_of_a_softmax_is_that_of_the_compiled_bound(relevance, intercept):
    rows = rows_of(Bernoulli())
    labels = np.random.default_rng(3).integers(0, CLASSES, ROWS)
    draws = logit_draws(CLASSES, 0)
    table = WholeTable(rows.design.matrix, labels, rows.weight)
    relevant = np.tile(relevant_columns(COLUMNS, relevance, intercept), CLASSES)
    bound = SoftmaxBound(relevant, np.tile(rows.precision, CLASSES), table, draws)
    problem = SoftmaxProblem(MeanField(), relevance, CLASSES, intercept=intercept)
    sample = Batch(device(rows._replace(y=labels)), jnp.asarray(draws), jnp.asarray(1.0))
    params = 0.5 * np.random.default_rng(1).normal(size=2 * COLUMNS * CLASSES)

    def value(flat):
        first, second = (part.reshape(CLASSES, COLUMNS) for part in jnp.split(flat, 2))
        return problem.value(Params(first, second), sample)

    found = bound.second_order(params)
    exact, gradient, hessian = derivatives(value, params)
    np.testing.assert_allclose(found.value, exact, rtol=1e-10)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-6, atol=1e-7)


def test_draws_of_logits_have_exact_low_moments():
    draws = logit_draws(5, 2)
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(draws.T @ draws / len(draws), np.eye(5), atol=1e-10)


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize(
    ("family", "per_row"),
    [(MeanField(), False), (MeanField(), True), (FullRank(), False), (LowRank(1), False)],
    ids=str,
)
def test_the_sampled_bound_averages_to_the_exact_one(name, family, per_row):
    likelihood, noise = LIKELIHOODS[name]
    rows = device(rows_of(likelihood, noise))
    q = family.init(jnp.asarray([0.3, -0.2, 0.1]), 0.4)
    exact = GLMProblem(likelihood, family, relevance=False).value(q, rows)
    problem = SampledGLMProblem(likelihood, family, False, 2000, None, per_row)
    resources = Resources(jax.random.key(0), rows, noise=None)

    @jax.jit
    def one(step):
        return problem.value(q, problem.sample(resources, step))

    values = np.array([one(jnp.asarray(step, jnp.int32)) for step in range(12)])
    error = values.std(ddof=1) / np.sqrt(12)
    assert abs(values.mean() - exact) < 5 * error + 1e-9


@pytest.mark.parametrize(("per_row", "intercept"), [(False, False), (True, False), (False, True)])
def test_the_surrogate_has_the_gradient_of_the_bound_and_a_positive_hessian(per_row, intercept):
    likelihood, noise = LIKELIHOODS["bernoulli"]
    rows = device(rows_of(likelihood, noise))
    family = MeanField()
    problem = SampledGLMProblem(likelihood, family, True, 20, None, per_row, intercept=intercept)
    resources = Resources(jax.random.key(0), rows, noise=None)
    sample = problem.sample(resources, jnp.asarray(0, jnp.int32))
    raw = jnp.asarray([0.3, -0.2, 0.1, 0.4, 0.2, 0.9])  # mu and sigma

    def of(function):
        return lambda point: function(problem.from_raw(Params(point[:3], point[3:])), sample)

    @jax.jit
    def both(point):
        exact = jax.value_and_grad(of(problem.value))(point)
        surrogate = jax.value_and_grad(of(problem.surrogate))(point)
        return exact, surrogate, jax.hessian(of(problem.surrogate))(point)

    (value, gradient), (other, slope), hessian = both(raw)
    np.testing.assert_allclose(other, value, rtol=1e-12)
    np.testing.assert_allclose(slope, gradient, rtol=1e-9, atol=1e-12)
    assert np.linalg.eigvalsh(hessian).min() > 0
    with pytest.raises(InputError, match="no hyperparameters"):
        SampledGLMProblem(likelihood, family, False).surrogate(Params(raw[:3], raw[3:]), sample)


def test_noise_of_every_row_is_that_of_a_dense_table():
    random = np.random.default_rng(0)
    X = random.normal(size=(9, 4)) * (random.uniform(size=(9, 4)) > 0.5)
    place, column = np.nonzero(X)
    thin = SparseDesign(
        *map(jnp.asarray, (X[place, column], place, column, np.zeros(4), np.full(4, 2.0))),
        num_rows=9, intercept=True,
    )  # fmt: skip
    dense = DenseDesign(jnp.asarray(np.column_stack([2 * X, np.ones(9)])))
    noise, sd = random.normal(size=dense.noise_shape), jnp.asarray(random.uniform(size=5))
    entries = jnp.asarray(np.concatenate([noise[place, column], noise[:, 4]]))
    assert entries.shape == thin.noise_shape
    np.testing.assert_allclose(thin.noisy(sd, entries), dense.noisy(sd, jnp.asarray(noise)))


def test_a_sparse_design_is_the_dense_one():
    random = np.random.default_rng(0)
    X = random.normal(size=(9, 4)) * (random.uniform(size=(9, 4)) > 0.5)
    centre, scale = random.normal(size=4), random.uniform(0.5, 2, 4)
    place, column = np.nonzero(X)
    thin = SparseDesign(
        X[place, column], place, column, centre, 1 / scale, num_rows=9, intercept=True
    )
    dense = DenseDesign(jnp.asarray(np.column_stack([(X - centre) / scale, np.ones(9)])))
    weights = random.normal(size=(5, 2))

    @jax.jit
    def products(design, weights):
        def total(w, name):
            return jnp.sum(jnp.sin(getattr(design, name)(w**2)[:9]))

        first = weights[:, 0]
        return [
            [getattr(design, name)(w**2)[:9] for w in (first, weights)]
            + [jax.grad(total)(w, name) for w in (first, weights)]
            for name in ("linear", "squares")
        ]

    truth = jax.tree.leaves(products(dense, jnp.asarray(weights)))
    for design in (thin, thin.padded(16, 40)):
        found = products(jax.tree.map(jnp.asarray, design), jnp.asarray(weights))
        for one, other in zip(jax.tree.leaves(found), truth, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-10)
    for name in ("linear", "squares"):  # and on the host
        for w in (weights, weights[:, 0]):
            host = getattr(thin, name)(w**2)
            assert isinstance(host, np.ndarray)
            np.testing.assert_allclose(host, getattr(dense, name)(jnp.asarray(w) ** 2))


def test_a_full_rank_gaussian_fit_is_the_conjugate_posterior():
    rows = rows_of(Gaussian(), 0.5)
    X = rows.design.matrix
    precision = X.T @ (rows.weight[:, None] * X) / 0.5 + np.diag(rows.precision)
    mean = np.linalg.solve(precision, X.T @ (rows.weight * rows.y) / 0.5)
    found = fit_glm(Gaussian(), FullRank(), rows)
    assert found.converged
    np.testing.assert_allclose(found.q.mean, mean, atol=1e-6)
    covariance = FullRank().covariance(jax.tree.map(jnp.asarray, found.q))
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), atol=1e-6)


@pytest.mark.parametrize("relevance", [False, True])
@pytest.mark.parametrize("family", [MeanField(), FullRank()], ids=str)
def test_the_metric_and_its_inverse_undo_each_other(family, relevance):
    problem = GLMProblem(Bernoulli(), family, relevance, intercept=relevance)
    params = problem.from_mean(family.init(jnp.asarray([0.4, -1.0, 2.0]), 0.3))
    flat, unravel = ravel_pytree(params)
    tangent = unravel(jnp.asarray(np.random.default_rng(0).normal(size=flat.size)))
    tangent = problem.project(params, tangent)
    metric = problem.metric(params)
    back = metric.solve(metric.apply(tangent))
    np.testing.assert_allclose(ravel_pytree(back)[0], ravel_pytree(tangent)[0], atol=1e-9)


def test_the_relevance_bound_is_the_best_of_all_prior_variances():
    rows = rows_of(Bernoulli())
    q = Params(jnp.asarray([0.5, -0.1, 1.0]), jnp.log(jnp.asarray([0.3, 0.2, 0.6])))
    relevance = GLMProblem(Bernoulli(), MeanField(), relevance=True)
    plain = GLMProblem(Bernoulli(), MeanField(), relevance=False)

    @jax.jit
    def bound(log_precision):
        return plain.value(q, device(rows._replace(precision=jnp.exp(log_precision))))

    slope = jax.jit(jax.grad(bound))
    best = optimize.minimize(bound, np.zeros(COLUMNS), jac=slope, method="BFGS", tol=1e-8)
    value = relevance.value(relevance.from_mean(q), device(rows))
    np.testing.assert_allclose(value, best.fun, atol=1e-6)
    optimum = np.exp(2 * q.scale_params) + q.mean**2  # C_jj + mu_j^2
    np.testing.assert_allclose(np.exp(-best.x), optimum, rtol=1e-3)
