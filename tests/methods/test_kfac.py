"""Kronecker curvature, and the methods that train auto-encoders."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import curvi
from curvi.methods.kfac import _backward, _factors, _inverse_root
from curvi.models.vae import Bernoulli, Gaussian, MLPObjective, initial_params


def problem_of(key, dtype, likelihood=None, variances=0):
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    codes = generator.standard_normal((300, 2))
    X = 1 / (1 + np.exp(-3 * codes @ generator.standard_normal((2, 12))))
    params = initial_params(
        generator, inputs=12, hidden=(8,), latent=2, variances=variances, dtype=dtype
    )
    return MLPObjective(likelihood=likelihood or Bernoulli()), params, jnp.asarray(X, dtype)


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("likelihood", "variances"), [(Bernoulli(), 0), (Gaussian("pixel"), 12), (Gaussian("one"), 1)]
)
def test_inputs_and_deltas_of_the_layers_give_the_gradient(key, likelihood, variances):
    objective, params, X = problem_of(key, np.float64, likelihood, variances)
    value, deltas, inputs = _backward(objective, params, X, key)
    expected, gradient = jax.value_and_grad(objective)(params, X, key)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    matrices = objective.matrices(gradient)
    for rows, delta, reference in zip(inputs, deltas, matrices, strict=True):
        np.testing.assert_allclose(rows.T @ delta, reference, atol=1e-12)


@pytest.mark.slow
@pytest.mark.float64_only
def test_the_probe_has_the_trace_of_the_gauss_newton_matrix_on_average(key):
    """For one row a layer's block is a a' x d d', whose trace is |a|^2 E|d|^2 over signs."""
    objective, params, X = problem_of(key, np.float64)
    one, repeats = X[:1], 1000
    block = objective.gauss_newton(params, one, key)[2].dense()
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    _, _, inputs = _backward(objective, params, one, key)
    for index, rows in enumerate(inputs):
        exact = np.trace(
            block[starts[index] : starts[index + 1], starts[index] : starts[index + 1]]
        )
        draws = _traces(objective, params, one, key, index, repeats)
        estimate = float(jnp.sum(rows**2)) * draws
        error = estimate.std() / np.sqrt(repeats)
        assert abs(estimate.mean() - exact) < 6 * error + 1e-9 * exact


def _traces(objective, params, one, key, index, repeats):
    """Trace of the output factor over independent signs and one fixed draw of the code."""
    from curvi.methods.kfac import _forward

    outputs, pull, _ = _forward(objective, params, one, key)
    leaves, structure = jax.tree.flatten(objective.curvature(outputs))

    def trace(seed):
        keys = jax.random.split(jax.random.fold_in(key, seed), len(leaves))
        signs = [jnp.sqrt(w) * jax.random.rademacher(k, w.shape, w.dtype)
                 for w, k in zip(leaves, keys, strict=True)]  # fmt: skip
        return jnp.sum(pull(structure.unflatten(signs))[0][index] ** 2)

    return np.asarray(jax.jit(jax.vmap(trace))(jnp.arange(repeats)))


@pytest.mark.float64_only
def test_the_pixel_factor_is_the_mean_of_p_times_one_minus_p_exactly(key):
    objective, params, X = problem_of(key, np.float64)
    _, second = _factors(objective, params, X, key)
    p = jax.nn.sigmoid(objective.outputs(params, X, key).decoded)
    np.testing.assert_allclose(second[-1], jnp.mean(p * (1 - p), axis=0, keepdims=True))


@pytest.mark.float64_only
def test_the_inverse_root_is_the_inverse_of_the_square_root(key):
    matrix = jax.random.normal(key, (9, 6))
    factor = matrix.T @ matrix
    root = _inverse_root(factor, 0.01)
    lifted = factor + 0.01 * jnp.trace(factor) / 6 * jnp.eye(6)
    np.testing.assert_allclose(root @ lifted @ root, np.eye(6), atol=1e-9)


METHODS = {
    "kfac": curvi.KFAC(),
    "hf": curvi.HessianFree(),
    "hf-hessian": curvi.HessianFree(curvature="hessian", preconditioner=None),
    "adam": curvi.Averaged(curvi.FirstOrder(optax.adam(0.01))),
}


@pytest.mark.parametrize(
    "name", ["kfac", "hf", pytest.param("hf-hessian", marks=pytest.mark.slow), "adam"]
)
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
        lambda: curvi.HessianFree(curvature="other"),
        lambda: curvi.HessianFree(preconditioner="other"),
        lambda: curvi.Averaged(curvi.KFAC(), window=0),
    ],
)
def test_options_out_of_range_are_refused(make):
    with pytest.raises(curvi.InputError):
        make()
