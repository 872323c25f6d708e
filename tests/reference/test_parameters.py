"""Equations (4)-(6) for any parameters, against dense autodiff and Theorem 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from curvi.reference import _location_scale as ls
from curvi.reference import _parameters as parameters
from tests.reference.sampled import (
    BASES,
    PARAMETERISATIONS,
    SHAPES,
    assert_close,
    few_examples,
    make_inputs,
    make_parameter_inputs,
    refuse,
    sampled_parameter_objective,
    stack,
    unvec,
    vec,
)


@pytest.mark.float64_only
def test_equations_4_to_6_follow_the_weights(key, dtype):
    f, mean, scale, draws = make_inputs(key, 2, 2, 4, dtype)
    weights = jnp.array([0.5, 0.0, 0.25, 0.25], dtype)
    repeated = draws[jnp.array([0, 0, 2, 3])]
    theta = vec(stack(mean, scale))

    def location_scale(theta):
        return theta[:2], jnp.sinh(unvec(theta[2:], 2))

    for estimator, extra in [
        (parameters.parameter_gradient, ()),
        (parameters.parameter_hessian, ()),
        (parameters.parameter_hessian_vector_product, (theta,)),
    ]:
        weighted = estimator(f, location_scale, theta, draws, *extra, weights=weights)
        assert_close(weighted, estimator(f, location_scale, theta, repeated, *extra), dtype)


@few_examples
@given(
    name=st.sampled_from(sorted(PARAMETERISATIONS)),
    base=st.sampled_from(sorted(BASES)),
    num_draws=SHAPES["num_draws"],
    seed=SHAPES["seed"],
)
def test_equations_4_and_6_agree_with_dense_autodiff_for_any_pytree(
    name, base, num_draws, seed, dtype
):
    @jax.jit
    def both_sides(key):
        f, location_scale, theta, draws, direction = make_parameter_inputs(
            key, name, num_draws, dtype, base
        )
        objective = sampled_parameter_objective(f, location_scale, draws)
        flat, unravel = ravel_pytree(theta)
        dense = jax.hessian(lambda flat: objective(unravel(flat)))(flat)
        slope = parameters.parameter_gradient(f, location_scale, theta, draws)
        product = parameters.parameter_hessian_vector_product(
            f, location_scale, theta, draws, direction
        )
        expected = jax.grad(objective)(theta), unravel(dense @ ravel_pytree(direction)[0])
        return (slope, product), expected

    assert_close(*both_sides(jax.random.key(seed)), dtype)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("low rank", "full rank") else pytest.mark.slow)
        for name in PARAMETERISATIONS
    ],
)
def test_equation_5_is_symmetric_and_agrees_with_dense_autodiff(name, dtype, key):
    f, location_scale, theta, draws, _ = make_parameter_inputs(key, name, 4, dtype)
    flat, unravel = ravel_pytree(theta)

    def flat_location_scale(flat):
        return location_scale(unravel(flat))

    objective = sampled_parameter_objective(f, flat_location_scale, draws)
    dense = parameters.parameter_hessian(f, flat_location_scale, flat, draws)
    assert_close(dense, jax.hessian(objective)(flat), dtype)
    assert_close(dense, dense.T, dtype)


@pytest.mark.float64_only
def test_with_theta_as_mean_and_scale_equations_4_to_6_are_theorem_1(key, dtype):
    f, mean, scale, draws = make_inputs(key, 3, 2, 5, dtype)
    theta = vec(stack(mean, scale))
    direction = jax.random.normal(key, theta.shape, dtype)

    def location_scale(flat):
        return unvec(flat, 3)[:, 0], unvec(flat, 3)[:, 1:]

    slope = parameters.parameter_gradient(f, location_scale, theta, draws)
    assert_close(unvec(slope, 3), stack(*ls.gradient(f, mean, scale, draws)), dtype)
    dense = parameters.parameter_hessian(f, location_scale, theta, draws)
    assert_close(dense, ls.hessian(f, mean, scale, draws), dtype)
    product = parameters.parameter_hessian_vector_product(
        f, location_scale, theta, draws, direction
    )
    expected = ls.hessian_vector_product(f, mean, scale, draws, unvec(direction, 3))
    assert_close(unvec(product, 3), expected, dtype)


@pytest.mark.parametrize("name", PARAMETERISATIONS)
def test_equation_6_traces_f_equally_often_whatever_the_number_of_draws(name, dtype):
    counts = []
    for num_draws in (1, 50):
        f, location_scale, theta, draws, direction = make_parameter_inputs(
            jax.random.key(0), name, num_draws, dtype
        )
        calls = []

        def counted(z, f=f, calls=calls):
            calls.append(1)
            return f(z)

        parameters.parameter_hessian_vector_product(
            counted, location_scale, theta, draws, direction
        )
        counts.append(len(calls))
    assert counts[0] == counts[1] <= 2


def test_equation_6_has_no_finite_difference(key, dtype):
    # A difference quotient has a step: it cannot scale exactly with a direction of any length.
    f, location_scale, theta, draws, direction = make_parameter_inputs(key, "low rank", 3, dtype)
    tiny = jax.tree.map(lambda leaf: leaf * 2.0**-60, direction)
    product = parameters.parameter_hessian_vector_product(
        f, location_scale, theta, draws, direction
    )
    scaled = parameters.parameter_hessian_vector_product(f, location_scale, theta, draws, tiny)
    assert_close(jax.tree.map(lambda leaf: leaf * 2.0**60, scaled), product, dtype)


def test_a_wrong_location_scale_or_theta_is_refused(dtype):
    f, location_scale, theta, draws, direction = make_parameter_inputs(
        jax.random.key(0), "mean field", 2, dtype
    )
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
