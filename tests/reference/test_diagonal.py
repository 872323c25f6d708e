"""The diagonal forms against dense autodiff, Theorem 1 with a diagonal scale, and closed forms."""

from __future__ import annotations

import inspect
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curvi._core.errors import InputError
from curvi.reference import _diagonal as diagonal
from curvi.reference import _location_scale as location_scale

BASES = {
    "gaussian": jax.random.normal,
    "student_t": lambda key, shape, dtype: jax.random.t(key, 5.0, shape, dtype),
    "laplace": jax.random.laplace,
    "logistic": jax.random.logistic,
}


def assert_close(actual, expected, dtype):
    """Agreement relative to the largest entry, leaf by leaf, with a floor for results near zero."""
    tolerance = 1e-9 if dtype == jnp.float64 else 2e-3
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert left.shape == right.shape
        assert left.dtype == dtype
        scale = float(jnp.max(jnp.abs(right))) + 0.01
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * scale)


def make_inputs(key, d, num_draws, dtype, base="gaussian"):
    keys = jax.random.split(key, 4)
    rows = jax.random.normal(keys[0], (3, d), dtype)
    mean = jax.random.normal(keys[1], (d,), dtype)
    sd = jax.random.normal(keys[2], (d,), dtype)
    draws = BASES[base](keys[3], (num_draws, d), dtype)
    return (lambda z: jnp.sum(jnp.sin(rows @ z)) + jnp.vdot(z, z) / 4), mean, sd, draws


@settings(
    max_examples=settings.default.max_examples + 1,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    base=st.sampled_from(sorted(BASES)),
    d=st.integers(1, 4),
    num_draws=st.integers(1, 5),
    seed=st.integers(0, 2**31 - 1),
)
def test_the_diagonal_forms_agree_with_dense_autodiff(base, d, num_draws, seed, dtype):
    @jax.jit
    def both_sides(key):
        f, mean, sd, draws = make_inputs(key, d, num_draws, dtype, base)

        def objective(both):
            values = jax.vmap(lambda noise: f(both[:d] + both[d:] * noise))(draws)
            return jnp.mean(values)

        def product(vector):
            pair = (vector[:d], vector[d:])
            return jnp.concatenate(
                diagonal.diagonal_hessian_vector_product(f, mean, sd, draws, pair)
            )

        both = jnp.concatenate([mean, sd])
        slope = jnp.concatenate(diagonal.diagonal_gradient(f, mean, sd, draws))
        dense = diagonal.diagonal_hessian(f, mean, sd, draws)
        columns = jax.vmap(product, out_axes=1)(jnp.eye(2 * d, dtype=dtype))
        expected = jax.hessian(objective)(both)
        return (slope, dense, dense.T, columns), (jax.grad(objective)(both), *[expected] * 3)

    assert_close(*both_sides(jax.random.key(seed)), dtype)


def test_the_diagonal_forms_are_the_diagonal_of_theorem_1(key, dtype):
    d = 3
    f, mean, sd, draws = make_inputs(key, d, 5, dtype)
    in_mean, in_scale = location_scale.gradient(f, mean, jnp.diag(sd), draws)
    expected = in_mean, jnp.diagonal(in_scale)
    assert_close(diagonal.diagonal_gradient(f, mean, sd, draws), expected, dtype)
    dense = location_scale.hessian(f, mean, jnp.diag(sd), draws)
    # Column j of [mean, scale] starts at position d j: keep the mean and the diagonal of the scale.
    kept = np.concatenate([np.arange(d), d + np.arange(d) * (d + 1)])
    expected = dense[np.ix_(kept, kept)]
    assert_close(diagonal.diagonal_hessian(f, mean, sd, draws), expected, dtype)


def test_given_weights_replace_the_equal_ones(key, dtype):
    f, mean, sd, draws = make_inputs(key, 2, 4, dtype)
    weights = jnp.array([0.5, 0.0, 0.25, 0.25], dtype)
    repeated = draws[jnp.array([0, 0, 2, 3])]
    for estimator, extra in [
        (diagonal.diagonal_gradient, ()),
        (diagonal.diagonal_hessian, ()),
        (diagonal.diagonal_hessian_vector_product, ((sd, mean),)),
    ]:
        weighted = estimator(f, mean, sd, draws, *extra, weights=weights)
        assert_close(weighted, estimator(f, mean, sd, repeated, *extra), dtype)


