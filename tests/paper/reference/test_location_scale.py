"""Theorem 1 against dense autodiff, closed forms and identities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from curvi.paper.reference import _location_scale as ls
from curvi.paper.reference import _parameters as parameters
from tests.paper.reference.sampled import (
    BASES,
    SEEDS,
    SHAPES,
    assert_close,
    assert_unbiased,
    generator,
    largest_intermediate,
    make_function,
    make_inputs,
    make_parameter_inputs,
    many_examples,
    mean_field,
    normal,
    refuse,
    sampled_objective,
    stack,
    unvec,
    vec,
)


@jax.jit
def theorem_1_and_autodiff(rows, mean, scale, draws):
    f, d = make_function(rows), mean.shape[0]
    objective = sampled_objective(f, draws, d)
    flat = vec(stack(mean, scale))
    slope = stack(*ls.gradient(f, mean, scale, draws))
    dense = ls.hessian(f, mean, scale, draws)
    expected = unvec(jax.grad(objective)(flat), d), jax.hessian(objective)(flat), dense.T

    def product(vector):
        return vec(ls.hessian_vector_product(f, mean, scale, draws, unvec(vector, d)))

    columns = jax.vmap(product, out_axes=1)(jnp.eye(len(flat), dtype=flat.dtype))
    return (slope, dense, dense, columns), (*expected, dense)


@many_examples
@given(SHAPES, SEEDS)
def test_theorem_1_and_its_products_agree_with_dense_autodiff_of_the_sampled_objective(
    dtype, shape, seed
):
    inputs = make_inputs(np.random.default_rng(seed), *shape, dtype)
    assert_close(*theorem_1_and_autodiff(*inputs), dtype)


@pytest.mark.parametrize("base", BASES)
def test_every_base_distribution_agrees_with_dense_autodiff(base, key, dtype):
    inputs = make_inputs(generator(key), 3, 3, 7, dtype, base=base)
    assert_close(*theorem_1_and_autodiff(*inputs), dtype)


def test_the_blocks_are_the_blocks_of_the_dense_hessian(key, dtype):
    @jax.jit
    def blocks(rows, *rest):
        inputs = (make_function(rows), *rest)
        found = ls.mean_scale_hessian(*inputs), ls.scale_scale_hessian(*inputs)
        return found, ls.hessian(*inputs)

    found, dense = blocks(*make_inputs(generator(key), 3, 2, 5, dtype))
    assert_close(found, (dense[:3, 3:], dense[3:, 3:]), dtype)


@pytest.mark.float64_only
def test_the_hessian_is_the_average_of_kronecker_products(key, dtype):
    @jax.jit
    def both_sides(rows, mean, scale, draws):
        f = make_function(rows)

        def product(noise):
            extended = jnp.insert(noise, 0, 1.0)
            return jnp.kron(jnp.outer(extended, extended), jax.hessian(f)(mean + scale @ noise))

        return ls.hessian(f, mean, scale, draws), jnp.mean(jax.vmap(product)(draws), axis=0)

    assert_close(*both_sides(*make_inputs(generator(key), 3, 2, 5, dtype)), dtype)


@pytest.mark.float64_only
def test_given_weights_replace_the_equal_ones(key, dtype):
    @jax.jit
    def every_estimate(rows, mean, scale, draws, direction, weights):
        inputs, options = (make_function(rows), mean, scale, draws), {"weights": weights}
        return (
            ls.gradient(*inputs, **options),
            ls.hessian(*inputs, **options),
            ls.mean_scale_hessian(*inputs, **options),
            ls.scale_scale_hessian(*inputs, **options),
            ls.hessian_vector_product(*inputs, direction, **options),
        )

    rng = generator(key)
    *inputs, draws = make_inputs(rng, 2, 3, 4, dtype)
    direction = normal(rng, (2, 4), dtype)
    weights = jnp.array([0.5, 0.0, 0.25, 0.25], dtype)
    weighted = every_estimate(*inputs, draws, direction, weights)
    repeated = every_estimate(*inputs, draws[jnp.array([0, 0, 2, 3])], direction, None)
    assert_close(weighted, repeated, dtype)


@jax.jit
def three_products(rows, mean, scale, draws, other_rows, direction):
    f, other = make_function(rows), make_function(other_rows)
    return [
        ls.hessian_vector_product(function, mean, scale, draws, direction)
        for function in (f, other, lambda z: 3 * f(z) - other(z))
    ]


@many_examples
@given(SHAPES, SEEDS)
def test_the_derivatives_are_linear_in_f(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    inputs = make_inputs(rng, *shape, dtype)
    more = normal(rng, (3, shape[0]), dtype), normal(rng, (shape[0], shape[1] + 1), dtype)
    first, second, combined = (np.asarray(value) for value in three_products(*inputs, *more))
    # Relative to the parts: the combination itself may cancel.
    size = float(np.max(np.abs(first)) + np.max(np.abs(second)))
    tolerance = 1e-9 if dtype == jnp.float64 else 2e-3
    np.testing.assert_allclose(combined, 3 * first - second, rtol=0, atol=tolerance * size)


def test_vec_stacks_columns_in_the_kronecker_identity(key):
    rng = generator(key)
    right, left, matrix = (rng.standard_normal(shape) for shape in ((4, 5), (2, 3), (3, 4)))
    expected = vec(left @ matrix @ right)
    np.testing.assert_allclose(np.kron(right.T, left) @ vec(matrix), expected, atol=1e-12)


def test_the_printed_forms_of_the_errata_fail(key, dtype):
    rng = generator(key)
    # Section 2.2 prints (A' kron B) vec(V) = vec(A V B): square matrices, so that it is defined.
    outer, middle, inner = rng.standard_normal((3, 3, 3))
    printed = vec(outer @ middle @ inner)
    assert not np.allclose(np.kron(outer.T, inner) @ vec(middle), printed, atol=1e-3)

    # The appendix prints E[eps g'] for the gradient in R: it is the transpose of the true one.
    @jax.jit
    def slopes(rows, mean, scale, draws):
        f, flat = make_function(rows), vec(stack(mean, scale))
        true_slope = unvec(jax.grad(sampled_objective(f, draws, 3))(flat), 3)[:, 1:]
        return ls.gradient(f, mean, scale, draws)[1], true_slope

    slope, true_slope = slopes(*make_inputs(rng, 3, 3, 5, dtype))
    assert_close(slope, true_slope, dtype)
    assert not np.allclose(np.transpose(slope), true_slope, atol=1e-3)

    # The appendix prints R{sd} = R{s} exp(s / 2) for sd = exp(s / 2), without the factor 1/2.
    # Seen through equation (6) with f = z'z / 2: the derivative of E[sd eps^2] sd/2 along 1.
    @jax.jit
    def product(exponent):
        return parameters.parameter_hessian_vector_product(
            lambda z: jnp.vdot(z, z) / 2,
            lambda s: (jnp.zeros(1, dtype), jnp.exp(s / 2)[:, None]),
            exponent,
            jnp.array([[1.0], [-1.0]], dtype),
            jnp.ones(1, dtype),
        )

    sd = np.exp(np.ones(1) / 2)
    found = product(jnp.ones(1, dtype))
    # E f = sd^2 / 2, so the gradient in s is sd (d sd / ds) = sd^2 / 2 and its R is sd R{sd}.
    assert_close(found, sd * (sd / 2), dtype)
    assert not np.allclose(found, sd * sd, atol=1e-3)


def test_the_estimators_are_unbiased_for_the_closed_form(key, dtype):
    # E cos(a'z) = cos(a'mean) exp(-|scale' a|^2 / 2): bounded, so the normal limit holds well.
    d, num_draws = 2, 100_000

    def location_scale(flat):
        return unvec(flat, d)[:, 0], unvec(flat, d)[:, 1:]

    @jax.jit
    def estimates_and_limits(slopes, mean, scale, draws, direction):
        def f(z):
            return jnp.sum(jnp.cos(slopes @ z))

        def closed_form(flat):
            mean, scale = location_scale(flat)
            return jnp.sum(
                jnp.cos(slopes @ mean) * jnp.exp(-jnp.sum((slopes @ scale) ** 2, axis=1) / 2)
            )

        flat, along = vec(stack(mean, scale)), vec(direction)

        def one(noise):
            first, second = (f, mean, scale, noise[None]), (f, location_scale, flat, noise[None])
            return {
                "gradient": vec(stack(*ls.gradient(*first))),
                "hessian": ls.hessian(*first),
                "product": vec(ls.hessian_vector_product(*first, direction)),
                "equation 4": parameters.parameter_gradient(*second),
                "equation 6": parameters.parameter_hessian_vector_product(*second, along),
            }

        slope, dense = jax.grad(closed_form)(flat), jax.hessian(closed_form)(flat)
        limits = {"gradient": slope, "equation 4": slope, "hessian": dense}
        limits |= dict.fromkeys(("product", "equation 6"), dense @ along)
        return jax.vmap(one)(draws), limits

    rng = generator(key)
    inputs = make_inputs(rng, d, d, num_draws, dtype)
    per_draw, expected = estimates_and_limits(*inputs, normal(rng, (d, d + 1), dtype))
    assert len(expected) == len(per_draw) == 5
    for name, values in per_draw.items():
        assert_unbiased(values, expected[name], num_cases=5)


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
    rows, *arrays = make_inputs(generator(key), 3, 2, 4, dtype)
    f = make_function(rows)
    jitted = jax.jit(lambda *arrays: ls.hessian(f, *arrays))
    assert_close(jitted(*arrays), ls.hessian(f, *arrays), dtype)


@pytest.mark.parametrize(
    "name", ["gradient", "hessian", "mean_scale_hessian", "scale_scale_hessian"]
)
def test_wrong_shapes_are_refused_with_what_where_and_what_to_do(name, dtype):
    estimator = getattr(ls, name)
    rows, mean, scale, draws = make_inputs(np.random.default_rng(0), 3, 2, 4, dtype)
    f = make_function(rows)
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
    rows, mean, scale, draws = make_inputs(np.random.default_rng(0), 3, 2, 4, dtype)
    f = make_function(rows)
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
    rows, mean, scale, draws = make_inputs(np.random.default_rng(0), 3, 2, 4, dtype)
    f = make_function(rows)
    refuse(
        ls.hessian_vector_product, f, mean, scale, draws, scale, match=r"direction.*shape \(3, 3\)"
    )
    _, theta, draws, direction = make_parameter_inputs(
        np.random.default_rng(0), "mean field", 2, dtype
    )
    location_scale = mean_field
    product = parameters.parameter_hessian_vector_product
    message = "direction does not match theta"
    refuse(product, f, location_scale, theta, draws, {"mean": direction["mean"]}, match=message)
    shorter = jax.tree.map(lambda leaf: leaf[:1], direction)
    refuse(product, f, location_scale, theta, draws, shorter, match=message)
