"""Functions, draws, and sampled objectives whose exact derivatives the estimators must return."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from curvi._core.errors import InputError

SHAPES = {
    "d": st.integers(1, 4),
    "k": st.integers(1, 4),
    "num_draws": st.integers(1, 5),
    "seed": st.integers(0, 2**31 - 1),
}
BASES = {
    "gaussian": jax.random.normal,
    "student_t": lambda key, shape, dtype: jax.random.t(key, 5.0, shape, dtype),
    "laplace": jax.random.laplace,
    "logistic": jax.random.logistic,
}
few_examples = settings(
    max_examples=settings.default.max_examples + 1,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def assert_close(actual, expected, dtype):
    """Agreement relative to the largest entry, leaf by leaf, with a floor for results near zero."""
    tolerance = 1e-9 if dtype == jnp.float64 else 2e-3
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert left.shape == right.shape
        assert left.dtype == dtype
        scale = float(jnp.max(jnp.abs(right))) + 0.01
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * scale)


def make_function(key, d, dtype):
    """A function that is not quadratic, with bounded second derivatives."""
    rows = jax.random.normal(key, (3, d), dtype)
    return lambda z: jnp.sum(jnp.sin(rows @ z)) + jnp.vdot(z, z) / 4


def make_inputs(key, d, k, num_draws, dtype, *, base="gaussian"):
    keys = jax.random.split(key, 4)
    f = make_function(keys[0], d, dtype)
    mean = jax.random.normal(keys[1], (d,), dtype)
    scale = jax.random.normal(keys[2], (d, k), dtype)
    return f, mean, scale, BASES[base](keys[3], (num_draws, k), dtype)


def vec(matrix):
    return matrix.T.reshape(-1)


def unvec(vector, d):
    return vector.reshape(-1, d).T


def sampled_objective(f, draws, d, weights=None):
    """The function of vec[mean, scale] whose exact derivatives the estimators must return."""

    def objective(flat):
        both = unvec(flat, d)
        values = jax.vmap(lambda noise: f(both[:, 0] + both[:, 1:] @ noise))(draws)
        return jnp.mean(values) if weights is None else jnp.vdot(weights, values)

    return objective


def stack(mean, scale):
    return jnp.concatenate([mean[:, None], scale], axis=1)


# Four ways to write mean and scale as functions of a pytree, with d = 3.


def mean_field(theta):
    return theta["mean"], jnp.diag(jnp.exp(theta["log_sd"]))


def full_rank(theta):
    mean, packed = theta
    rows, columns = jnp.tril_indices(mean.shape[0])
    return mean, jnp.zeros((3, 3), mean.dtype).at[rows, columns].set(packed)


def low_rank(theta):
    diagonal = jnp.diag(jnp.exp(theta["scale"]["log_sd"]))
    return theta["mean"], jnp.concatenate([diagonal, theta["scale"]["factor"]], axis=1)


def encoder(theta):
    hidden = jnp.tanh(theta[0] @ jnp.ones(2, theta[0].dtype))
    return theta[1] @ hidden, jnp.diag(jnp.exp(theta[2] @ hidden / 2))


PARAMETERISATIONS = {
    "mean field": (mean_field, {"mean": (3,), "log_sd": (3,)}, 3),
    "full rank": (full_rank, ((3,), (6,)), 3),
    "low rank": (low_rank, {"mean": (3,), "scale": {"log_sd": (3,), "factor": (3, 2)}}, 5),
    "encoder": (encoder, [(4, 2), (3, 4), (3, 4)], 3),
}


def is_shape(node):
    return isinstance(node, tuple) and all(isinstance(entry, int) for entry in node)


def make_theta(key, shapes, dtype):
    leaves, structure = jax.tree.flatten(shapes, is_leaf=is_shape)
    keys = jax.random.split(key, len(leaves))
    pairs = zip(keys, leaves, strict=True)
    return structure.unflatten([jax.random.normal(k, s, dtype) / 2 for k, s in pairs])


def make_parameter_inputs(key, name, num_draws, dtype, base="gaussian"):
    location_scale, shapes, k = PARAMETERISATIONS[name]
    keys = jax.random.split(key, 4)
    theta, direction = make_theta(keys[0], shapes, dtype), make_theta(keys[1], shapes, dtype)
    draws = BASES[base](keys[2], (num_draws, k), dtype)
    return make_function(keys[3], 3, dtype), location_scale, theta, draws, direction


def sampled_parameter_objective(f, location_scale, draws):
    def objective(theta):
        mean, scale = location_scale(theta)
        return jnp.mean(jax.vmap(lambda noise: f(mean + scale @ noise))(draws))

    return objective


def refuse(estimator, *arguments, match, **keywords):
    """Call past any annotation checker that a test run may have wrapped around the function."""
    with pytest.raises(InputError, match=match):
        inspect.unwrap(estimator)(*arguments, **keywords)
