"""Kronecker curvature, and the methods that train auto-encoders."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import curvi
from curvi.engine import Resources
from curvi.solvers._kfac import _inverse_root
from curvi.solvers._kronecker import (
    backward,
    first_sides,
    kronecker_metric,
    layer_factors,
    renewed_sides,
)
from curvi.solvers._method import Layer
from curvi.vae import Bernoulli, Gaussian, MLPObjective, initial_params
from curvi.vae._training import EpochProblem, ShuffledRows


def problem_of(key, dtype, likelihood=None, variances=0, **options):
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    codes = generator.standard_normal((300, 2))
    X = 1 / (1 + np.exp(-3 * codes @ generator.standard_normal((2, 12))))
    params = initial_params(
        generator, inputs=12, hidden=(8,), latent=2, variances=variances, dtype=dtype
    )
    objective = MLPObjective(likelihood=likelihood or Bernoulli(), **options)
    return objective, params, jnp.asarray(X, dtype)


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("likelihood", "variances"), [(Bernoulli(), 0), (Gaussian("pixel"), 12), (Gaussian("one"), 1)]
)
def test_inputs_and_deltas_of_the_layers_give_the_gradient(key, likelihood, variances):
    objective, params, X = problem_of(key, np.float64, likelihood, variances)
    value, deltas, inputs = backward(objective, params, X, key)
    expected, gradient = jax.value_and_grad(objective)(params, X, key)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    matrices = objective.matrices(gradient)
    for rows, delta, reference in zip(inputs, deltas, matrices, strict=True):
        np.testing.assert_allclose(rows.T @ delta, reference, atol=1e-12)


@pytest.mark.float64_only
@pytest.mark.parametrize("num_draws", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_factors_have_the_trace_of_the_gauss_newton_matrix_on_average(key, num_draws):
    """For one row and equal draws a layer's block is a a' x E[d d'] over signs."""
    objective, params, X = problem_of(key, np.float64, num_draws=num_draws)
    # Codes without spread: the M draws of the row are the same.
    params = params._replace(heads=params.heads.at[:, 2:].set(0.0).at[-1, 2:].set(-1e6))
    one, repeats = X[:1], 1000
    block = jax.jit(lambda p: objective.gauss_newton(p, one, key)[2].dense())(params)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    draws = np.asarray(_traces(objective, params, one, jax.random.split(key, repeats)))
    for index, estimate in enumerate(draws):
        part = slice(starts[index], starts[index + 1])
        exact = np.trace(block[part, part])
        error = estimate.std() / np.sqrt(repeats)
        # The bounded log variance leaves the codes an sd of exp(-6.5), and traces some tenths of
        # a per cent.
        assert abs(estimate.mean() - exact) < 6 * error + 1e-2 * exact


def _traces(objective, params, one, keys):
    """Trace of A x G of every layer, one row per layer, one column per key."""

    def traces(key):
        first, second = layer_factors(objective, params, one, key)
        outer = [jnp.sum(g) if g.shape[0] == 1 else jnp.trace(g) for g in second]
        return jnp.stack([jnp.trace(a) * g for a, g in zip(first, outer, strict=True)])

    return jax.jit(jax.vmap(traces, out_axes=1))(keys)


@pytest.mark.float64_only
@pytest.mark.slow
def test_a_strong_penalty_does_not_overshoot(key):
    """Weights of zero give 12 log 2: the penalty of 1 must not leave them above it."""
    objective, params, X = problem_of(key, np.float64, decoder_l2=1.0)
    X = (X > 0.5).astype(X.dtype)
    result = curvi.minimise(
        objective, params, method=curvi.KFAC(), data=X, batch_size=100, max_steps=600,
        progress=False,
    )  # fmt: skip
    assert float(objective(result.params, X, key)) < 12 * np.log(2) + 1


@pytest.mark.float64_only
@pytest.mark.parametrize("clip", [1.0, 0.25])
@pytest.mark.parametrize(("decay", "period"), [(1e-6, 50), (1e3, 1)])
def test_the_penalty_pulls_as_much_in_fifty_steps_as_its_slope_would_in_each(
    key, decay, period, clip
):
    """Whatever the clip, which the caller multiplies the sum with."""
    keys = jax.random.split(key, 4)
    matrix, update = jax.random.normal(keys[0], (5, 3)), jax.random.normal(keys[1], (5, 3))
    rows = jax.random.normal(keys[2], (20, 5))
    roots = _inverse_root(rows.T @ rows / 20, 0.01), jnp.ones((1, 3))
    method, rate = curvi.KFAC(), jnp.asarray(0.05)
    one = jax.jit(
        lambda step: method._decayed(Layer(decay=decay), roots, matrix, update, (step, rate, clip))
    )
    pulls = [clip * (one(jnp.asarray(step, jnp.int32)) - update) for step in range(50)]
    slope = roots[0] @ (decay * matrix.at[-1].set(0.0))
    np.testing.assert_allclose(sum(pulls), 50 * slope, rtol=1e-6, atol=1e-12)
    assert sum(bool(jnp.any(pull != 0)) for pull in pulls) == 50 // period


@pytest.mark.float64_only
def test_curvature_that_is_not_finite_is_not_taken_over(key):
    """A batch of infinite images breaks the estimate: parameters and curvature stay."""
    objective, params, X = problem_of(key, np.float64)
    method, problem = curvi.KFAC(factor_every=1, root_every=1), EpochProblem(objective, 50)
    state = method.init(
        problem, params, Resources(key, ShuffledRows(X, jnp.ones(1, jnp.uint32)), None)
    )
    broken = Resources(key, ShuffledRows(jnp.full_like(X, jnp.inf), jnp.ones(1, jnp.uint32)), None)
    zero = jnp.asarray(0, jnp.int32)
    after, info = jax.jit(
        lambda state: method.step(problem, state, broken, zero, jnp.asarray(0.0))
    )(state)
    assert not info.finite
    jax.tree.map(np.testing.assert_array_equal, after._replace(average=None),
                 state._replace(average=None))  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, after.average, params)


