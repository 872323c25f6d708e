"""The diagonal forms against dense autodiff, Theorem 1 with a diagonal scale, and closed forms."""

from __future__ import annotations

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
    SEEDS,
    assert_close,
    assert_unbiased,
    generator,
    largest_intermediate,
    make_function,
    many_examples,
    normal,
    refuse,
    some_sizes,
)


def make_inputs(rng, d, num_draws, dtype, base="gaussian"):
    draws = jnp.asarray(BASES[base](rng, (num_draws, d)), dtype)
    return normal(rng, (3, d), dtype), normal(rng, (d,), dtype), normal(rng, (d,), dtype), draws


@jax.jit
def diagonal_forms_and_autodiff(rows, mean, sd, draws):
    f, d = make_function(rows), mean.shape[0]

    def objective(both):
        return jnp.mean(jax.vmap(lambda noise: f(both[:d] + both[d:] * noise))(draws))

    def product(vector):
        pair = (vector[:d], vector[d:])
        return jnp.concatenate(ls.diagonal_hessian_vector_product(f, mean, sd, draws, pair))

    both = jnp.concatenate([mean, sd])
    slope = jnp.concatenate(ls.diagonal_gradient(f, mean, sd, draws))
    dense = ls.diagonal_hessian(f, mean, sd, draws)
    columns = jax.vmap(product, out_axes=1)(jnp.eye(2 * d, dtype=mean.dtype))
    expected = jax.hessian(objective)(both)
    return (slope, dense, dense.T, columns), (jax.grad(objective)(both), *[expected] * 3)


@many_examples
@given(some_sizes(sorted(BASES), range(1, 5), range(1, 6)), SEEDS)
def test_the_diagonal_forms_agree_with_dense_autodiff(dtype, case, seed):
    base, d, num_draws = case
    inputs = make_inputs(np.random.default_rng(seed), d, num_draws, dtype, base)
    assert_close(*diagonal_forms_and_autodiff(*inputs), dtype)


def test_the_diagonal_forms_are_the_diagonal_of_theorem_1(key, dtype):
    d = 3
    # Column j of [mean, scale] starts at position d j: keep the mean and the diagonal of the scale.
    kept = np.concatenate([np.arange(d), d + np.arange(d) * (d + 1)])

    @jax.jit
    def both_sides(rows, mean, sd, draws):
        f = make_function(rows)
        in_mean, in_scale = ls.gradient(f, mean, jnp.diag(sd), draws)
        dense = ls.hessian(f, mean, jnp.diag(sd), draws)[np.ix_(kept, kept)]
        found = ls.diagonal_gradient(f, mean, sd, draws), ls.diagonal_hessian(f, mean, sd, draws)
        return found, ((in_mean, jnp.diagonal(in_scale)), dense)

    assert_close(*both_sides(*make_inputs(generator(key), d, 5, dtype)), dtype)


def test_given_weights_replace_the_equal_ones(key, dtype):
    @jax.jit
    def every_estimate(rows, mean, sd, draws, weights):
        inputs, options = (make_function(rows), mean, sd, draws), {"weights": weights}
        return (
            ls.diagonal_gradient(*inputs, **options),
            ls.diagonal_hessian(*inputs, **options),
            ls.diagonal_hessian_vector_product(*inputs, (sd, mean), **options),
        )

    *inputs, draws = make_inputs(generator(key), 2, 4, dtype)
    weighted = every_estimate(*inputs, draws, jnp.array([0.5, 0.0, 0.25, 0.25], dtype))
    repeated = every_estimate(*inputs, draws[jnp.array([0, 0, 2, 3])], None)
    assert_close(weighted, repeated, dtype)


def test_the_diagonal_estimators_are_unbiased_for_the_closed_form(key, dtype):
    # E cos(a'z) = cos(a'mean) exp(-sum (a sd)^2 / 2): bounded, so the normal limit holds well.
    d, num_draws = 2, 100_000
    rng = generator(key)
    slopes, both, along = (normal(rng, shape, dtype) for shape in ((3, d), (2 * d,), (2 * d,)))

    @jax.jit
    def estimates_and_limits(slopes, both, along, draws):
        def f(z):
            return jnp.sum(jnp.cos(slopes @ z))

        def closed_form(both):
            return jnp.sum(jnp.cos(slopes @ both[:d]) * jnp.exp(-(slopes**2) @ both[d:] ** 2 / 2))

        def one(noise):
            inputs = (f, both[:d], both[d:], noise[None])
            product = ls.diagonal_hessian_vector_product(*inputs, (along[:d], along[d:]))
            return (
                jnp.concatenate(ls.diagonal_gradient(*inputs)),
                ls.diagonal_hessian(*inputs),
                jnp.concatenate(product),
            )

        dense = jax.hessian(closed_form)(both)
        return jax.vmap(one)(draws), (jax.grad(closed_form)(both), dense, dense @ along)

    draws = normal(rng, (num_draws, d), dtype)
    for per_draw, expected in zip(*estimates_and_limits(slopes, both, along, draws), strict=True):
        assert_unbiased(per_draw, expected, num_cases=3)


