"""Equations (4)-(6) for any parameters, against dense autodiff and Theorem 1."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.flatten_util import ravel_pytree

from curvi.paper.reference import _location_scale as ls
from curvi.paper.reference import _parameters as parameters
from tests.paper.reference.sampled import (
    BASES,
    PARAMETERISATIONS,
    SEEDS,
    assert_close,
    generator,
    low_rank,
    make_function,
    make_inputs,
    make_parameter_inputs,
    many_examples,
    mean_field,
    normal,
    refuse,
    sampled_parameter_objective,
    some_sizes,
    stack,
    unvec,
    vec,
)


@pytest.mark.float64_only
def test_equations_4_to_6_follow_the_weights(key, dtype):
    @jax.jit
    def every_estimate(rows, mean, scale, draws, weights):
        def location_scale(theta):
            return theta[:2], jnp.sinh(unvec(theta[2:], 2))

        theta, options = vec(stack(mean, scale)), {"weights": weights}
        inputs = (make_function(rows), location_scale, theta, draws)
        return (
            parameters.parameter_gradient(*inputs, **options),
            parameters.parameter_hessian(*inputs, **options),
            parameters.parameter_hessian_vector_product(*inputs, theta, **options),
        )

    *inputs, draws = make_inputs(generator(key), 2, 2, 4, dtype)
    weighted = every_estimate(*inputs, draws, jnp.array([0.5, 0.0, 0.25, 0.25], dtype))
    repeated = every_estimate(*inputs, draws[jnp.array([0, 0, 2, 3])], None)
    assert_close(weighted, repeated, dtype)


@partial(jax.jit, static_argnames="name")
def equations_4_and_6_and_autodiff(name, rows, theta, draws, direction):
    f, location_scale = make_function(rows), PARAMETERISATIONS[name][0]
    objective = sampled_parameter_objective(f, location_scale, draws)
    flat, unravel = ravel_pytree(theta)
    dense = jax.hessian(lambda flat: objective(unravel(flat)))(flat)
    inputs = (f, location_scale, theta, draws)
    slope = parameters.parameter_gradient(*inputs)
    product = parameters.parameter_hessian_vector_product(*inputs, direction)
    expected = jax.grad(objective)(theta), unravel(dense @ ravel_pytree(direction)[0])
    return (slope, product), expected


@many_examples
@given(some_sizes(sorted(PARAMETERISATIONS), sorted(BASES), range(1, 6)), SEEDS)
def test_equations_4_and_6_agree_with_dense_autodiff_for_any_pytree(dtype, case, seed):
    name, base, num_draws = case
    inputs = make_parameter_inputs(np.random.default_rng(seed), name, num_draws, dtype, base)
    assert_close(*equations_4_and_6_and_autodiff(name, *inputs), dtype)


@pytest.mark.parametrize("name", PARAMETERISATIONS)
def test_equation_5_is_symmetric_and_agrees_with_dense_autodiff(name, dtype, key):
    @jax.jit
    def both_sides(rows, theta, draws, _):
        f, (flat, unravel) = make_function(rows), ravel_pytree(theta)

        def location_scale(flat):
            return PARAMETERISATIONS[name][0](unravel(flat))

        objective = sampled_parameter_objective(f, location_scale, draws)
        dense = parameters.parameter_hessian(f, location_scale, flat, draws)
        return (dense, dense), (jax.hessian(objective)(flat), dense.T)

    assert_close(*both_sides(*make_parameter_inputs(generator(key), name, 4, dtype)), dtype)


@pytest.mark.float64_only
def test_the_gradient_by_way_of_the_covariance_is_equation_4(key, dtype):
    """For a quadrature that is exact on both sides, and a function of degree three."""
    nodes, products = np.polynomial.hermite_e.hermegauss(5)
    draws = jnp.asarray(np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2), dtype)
    weights = jnp.asarray(np.outer(products, products).ravel() / products.sum() ** 2, dtype)

    def mean_and_scale(theta):
        root = jnp.sinh(theta["root"]).reshape(2, 2)
        return jnp.sin(theta["mean"]), root + 2 * jnp.eye(2)

    def mean_and_covariance(theta):
        mean, root = mean_and_scale(theta)
        return mean, root @ root.T

    @jax.jit
    def both_sides(rows, mean, root):
        def f(z):
            return jnp.sum((rows @ z) ** 3) + jnp.vdot(z, z)

        theta, options = {"mean": mean, "root": root}, {"weights": weights}
        return (
            parameters.parameter_gradient_by_covariance(
                f, mean_and_covariance, theta, draws, **options
            ),
            parameters.parameter_gradient(f, mean_and_scale, theta, draws, **options),
        )

    rng = generator(key)
    assert_close(*both_sides(*(normal(rng, shape, dtype) for shape in ((3, 2), (2,), (4,)))), dtype)


@pytest.mark.float64_only
def test_the_six_terms_of_the_appendix_add_up_to_equation_5(key, dtype):
    def location_scale(theta):
        return jnp.sin(theta[:2]), jnp.sinh(unvec(theta[2:], 2))

    @jax.jit
    def both_sides(rows, mean, scale, draws, weights):
        inputs = (make_function(rows), location_scale, vec(stack(mean, scale)), draws)
        terms = parameters.parameter_hessian_terms(*inputs, weights=weights)
        dense = parameters.parameter_hessian(*inputs, weights=weights)
        # The second and the fourth are each other's transpose, the others are symmetric.
        return (terms.sum(axis=0), terms), (dense, terms[jnp.array([0, 3, 2, 1, 4, 5])].mT)

    rng = generator(key)
    inputs = make_inputs(rng, 2, 2, 4, dtype)
    assert_close(*both_sides(*inputs, jnp.asarray(rng.random(4), dtype)), dtype)


@pytest.mark.float64_only
def test_with_theta_as_mean_and_scale_equations_4_to_6_are_theorem_1(key, dtype):
    def location_scale(flat):
        return unvec(flat, 3)[:, 0], unvec(flat, 3)[:, 1:]

    @jax.jit
    def both_sides(rows, mean, scale, draws, direction):
        f, theta = make_function(rows), vec(stack(mean, scale))
        inputs = (f, location_scale, theta, draws)
        found = (
            unvec(parameters.parameter_gradient(*inputs), 3),
            parameters.parameter_hessian(*inputs),
            unvec(parameters.parameter_hessian_vector_product(*inputs, vec(direction)), 3),
        )
        return found, (
            stack(*ls.gradient(f, mean, scale, draws)),
            ls.hessian(f, mean, scale, draws),
            ls.hessian_vector_product(f, mean, scale, draws, direction),
        )

    rng = generator(key)
    inputs = make_inputs(rng, 3, 2, 5, dtype)
    assert_close(*both_sides(*inputs, normal(rng, (3, 3), dtype)), dtype)


@pytest.mark.parametrize("name", PARAMETERISATIONS)
def test_equation_6_traces_f_equally_often_whatever_the_number_of_draws(name, dtype):
    counts = []
    for num_draws in (1, 50):
        inputs = make_parameter_inputs(np.random.default_rng(0), name, num_draws, dtype)
        calls = []

        def product(rows, theta, draws, direction, calls=calls):
            def counted(z):
                calls.append(1)
                return make_function(rows)(z)

            return parameters.parameter_hessian_vector_product(
                counted, PARAMETERISATIONS[name][0], theta, draws, direction
            )

        jax.eval_shape(product, *inputs)
        counts.append(len(calls))
    assert 0 < counts[0] == counts[1] <= 2


def test_equation_6_has_no_finite_difference(key, dtype):
    # A difference quotient has a step: it cannot scale exactly with a direction of any length.
    rows, theta, draws, direction = make_parameter_inputs(generator(key), "low rank", 3, dtype)

    @jax.jit
    def product(length):
        scaled = jax.tree.map(lambda leaf: leaf * length, direction)
        return parameters.parameter_hessian_vector_product(
            make_function(rows), low_rank, theta, draws, scaled
        )

    tiny = product(jnp.asarray(2.0**-60, dtype))
    rescaled = jax.tree.map(lambda leaf: leaf * 2.0**60, tiny)
    assert_close(rescaled, product(jnp.ones((), dtype)), dtype)


def test_a_wrong_location_scale_or_theta_is_refused(dtype):
    rows, theta, draws, direction = make_parameter_inputs(
        np.random.default_rng(0), "mean field", 2, dtype
    )
    f, location_scale = make_function(rows), mean_field
    for estimator, extra in [
        (parameters.parameter_gradient, ()),
        (parameters.parameter_hessian_vector_product, (direction,)),
    ]:
        refuse(
            estimator,
            f,
            lambda theta: theta["mean"],
            theta,
            draws,
            *extra,
            match=r"location_scale\(theta\) returned a .*return the pair \(mean, scale\)",
        )
        refuse(estimator, f, location_scale, theta, draws.T, *extra, match="draws has shape")
    refuse(
        parameters.parameter_hessian, f, location_scale, theta, draws, match="theta is not a vector"
    )