@pytest.mark.float64_only
def test_the_pixel_factor_is_the_mean_of_p_times_one_minus_p_exactly(key):
    objective, params, X = problem_of(key, np.float64)
    _, second = layer_factors(objective, params, X, key)
    p = jax.nn.sigmoid(objective.outputs(params, X, key).decoded)
    np.testing.assert_allclose(second[-1], jnp.mean(p * (1 - p), axis=0, keepdims=True))


@pytest.mark.float64_only
def test_the_inverse_root_is_the_inverse_of_the_square_root(key):
    matrix = jax.random.normal(key, (9, 6))
    factor = matrix.T @ matrix
    root = _inverse_root(factor, 0.01)
    lifted = factor + 0.01 * jnp.trace(factor) / 6 * jnp.eye(6)
    np.testing.assert_allclose(root @ lifted @ root, np.eye(6), atol=1e-9)


@pytest.mark.float64_only
@pytest.mark.parametrize(("likelihood", "variances"), [(Bernoulli(), 0), (Gaussian("pixel"), 12)])
def test_the_kronecker_metric_is_the_damped_product_of_the_factors(key, likelihood, variances):
    objective, params, X = problem_of(key, np.float64, likelihood, variances)
    start, zero = first_sides(objective, params), jnp.asarray(0, jnp.int32)
    sides = jax.jit(lambda p: renewed_sides(objective, p, start, (X, key), zero))(params)
    metric = kronecker_metric(objective, sides, jnp.asarray(0.1))
    keys = jax.random.split(key, len(jax.tree.leaves(params)))
    vector = jax.tree.unflatten(
        jax.tree.structure(params),
        [jax.random.normal(k, p.shape) for k, p in zip(keys, jax.tree.leaves(params), strict=True)],
    )
    first, second = jax.jit(lambda p: layer_factors(objective, p, X, key))(params)
    applied = objective.matrices(metric.apply(vector))
    for matrix, found, a, g in zip(objective.matrices(vector), applied, first, second, strict=True):
        left = a @ matrix if a.size else matrix
        expected = (left * g if g.shape[0] == 1 else left @ g) + 0.1 * matrix
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10),
        metric.solve(metric.apply(vector)),
        vector,
    )


METHODS = {
    "kfac": curvi.KFAC(),
    "kfac-full": curvi.KFAC(output_factors="full"),
    "hessian-free": curvi.HessianFree(preconditioner="diagonal"),
    "hessian-free-kronecker": curvi.HessianFree(preconditioner="kronecker", cg_steps=10),
    "hessian-free-hessian": curvi.HessianFree(curvature="hessian", preconditioner=None),
    "adam": curvi.Averaged(curvi.FirstOrder(optax.adam(0.01))),
}