def test_the_product_stores_a_few_vectors_and_no_matrix(dtype):
    d = 100
    ones = jnp.ones(d, dtype)

    def product(mean):
        return ls.diagonal_hessian_vector_product(
            lambda z: jnp.sum(jnp.sin(z)) * jnp.vdot(z, z), mean, ones, ones[None], (ones, ones)
        )

    assert largest_intermediate(product, ones) <= 2 * d


@pytest.mark.parametrize("name", ["diagonal_gradient", "diagonal_hessian"])
def test_wrong_shapes_are_refused_with_what_where_and_what_to_do(name, dtype):
    estimator = getattr(ls, name)
    rows, mean, sd, draws = make_inputs(np.random.default_rng(0), 3, 4, dtype)
    f = make_function(rows)
    refuse(estimator, f, mean[None], sd, draws, match=rf"mean has shape \(1, 3\) in {name}\(\)")
    refuse(estimator, f, mean, sd[:2], draws, match=r"sd has shape \(2,\).*shape \(3,\)")
    refuse(estimator, f, mean, sd, draws[:, :2], match=r"draws has shape \(4, 2\).*\(M, 3\)")
    refuse(estimator, f, mean, sd, draws, weights=sd, match=r"one weight per draw.*\(4,\)")
    refuse(estimator, lambda z: z, mean, sd, draws, match=r"f must return a scalar")


def test_a_wrong_direction_is_refused(dtype):
    rows, mean, sd, draws = make_inputs(np.random.default_rng(0), 3, 4, dtype)
    product = ls.diagonal_hessian_vector_product
    for wrong in [mean, (mean,), (mean, sd[:2]), (mean, sd, sd)]:
        message = r"two vectors.*shape \(3,\)"
        refuse(product, make_function(rows), mean, sd, draws, wrong, match=message)


def of_a_network(theta):
    """Means and sds that share their parameters, so that no derivative of theta is simple."""
    hidden = jnp.tanh(theta["weights"] @ theta["inputs"])
    return theta["mean"] * hidden, jnp.exp(0.3 * hidden) + theta["mean"] ** 2


@jax.jit
def theta_forms(rows, theta, draws, direction):
    """Equations (4) to (6) with a vector of sds, the printed sums, and dense autodiff."""
    f = make_function(rows)
    flat, unravel = ravel_pytree(theta)

    def from_flat(flat):
        return of_a_network(unravel(flat))

    inputs = (f, from_flat, flat, draws)
    found = (
        parameters.parameter_gradient(*inputs),
        parameters.parameter_hessian(*inputs),
        parameters.parameter_hessian_vector_product(*inputs, direction),
    )
    mean, sd = from_flat(flat)
    slope, curvature = (
        ls.diagonal_gradient(f, mean, sd, draws),
        ls.diagonal_hessian(f, mean, sd, draws),
    )
    first = jnp.concatenate(jax.jacfwd(from_flat)(flat))
    second = jnp.concatenate(jax.hessian(from_flat)(flat))
    printed = first.T @ curvature @ first + jnp.einsum("i,ipq->pq", jnp.concatenate(slope), second)

    def value(flat):
        mean, sd = from_flat(flat)
        return jnp.mean(jax.vmap(lambda noise: f(mean + sd * noise))(draws))

    dense = jax.hessian(value)(flat)
    by_hand = (first.T @ jnp.concatenate(slope), printed, printed @ direction)
    return found, by_hand, (jax.grad(value)(flat), dense, dense @ direction)


def test_the_theta_form_of_the_diagonal_theorem_needs_no_dense_scale(key, dtype):
    rng, d = generator(key), 3
    rows, _, _, draws = make_inputs(rng, d, 5, dtype)
    theta = {
        "mean": normal(rng, (d,), dtype),
        "weights": normal(rng, (d, 2), dtype),
        "inputs": normal(rng, (2,), dtype),
    }
    direction = normal(rng, (d + 2 * d + 2,), dtype)
    found, by_hand, autodiff = theta_forms(rows, theta, draws, direction)
    assert_close(found, by_hand, dtype)
    assert_close(found, autodiff, dtype)


def test_the_theta_form_stores_vectors_and_no_matrix():
    """Sizes of all intermediate arrays of the product, one draw of a thousand dimensions."""
    d = 1000
    f = lambda z: jnp.sum(jnp.cos(z)) + jnp.sum(z) ** 2  # noqa: E731

    def product(theta, direction):
        return parameters.parameter_hessian_vector_product(
            f, lambda t: (t, jnp.exp(t)), theta, jnp.ones((1, d)), direction
        )

    assert largest_intermediate(product, jnp.ones(d), jnp.ones(d)) <= d
