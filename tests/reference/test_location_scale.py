"""Theorem 1 against dense autodiff, closed forms and identities."""

from __future__ import annotations

from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from curvi.reference import _location_scale as ls
from curvi.reference import _parameters as parameters
from tests.reference.sampled import (
    BASES,
    SHAPES,
    assert_close,
    few_examples,
    make_function,
    make_inputs,
    make_parameter_inputs,
    refuse,
    sampled_objective,
    stack,
    unvec,
    vec,
)


@few_examples
@given(**SHAPES)
def test_theorem_1_agrees_with_dense_autodiff_of_the_sampled_objective(
    d, k, num_draws, seed, dtype
):
    @jax.jit  # one compilation per shape instead of one per operation
    def both_sides(key):
        f, mean, scale, draws = make_inputs(key, d, k, num_draws, dtype)
        objective = sampled_objective(f, draws, d)
        flat = vec(stack(mean, scale))
        slope = stack(*ls.gradient(f, mean, scale, draws))
        dense = ls.hessian(f, mean, scale, draws)
        expected = unvec(jax.grad(objective)(flat), d), jax.hessian(objective)(flat), dense.T
        return (slope, dense, dense), expected

    assert_close(*both_sides(jax.random.key(seed)), dtype)


@pytest.mark.slow
@few_examples
@given(**SHAPES)
def test_the_product_with_every_basis_vector_rebuilds_the_dense_hessian(
    d, k, num_draws, seed, dtype
):
    @jax.jit
    def both_sides(key):
        f, mean, scale, draws = make_inputs(key, d, k, num_draws, dtype)

        def product(vector):
            return vec(ls.hessian_vector_product(f, mean, scale, draws, unvec(vector, d)))

        columns = jax.vmap(product, out_axes=1)(jnp.eye(d * (k + 1), dtype=dtype))
        return columns, ls.hessian(f, mean, scale, draws)

    assert_close(*both_sides(jax.random.key(seed)), dtype)


@pytest.mark.parametrize(
    "base",
    [
        pytest.param(base, marks=pytest.mark.slow if base in ("gaussian", "logistic") else [])
        for base in BASES
    ],
)
def test_every_base_distribution_agrees_with_dense_autodiff(base, key, dtype):
    f, mean, scale, draws = make_inputs(key, 3, 3, 7, dtype, base=base)
    objective = sampled_objective(f, draws, 3)
    flat = vec(stack(mean, scale))
    direction = unvec(jax.random.normal(key, (12,), dtype), 3)
    dense = jax.hessian(objective)(flat)
    slope = stack(*ls.gradient(f, mean, scale, draws))
    assert_close(slope, unvec(jax.grad(objective)(flat), 3), dtype)
    assert_close(ls.hessian(f, mean, scale, draws), dense, dtype)
    product = ls.hessian_vector_product(f, mean, scale, draws, direction)
    assert_close(product, unvec(dense @ vec(direction), 3), dtype)


def test_the_blocks_are_the_blocks_of_the_dense_hessian(key, dtype):
    f, mean, scale, draws = make_inputs(key, 3, 2, 5, dtype)
    dense = ls.hessian(f, mean, scale, draws)
    assert_close(ls.mean_scale_hessian(f, mean, scale, draws), dense[:3, 3:], dtype)
    assert_close(ls.scale_scale_hessian(f, mean, scale, draws), dense[3:, 3:], dtype)


@pytest.mark.float64_only
def test_the_hessian_is_the_average_of_kronecker_products(key, dtype):
    f, mean, scale, draws = make_inputs(key, 3, 2, 5, dtype)
    expected = sum(
        jnp.kron(
            jnp.outer(jnp.insert(noise, 0, 1.0), jnp.insert(noise, 0, 1.0)),
            jax.hessian(f)(mean + scale @ noise),
        )
        for noise in draws
    )
    assert_close(ls.hessian(f, mean, scale, draws), expected / 5, dtype)


@pytest.mark.float64_only
def test_given_weights_replace_the_equal_ones(key, dtype):
    f, mean, scale, draws = make_inputs(key, 2, 3, 4, dtype)
    weights = jnp.array([0.5, 0.0, 0.25, 0.25], dtype)
    repeated = draws[jnp.array([0, 0, 2, 3])]
    direction = jax.random.normal(key, (2, 4), dtype)
    for estimator, extra in [
        (ls.gradient, ()),
        (ls.hessian, ()),
        (ls.mean_scale_hessian, ()),
        (ls.scale_scale_hessian, ()),
        (ls.hessian_vector_product, (direction,)),
    ]:
        weighted = estimator(f, mean, scale, draws, *extra, weights=weights)
        assert_close(weighted, estimator(f, mean, scale, repeated, *extra), dtype)


