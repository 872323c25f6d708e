"""Functions, draws, and sampled objectives whose exact derivatives the estimators must return.

Inputs are drawn by NumPy and passed to compiled functions as arguments: compiling the generators
of JAX for every shape would cost more than everything else here.
"""

from __future__ import annotations

import inspect
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from curvi._core.errors import InputError
from tests.conftest import EXAMPLES, SEED

BASES = {
    "gaussian": np.random.Generator.standard_normal,
    "student_t": lambda rng, size: rng.standard_t(5.0, size),
    "laplace": lambda rng, size: rng.laplace(size=size),
    "logistic": lambda rng, size: rng.logistic(size=size),
}
SEEDS = st.integers(0, 2**31 - 1)
many_examples = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# Sizes are few because each is compiled once, and drawn anew in every run; seeds are many.
_SIZES = np.random.default_rng(SEED)
_NUM_SIZES = max(3, EXAMPLES)


def some_sizes(*choices):
    """A strategy over a few tuples, one entry from each of the given sequences."""
    return st.sampled_from(
        [
            tuple(options[_SIZES.integers(len(options))] for options in choices)
            for _ in range(_NUM_SIZES)
        ]
    )


SHAPES = some_sizes(range(1, 5), range(1, 5), range(1, 6))  # d, k, num_draws


def generator(key):
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def assert_close(actual, expected, dtype):
    """Agreement relative to the largest entry, leaf by leaf, with a floor for results near zero."""
    tolerance = 1e-9 if dtype == jnp.float64 else 2e-3
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert left.shape == right.shape
        assert left.dtype == dtype
        scale = float(np.max(np.abs(np.asarray(right)))) + 0.01
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * scale)


def normal(rng, shape, dtype):
    return jnp.asarray(rng.standard_normal(shape), dtype)


def make_function(rows):
    """A function that is not quadratic, with bounded second derivatives."""
    return lambda z: jnp.sum(jnp.sin(rows @ z)) + jnp.vdot(z, z) / 4


def make_inputs(rng, d, k, num_draws, dtype, *, base="gaussian"):
    """The rows of `make_function`, the mean, the scale and the draws."""
    draws = jnp.asarray(BASES[base](rng, (num_draws, k)), dtype)
    return normal(rng, (3, d), dtype), normal(rng, (d,), dtype), normal(rng, (d, k), dtype), draws


def vec(matrix):
    return matrix.T.reshape(-1)


def unvec(vector, d):
    return vector.reshape(-1, d).T


def stack(mean, scale):
    return jnp.concatenate([mean[:, None], scale], axis=1)


def sampled_objective(f, draws, d):
    """The function of vec[mean, scale] whose exact derivatives the estimators must return."""

    def objective(flat):
        both = unvec(flat, d)
        return jnp.mean(jax.vmap(lambda noise: f(both[:, 0] + both[:, 1:] @ noise))(draws))

    return objective


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


def make_parameter_inputs(rng, name, num_draws, dtype, base="gaussian"):
    """The rows of `make_function`, theta, draws and a direction."""
    _, shapes, k = PARAMETERISATIONS[name]
    theta, direction = (
        jax.tree.map(lambda shape: normal(rng, shape, dtype) / 2, shapes, is_leaf=is_shape)
        for _ in range(2)
    )
    draws = jnp.asarray(BASES[base](rng, (num_draws, k)), dtype)
    return normal(rng, (3, 3), dtype), theta, draws, direction


def sampled_parameter_objective(f, location_scale, draws):
    def objective(theta):
        mean, scale = location_scale(theta)
        return jnp.mean(jax.vmap(lambda noise: f(mean + scale @ noise))(draws))

    return objective


def largest_intermediate(function, *arguments):
    """The size of the largest array in the traced program, inner programs included."""

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (variable.aval.size for variable in equation.outvars)
            for parameter in equation.params.values():
                if hasattr(parameter, "jaxpr"):
                    yield from sizes(parameter.jaxpr)

    return max(sizes(jax.make_jaxpr(function)(*arguments).jaxpr))


def assert_unbiased(per_draw, expected, num_cases):
    """The mean over draws against its limit, at a family-wise level of 1e-6 over all entries."""
    per_draw = np.asarray(per_draw, np.float64)
    error = np.abs(per_draw.mean(axis=0) - np.asarray(expected, np.float64))
    standard_error = per_draw.std(axis=0, ddof=1) / np.sqrt(len(per_draw))
    critical = NormalDist().inv_cdf(1 - 1e-6 / (2 * num_cases * error.size))
    assert np.max(error / standard_error) < critical


def refuse(estimator, *arguments, match, **keywords):
    """Call past any annotation checker that a test run may have wrapped around the function."""
    with pytest.raises(InputError, match=match):
        inspect.unwrap(estimator)(*arguments, **keywords)
