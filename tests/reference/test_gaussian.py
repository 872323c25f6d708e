"""Equations (1)-(3) against closed forms, exact quadrature and the chain rule with Theorem 1."""

from __future__ import annotations

import inspect
import itertools
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi._core.errors import InputError
from curvi.reference import _gaussian as gaussian
from curvi.reference import _location_scale as ls

ESTIMATORS = (
    "mean_gradient",
    "covariance_gradient",
    "mean_mean_hessian",
    "covariance_covariance_hessian",
    "mean_covariance_hessian",
)


def assert_close(actual, expected, dtype):
    """Agreement relative to the largest entry, with a floor for results near zero."""
    tolerance = 1e-9 if dtype == jnp.float64 else 2e-3
    assert actual.shape == expected.shape
    assert actual.dtype == dtype
    scale = float(jnp.max(jnp.abs(expected))) + 0.01
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


def gauss_hermite(d, dtype):
    """Nodes and weights exact for polynomials of degree 9 in each of d standard normals."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    grid = np.array(list(itertools.product(nodes, repeat=d)))
    products = np.array(list(itertools.product(weights, repeat=d))).prod(axis=1)
    return jnp.asarray(grid, dtype), jnp.asarray(products, dtype)


def make_inputs(key, d, dtype):
    keys = jax.random.split(key, 3)
    mean = jax.random.normal(keys[0], (d,), dtype)
    scale = jax.random.normal(keys[1], (d, d), dtype)
    return jax.random.normal(keys[2], (3, d), dtype), mean, scale


def quartic(directions):
    """f(z) = sum_r (a_r'z)^4."""
    return lambda z: jnp.sum((directions @ z) ** 4)


def expected_quartic(directions, mean, covariance):
    """With m = a'mean and v = a'Ca: E f = sum m^4 + 6 m^2 v + 3 v^2."""
    m = directions @ mean
    v = jnp.einsum("ri,ij,rj->r", directions, covariance, directions)
    return jnp.sum(m**4 + 6 * m**2 * v + 3 * v**2)


def quartic_closed_form(directions, mean, covariance):
    """The derivatives of `expected_quartic`, by hand: dm = a and dv = aa', entry by entry."""
    m = directions @ mean
    v = jnp.einsum("ri,ij,rj->r", directions, covariance, directions)

    def outer(coefficients, order):
        letters = "ijkl"[:order]
        terms = ",".join("r" + letter for letter in letters)
        return jnp.einsum(f"r,{terms}->{letters}", coefficients, *[directions] * order)

    return {
        "mean_gradient": outer(4 * m**3 + 12 * m * v, 1),
        "covariance_gradient": outer(6 * m**2 + 6 * v, 2),
        "mean_mean_hessian": outer(12 * m**2 + 12 * v, 2),
        "covariance_covariance_hessian": outer(6 * jnp.ones_like(m), 4),
        "mean_covariance_hessian": outer(12 * m, 3),
    }


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("d", [1, 3])
def test_quadrature_gives_the_closed_form_of_a_quartic(name, d, key, dtype):
    directions, mean, scale = make_inputs(key, d, dtype)
    draws, weights = gauss_hermite(d, dtype)
    estimate = getattr(gaussian, name)(quartic(directions), mean, scale, draws, weights=weights)
    assert_close(estimate, quartic_closed_form(directions, mean, scale @ scale.T)[name], dtype)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_quadratic_needs_only_two_opposite_draws(name, key, dtype):
    d = 3
    matrix, mean, scale = make_inputs(key, d, dtype)
    symmetric, slope = matrix @ matrix.T, matrix[0]
    noise = jax.random.normal(key, (1, d), dtype)
    expected = {
        "mean_gradient": symmetric @ mean + slope,
        "covariance_gradient": symmetric / 2,
        "mean_mean_hessian": symmetric,
        "covariance_covariance_hessian": jnp.zeros((d,) * 4, dtype),
        "mean_covariance_hessian": jnp.zeros((d,) * 3, dtype),
    }[name]

    def f(z):
        return jnp.vdot(z, symmetric @ z) / 2 + jnp.vdot(slope, z)

    draws = jnp.concatenate([noise, -noise])
    assert_close(getattr(gaussian, name)(f, mean, scale, draws), expected, dtype)


def test_the_closed_form_by_hand_is_the_derivative_of_the_expectation(key, dtype):
    directions, mean, scale = make_inputs(key, 2, dtype)
    arguments = (mean, scale @ scale.T)
    by_hand = quartic_closed_form(directions, *arguments)

    def expectation(mean, covariance):
        return expected_quartic(directions, mean, covariance)

    slope = jax.grad(expectation, (0, 1))(*arguments)
    dense = jax.hessian(expectation, (0, 1))(*arguments)
    autodiff = (*slope, dense[0][0], dense[1][1], dense[0][1])
    for name, expected in zip(ESTIMATORS, autodiff, strict=True):
        assert_close(by_hand[name], expected, dtype)


def test_the_higher_derivatives_are_symmetric_in_every_pair_of_indices(key, dtype):
    directions, mean, scale = make_inputs(key, 3, dtype)
    draws = jax.random.normal(key, (4, 3), dtype)

    def f(z):
        return jnp.sum(jnp.sin(directions @ z))

    for name in ESTIMATORS[2:]:
        estimate = getattr(gaussian, name)(f, mean, scale, draws)
        for order in itertools.permutations(range(estimate.ndim)):
            assert_close(jnp.transpose(estimate, order), estimate, dtype)


def test_equation_1_is_twice_the_theorem_of_price(key, dtype):
    directions, mean, scale = make_inputs(key, 3, dtype)
    arguments = (quartic(directions), mean, scale, jax.random.normal(key, (4, 3), dtype))
    assert_close(
        gaussian.mean_mean_hessian(*arguments), 2 * gaussian.covariance_gradient(*arguments), dtype
    )


def test_equations_1_to_3_agree_with_theorem_1_by_the_chain_rule(key, dtype):
    d = 2
    directions, mean, scale = make_inputs(key, d, dtype)
    draws, weights = gauss_hermite(d, dtype)

    def f(z):
        return quartic(directions)(z) + jnp.sum((directions @ z) ** 3) + z[0]

    def evaluate(estimator):
        return estimator(f, mean, scale, draws, weights=weights)

    in_mean, in_covariance, mean_mean, covariance_covariance, mean_covariance = (
        evaluate(getattr(gaussian, name)) for name in ESTIMATORS
    )

    def covariance(scale):
        return scale @ scale.T

    first, second = jax.jacobian(covariance)(scale), jax.hessian(covariance)(scale)
    slope = jnp.einsum("ab,abij->ij", in_covariance, first)
    mixed = jnp.einsum("iab,abkl->ikl", mean_covariance, first)
    dense = jnp.einsum("abij,abce,cekl->ijkl", first, covariance_covariance, first)
    dense = dense + jnp.einsum("ab,abijkl->ijkl", in_covariance, second)

    actual_mean, actual_scale = evaluate(ls.gradient)
    assert_close(actual_mean, in_mean, dtype)
    assert_close(actual_scale, slope, dtype)
    assert_close(evaluate(ls.hessian)[:d, :d], mean_mean, dtype)
    # Theorem 1 orders the scale column by column.
    columns_first = mixed.transpose(0, 2, 1).reshape(d, d * d)
    assert_close(evaluate(ls.mean_scale_hessian), columns_first, dtype)
    columns_first = dense.transpose(1, 0, 3, 2).reshape(d * d, d * d)
    assert_close(evaluate(ls.scale_scale_hessian), columns_first, dtype)


@pytest.mark.slow
def test_tied_derivatives_are_those_of_the_lower_triangle(key, dtype):
    d = 3
    directions, mean, scale = make_inputs(key, d, dtype)
    draws, weights = gauss_hermite(d, dtype)
    rows, columns = jnp.tril_indices(d)

    def expectation(mean, triangle):
        lower = jnp.zeros((d, d), dtype).at[rows, columns].set(triangle)
        covariance = lower + jnp.tril(lower, -1).T
        return expected_quartic(directions, mean, covariance)

    def evaluate(estimator):
        return estimator(quartic(directions), mean, scale, draws, weights=weights)

    at = (mean, (scale @ scale.T)[rows, columns])
    separate = evaluate(gaussian.covariance_gradient)
    tied = gaussian.tie_covariance_gradient(separate)
    assert_close(tied, jax.grad(expectation, 1)(*at), dtype)
    # Read without tying, as the paper prints them, the off-diagonal derivatives are half too small.
    off_diagonal = rows != columns
    assert_close(tied[off_diagonal], 2 * separate[rows, columns][off_diagonal], dtype)
    dense = jax.hessian(expectation, (0, 1))(*at)
    mixed = gaussian.tie_mean_covariance_hessian(evaluate(gaussian.mean_covariance_hessian))
    assert_close(mixed, dense[0][1], dtype)
    fourth = evaluate(gaussian.covariance_covariance_hessian)
    assert_close(gaussian.tie_covariance_covariance_hessian(fourth), dense[1][1], dtype)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_estimators_are_unbiased_for_the_closed_form(name, key, dtype):
    # E cos(a'z) = cos(a'mean) exp(-a'Ca / 2): bounded, so the normal limit holds well.
    d, num_draws = 2, 100_000
    directions, mean, scale = make_inputs(key, d, dtype)
    draws = jax.random.normal(jax.random.fold_in(key, 1), (num_draws, d), dtype)

    def f(z):
        return jnp.sum(jnp.cos(directions @ z))

    def closed_form(mean, covariance):
        v = jnp.einsum("ri,ij,rj->r", directions, covariance, directions)
        return jnp.sum(jnp.cos(directions @ mean) * jnp.exp(-v / 2))

    at = (mean, scale @ scale.T)
    slope = jax.grad(closed_form, (0, 1))(*at)
    dense = jax.hessian(closed_form, (0, 1))(*at)
    expected = dict(zip(ESTIMATORS, (*slope, dense[0][0], dense[1][1], dense[0][1]), strict=True))[
        name
    ]

    def one(noise):
        return getattr(gaussian, name)(f, mean, scale, noise[None])

    per_draw = np.asarray(jax.jit(jax.vmap(one))(draws), np.float64)
    error = np.abs(per_draw.mean(axis=0) - np.asarray(expected, np.float64))
    standard_error = per_draw.std(axis=0, ddof=1) / np.sqrt(num_draws)
    # Family-wise level 1e-6 over the entries and the five cases.
    critical = NormalDist().inv_cdf(1 - 1e-6 / (2 * 5 * error.size))
    assert np.max(error / standard_error) < critical


def refuse(estimator, *arguments, match, **keywords):
    """Call past any annotation checker that a test run may have wrapped around the function."""
    with pytest.raises(InputError, match=match):
        inspect.unwrap(estimator)(*arguments, **keywords)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_wrong_shapes_are_refused_with_what_where_and_what_to_do(name, dtype):
    estimator = getattr(gaussian, name)
    directions, mean, scale = make_inputs(jax.random.key(0), 2, dtype)
    f, draws = quartic(directions), jnp.ones((4, 2), dtype)
    refuse(estimator, f, mean[None], scale, draws, match=rf"mean has shape \(1, 2\) in {name}\(\)")
    refuse(estimator, f, mean, scale[:1], draws, match=r"scale has shape \(1, 2\).*shape \(2, k\)")
    refuse(estimator, f, mean, scale, draws.T, match=r"draws has shape \(2, 4\).*\(M, 2\)")
    refuse(estimator, f, mean, scale, draws, weights=mean, match=r"one weight per draw.*\(4,\)")
    refuse(estimator, lambda z: z, mean, scale, draws, match=r"f must return a scalar")


def test_derivatives_with_unequal_axes_cannot_be_tied(dtype):
    for name, shape in [
        ("tie_covariance_gradient", (2, 3)),
        ("tie_mean_covariance_hessian", (2, 2)),
        ("tie_covariance_covariance_hessian", (2, 2, 2, 3)),
    ]:
        wrong = jnp.zeros(shape, dtype)
        refuse(getattr(gaussian, name), wrong, match=rf"derivative has shape .* in {name}\(\)")