@pytest.mark.slow
@few_examples
@given(**SHAPES)
def test_the_derivatives_are_linear_in_f(d, k, num_draws, seed, dtype):
    @jax.jit
    def three_products(key):
        f, mean, scale, draws = make_inputs(key, d, k, num_draws, dtype)
        other = make_function(jax.random.fold_in(key, 1), d, dtype)
        direction = jax.random.normal(key, (d, k + 1), dtype)
        return [
            ls.hessian_vector_product(function, mean, scale, draws, direction)
            for function in (f, other, lambda z: 3 * f(z) - other(z))
        ]

    first, second, combined = three_products(jax.random.key(seed))
    # Relative to the parts: the combination itself may cancel.
    size = float(jnp.max(jnp.abs(first)) + jnp.max(jnp.abs(second)))
    tolerance = 1e-9 if dtype == jnp.float64 else 2e-3
    np.testing.assert_allclose(combined, 3 * first - second, rtol=0, atol=tolerance * size)


def test_vec_stacks_columns_in_the_kronecker_identity(key, dtype):
    keys = jax.random.split(key, 3)
    right = jax.random.normal(keys[0], (4, 5), dtype)
    left = jax.random.normal(keys[1], (2, 3), dtype)
    matrix = jax.random.normal(keys[2], (3, 4), dtype)
    assert_close(jnp.kron(right.T, left) @ vec(matrix), vec(left @ matrix @ right), dtype)


def test_the_printed_forms_of_the_errata_fail(key, dtype):
    f, mean, scale, draws = make_inputs(key, 3, 3, 5, dtype)
    # Section 2.2 prints (A' kron B) vec(V) = vec(A V B): square matrices, so that it is defined.
    outer, middle, inner = (jax.random.normal(k, (3, 3), dtype) for k in jax.random.split(key, 3))
    printed = vec(outer @ middle @ inner)
    assert not np.allclose(jnp.kron(outer.T, inner) @ vec(middle), printed, atol=1e-3)

    # The appendix prints E[eps g'] for the gradient in R: it is the transpose of the true one.
    slope = ls.gradient(f, mean, scale, draws)[1]
    flat = vec(stack(mean, scale))
    true_slope = unvec(jax.grad(sampled_objective(f, draws, 3))(flat), 3)[:, 1:]
    assert_close(slope, true_slope, dtype)
    assert not np.allclose(slope.T, true_slope, atol=1e-3)

    # The appendix prints R{sd} = R{s} exp(s / 2) for sd = exp(s / 2), without the factor 1/2.
    # Seen through equation (6) with f = z'z / 2: the derivative of E[sd eps^2] sd/2 along 1.
    exponent = jnp.ones(1, dtype)
    product = parameters.parameter_hessian_vector_product(
        lambda z: jnp.vdot(z, z) / 2,
        lambda s: (jnp.zeros(1, dtype), jnp.exp(s / 2)[:, None]),
        exponent,
        jnp.array([[1.0], [-1.0]], dtype),
        jnp.ones(1, dtype),
    )
    slope_of_sd, printed_slope_of_sd = jnp.exp(exponent / 2) / 2, jnp.exp(exponent / 2)
    # E f = sd^2 / 2, so the gradient in s is sd (d sd / ds) = sd^2 / 2 and its R is sd R{sd}.
    assert_close(product, jnp.exp(exponent / 2) * slope_of_sd, dtype)
    assert not np.allclose(product, jnp.exp(exponent / 2) * printed_slope_of_sd, atol=1e-3)


@pytest.mark.parametrize(
    "estimator", ["gradient", "hessian", "product", "equation 4", "equation 6"]
)
def test_the_estimators_are_unbiased_for_the_closed_form(estimator, key, dtype):
    # E cos(a'z) = cos(a'mean) exp(-|scale' a|^2 / 2): bounded, so the normal limit holds well.
    d, num_draws = 2, 100_000
    keys = jax.random.split(key, 5)
    slopes = jax.random.normal(keys[0], (3, d), dtype)
    mean, scale = jax.random.normal(keys[1], (d,), dtype), jax.random.normal(keys[2], (d, d), dtype)
    draws = jax.random.normal(keys[3], (num_draws, d), dtype)
    direction = jax.random.normal(keys[4], (d, d + 1), dtype)
    flat = vec(stack(mean, scale))

    def f(z):
        return jnp.sum(jnp.cos(slopes @ z))

    def location_scale(flat):
        return unvec(flat, d)[:, 0], unvec(flat, d)[:, 1:]

    def closed_form(flat):
        mean, scale = location_scale(flat)
        return jnp.sum(
            jnp.cos(slopes @ mean) * jnp.exp(-jnp.sum((slopes @ scale) ** 2, axis=1) / 2)
        )

    slope, dense = jax.grad(closed_form)(flat), jax.hessian(closed_form)(flat)
    along = vec(direction)
    estimate, expected = {
        "gradient": (lambda e: vec(stack(*ls.gradient(f, mean, scale, e))), slope),
        "hessian": (lambda e: ls.hessian(f, mean, scale, e), dense),
        "product": (
            lambda e: vec(ls.hessian_vector_product(f, mean, scale, e, direction)),
            dense @ along,
        ),
        "equation 4": (lambda e: parameters.parameter_gradient(f, location_scale, flat, e), slope),
        "equation 6": (
            lambda e: parameters.parameter_hessian_vector_product(
                f, location_scale, flat, e, along
            ),
            dense @ along,
        ),
    }[estimator]
    per_draw = np.asarray(jax.jit(jax.vmap(lambda noise: estimate(noise[None])))(draws), np.float64)
    error = np.abs(per_draw.mean(axis=0) - np.asarray(expected, np.float64))
    standard_error = per_draw.std(axis=0, ddof=1) / np.sqrt(num_draws)
    # Family-wise level 1e-6 over the entries and the five cases.
    critical = NormalDist().inv_cdf(1 - 1e-6 / (2 * 5 * error.size))
    assert np.max(error / standard_error) < critical