@pytest.mark.parametrize(
    "name",
    [
        "kfac",
        "kfac-full",
        pytest.param("hessian-free", marks=pytest.mark.float64_only),
        pytest.param("hessian-free-kronecker", marks=pytest.mark.slow),
        pytest.param("hessian-free-hessian", marks=pytest.mark.slow),
        pytest.param("adam", marks=pytest.mark.float64_only),
    ],
)
@pytest.mark.slow
def test_every_method_raises_the_bound(key, dtype, name):
    objective, params, X = problem_of(key, dtype)

    with jax.numpy_dtype_promotion("standard" if name == "adam" else "strict"):
        result = curvi.minimise(
                objective, params, method=METHODS[name], data=X, batch_size=50, max_steps=100,
                seed=5, progress=False,
            )  # fmt: skip

    first = float(objective(params, X, key))
    last = float(objective(result.params, X, key))
    # From about 12 log 2 + KL the mean image alone saves a tenth of a nat per pixel.
    assert last < first - 0.5


@pytest.mark.float64_only
@pytest.mark.parametrize("kept", ["diagonal", "full"])
def test_factors_without_memory_are_the_last_estimate_and_values_hold_the_penalty(key, kept):
    objective, params, X = problem_of(key, np.float64, decoder_l2=1.0)
    method = curvi.KFAC(factor_memory=0.0, factor_every=1, output_factors=kept)
    problem = EpochProblem(objective, 50)
    resources = Resources(key, ShuffledRows(X, jnp.ones(1, jnp.uint32)), None)
    state = method.init(problem, params, resources)
    zero = jnp.asarray(0.0)
    advance = jax.jit(lambda state, now: method.step(problem, state, resources, now, zero))
    for step in (0, 1):
        now, before = jnp.asarray(step, jnp.int32), state
        state, info = advance(state, now)

    @jax.jit
    def references(params):
        value = problem.value(params, problem.sample(resources, now))
        sample = problem.sample(resources, now, 1, method.factor_rows)
        return value, layer_factors(objective, params, *sample)

    value, (inputs, outputs) = references(before.params)
    np.testing.assert_allclose(info.value, value, rtol=1e-12)
    if kept == "diagonal":
        outputs = tuple(g if g.shape[0] == 1 else jnp.diagonal(g)[None] for g in outputs)
    expected = inputs, outputs
    found = (state.curvature.input_factors, state.curvature.output_factors)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), found, expected)


@pytest.mark.float64_only
def test_with_a_horizon_the_step_size_and_the_average_end_with_the_run():
    method = curvi.KFAC(horizon=100, average_window=20)
    steps = jnp.asarray([0.0, 50.0, 75.0, 100.0, 130.0])
    rates = jax.vmap(method._rate)(steps)
    np.testing.assert_allclose(rates, method.step_size * np.array([1, 1, 0.5, 0, 0]), rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(method._window)(steps), [0, 15, 7.5, 0, 0], rtol=1e-12)
    with pytest.raises(curvi.InputError, match="horizon"):
        curvi.KFAC(horizon=0)


@pytest.mark.float64_only
def test_an_objective_without_layers_is_refused_by_kfac(key):
    with pytest.raises(curvi.InputError, match="layers"):
        curvi.minimise(lambda p, b, k: jnp.sum(p**2), jnp.ones(2), method=curvi.KFAC())
    with pytest.raises(curvi.InputError, match="Gauss-Newton"):
        curvi.minimise(lambda p, b, k: jnp.sum(p**2), jnp.ones(2), method=curvi.HessianFree())


@pytest.mark.float64_only
@pytest.mark.parametrize(
    "make",
    [
        lambda: curvi.KFAC(step_size=0.0),
        lambda: curvi.KFAC(momentum=1.0),
        lambda: curvi.KFAC(average_window=-1),
        lambda: curvi.KFAC(average_window=1.5),
        lambda: curvi.KFAC(output_factors="other"),
        lambda: curvi.HessianFree(curvature="other"),
        lambda: curvi.HessianFree(preconditioner="other"),
        lambda: curvi.Averaged(curvi.KFAC(), window=0),
    ],
)
def test_options_out_of_range_are_refused(make):
    with pytest.raises(curvi.InputError):
        make()