@pytest.mark.parametrize("estimator", ["gradient", "hessian", "product"])
def test_the_diagonal_estimators_are_unbiased_for_the_closed_form(estimator, key, dtype):
    # E cos(a'z) = cos(a'mean) exp(-sum (a sd)^2 / 2): bounded, so the normal limit holds well.
    d, num_draws = 2, 100_000
    keys = jax.random.split(key, 4)
    slopes = jax.random.normal(keys[0], (3, d), dtype)
    both = jax.random.normal(keys[1], (2 * d,), dtype)
    along = jax.random.normal(keys[2], (2 * d,), dtype)
    draws = jax.random.normal(keys[3], (num_draws, d), dtype)
    mean, sd, direction = both[:d], both[d:], (along[:d], along[d:])

    def f(z):
        return jnp.sum(jnp.cos(slopes @ z))

    def closed_form(both):
        return jnp.sum(jnp.cos(slopes @ both[:d]) * jnp.exp(-(slopes**2) @ both[d:] ** 2 / 2))

    slope, dense = jax.grad(closed_form)(both), jax.hessian(closed_form)(both)
    estimate, expected = {
        "gradient": (lambda e: diagonal.diagonal_gradient(f, mean, sd, e), slope),
        "hessian": (lambda e: diagonal.diagonal_hessian(f, mean, sd, e), dense),
        "product": (
            lambda e: diagonal.diagonal_hessian_vector_product(f, mean, sd, e, direction),
            dense @ along,
        ),
    }[estimator]

    def one(noise):
        value = estimate(noise[None])
        return value if estimator == "hessian" else jnp.concatenate(value)

    per_draw = np.asarray(jax.jit(jax.vmap(one))(draws), np.float64)
    error = np.abs(per_draw.mean(axis=0) - np.asarray(expected, np.float64))
    standard_error = per_draw.std(axis=0, ddof=1) / np.sqrt(num_draws)
    # Family-wise level 1e-6 over the entries and the three cases.
    critical = NormalDist().inv_cdf(1 - 1e-6 / (2 * 3 * error.size))
    assert np.max(error / standard_error) < critical


def test_the_product_stores_a_few_vectors_and_no_matrix(dtype):
    d = 100
    ones = jnp.ones(d, dtype)

    def product(mean):
        return diagonal.diagonal_hessian_vector_product(
            lambda z: jnp.sum(jnp.sin(z)) * jnp.vdot(z, z), mean, ones, ones[None], (ones, ones)
        )

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (variable.aval.size for variable in equation.outvars)
            for parameter in equation.params.values():
                if hasattr(parameter, "jaxpr"):
                    yield from sizes(parameter.jaxpr)

    assert max(sizes(jax.make_jaxpr(product)(ones).jaxpr)) <= 2 * d


def refuse(estimator, *arguments, match, **keywords):
    """Call past any annotation checker that a test run may have wrapped around the function."""
    with pytest.raises(InputError, match=match):
        inspect.unwrap(estimator)(*arguments, **keywords)


@pytest.mark.parametrize("name", ["diagonal_gradient", "diagonal_hessian"])
def test_wrong_shapes_are_refused_with_what_where_and_what_to_do(name, dtype):
    estimator = getattr(diagonal, name)
    f, mean, sd, draws = make_inputs(jax.random.key(0), 3, 4, dtype)
    refuse(estimator, f, mean[None], sd, draws, match=rf"mean has shape \(1, 3\) in {name}\(\)")
    refuse(estimator, f, mean, sd[:2], draws, match=r"sd has shape \(2,\).*shape \(3,\)")
    refuse(estimator, f, mean, sd, draws[:, :2], match=r"draws has shape \(4, 2\).*\(M, 3\)")
    refuse(estimator, f, mean, sd, draws, weights=sd, match=r"one weight per draw.*\(4,\)")
    refuse(estimator, lambda z: z, mean, sd, draws, match=r"f must return a scalar")


def test_a_wrong_direction_is_refused(dtype):
    f, mean, sd, draws = make_inputs(jax.random.key(0), 3, 4, dtype)
    product = diagonal.diagonal_hessian_vector_product
    for wrong in [mean, (mean,), (mean, sd[:2]), (mean, sd, sd)]:
        refuse(product, f, mean, sd, draws, wrong, match=r"two vectors.*shape \(3,\)")