def largest_intermediate(function, *arguments):
    """The size of the largest array in the traced program, inner programs included."""

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (variable.aval.size for variable in equation.outvars)
            for parameter in equation.params.values():
                if hasattr(parameter, "jaxpr"):
                    yield from sizes(parameter.jaxpr)

    return max(sizes(jax.make_jaxpr(function)(*arguments).jaxpr))


def test_the_product_never_stores_the_hessian_of_f(dtype):
    d, k = 100, 2
    mean, scale = jnp.zeros(d, dtype), jnp.ones((d, k), dtype)
    draws, direction = jnp.ones((1, k), dtype), jnp.ones((d, k + 1), dtype)

    def f(z):
        return jnp.sum(jnp.sin(z)) * jnp.vdot(z, z)

    def product(mean):
        return ls.hessian_vector_product(f, mean, scale, draws, direction)

    def dense(mean):
        return ls.mean_scale_hessian(f, mean, scale, draws)

    assert largest_intermediate(product, mean) <= d * (k + 1)
    assert largest_intermediate(dense, mean) >= d * d


def test_the_estimators_work_under_jit(key, dtype):
    f, mean, scale, draws = make_inputs(key, 3, 2, 4, dtype)
    jitted = jax.jit(lambda *arrays: ls.hessian(f, *arrays))
    assert_close(jitted(mean, scale, draws), ls.hessian(f, mean, scale, draws), dtype)


@pytest.mark.parametrize(
    "name", ["gradient", "hessian", "mean_scale_hessian", "scale_scale_hessian"]
)
def test_wrong_shapes_are_refused_with_what_where_and_what_to_do(name, dtype):
    estimator = getattr(ls, name)
    f, mean, scale, draws = make_inputs(jax.random.key(0), 3, 2, 4, dtype)
    refuse(estimator, f, mean[None], scale, draws, match=rf"mean has shape \(1, 3\) in {name}\(\)")
    refuse(estimator, f, mean, scale[:2], draws, match=r"scale has shape \(2, 2\).*shape \(3, k\)")
    refuse(estimator, f, mean, scale[0], draws, match=r"scale has shape \(2,\)")
    refuse(estimator, f, mean, scale, draws.T, match=r"draws has shape \(2, 4\).*\(M, 2\)")
    refuse(estimator, f, mean, scale, draws[0], match=r"draws has shape \(2,\)")
    refuse(estimator, f, mean, scale, draws[:0], match=r"draws has shape \(0, 2\).*M >= 1")
    refuse(
        estimator, f, mean, scale, draws, weights=draws[:2, 0], match=r"one weight per draw.*\(4,\)"
    )


def test_a_function_that_is_not_scalar_is_refused(dtype):
    f, mean, scale, draws = make_inputs(jax.random.key(0), 3, 2, 4, dtype)
    direction = jnp.zeros((3, 3), dtype)

    def vector(z):
        return 2 * z

    for estimator, extra in [
        (ls.gradient, ()),
        (ls.hessian, ()),
        (ls.hessian_vector_product, (direction,)),
    ]:
        message = r"f must return a scalar, but for z of shape \(3,\) it returned \(3,\); sum it"
        refuse(estimator, vector, mean, scale, draws, *extra, match=message)
    refuse(ls.gradient, lambda z: (f(z), f(z)), mean, scale, draws, match="must return a scalar")
    refuse(ls.gradient, jnp.argmax, mean, scale, draws, match="floating-point")
    refuse(
        parameters.parameter_gradient,
        vector,
        lambda theta: (theta, scale),
        mean,
        draws,
        match="must return a scalar",
    )


def test_a_wrong_direction_is_refused(dtype):
    f, mean, scale, draws = make_inputs(jax.random.key(0), 3, 2, 4, dtype)
    refuse(
        ls.hessian_vector_product, f, mean, scale, draws, scale, match=r"direction.*shape \(3, 3\)"
    )
    f, location_scale, theta, draws, direction = make_parameter_inputs(
        jax.random.key(0), "mean field", 2, dtype
    )
    product = parameters.parameter_hessian_vector_product
    message = "direction does not match theta"
    refuse(product, f, location_scale, theta, draws, {"mean": direction["mean"]}, match=message)
    shorter = jax.tree.map(lambda leaf: leaf[:1], direction)
    refuse(product, f, location_scale, theta, draws, shorter, match=message)
