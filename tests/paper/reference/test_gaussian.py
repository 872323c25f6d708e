"""Equations (1)-(3) against closed forms, exact quadrature and the chain rule with Theorem 1."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi.paper.reference import _gaussian as gaussian
from curvi.paper.reference import _location_scale as ls
from tests.paper.reference.sampled import assert_close, assert_unbiased, generator, normal, refuse

ESTIMATORS = (
    "mean_gradient",
    "covariance_gradient",
    "mean_mean_hessian",
    "covariance_covariance_hessian",
    "mean_covariance_hessian",
)


def gauss_hermite(d, dtype):
    """Nodes and weights exact for polynomials of degree 9 in each of d standard normals."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    grid = np.array(list(itertools.product(nodes, repeat=d)))
    products = np.array(list(itertools.product(weights, repeat=d))).prod(axis=1)
    return jnp.asarray(grid, dtype), jnp.asarray(products, dtype)


def make_inputs(key, d, dtype, num_draws=1):
    """Directions of a function of z, mean, scale and draws."""
    rng, shapes = generator(key), ((3, d), (d,), (d, d), (num_draws, d))
    return tuple(normal(rng, shape, dtype) for shape in shapes)


def every_estimate(*inputs, **options):
    return {name: getattr(gaussian, name)(*inputs, **options) for name in ESTIMATORS}


def derivatives(expectation, mean, covariance):
    """The derivatives that `ESTIMATORS` name, of a function of mean and covariance, by autodiff."""
    slope = jax.grad(expectation, (0, 1))(mean, covariance)
    dense = jax.hessian(expectation, (0, 1))(mean, covariance)
    found = (*slope, dense[0][0], dense[1][1], dense[0][1])
    return dict(zip(ESTIMATORS, found, strict=True))


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


@pytest.mark.parametrize("d", [1, 3])
def test_quadrature_gives_the_closed_form_of_a_quartic(d, key, dtype):
    draws, weights = gauss_hermite(d, dtype)

    @jax.jit
    def both_sides(directions, mean, scale):
        found = every_estimate(quartic(directions), mean, scale, draws, weights=weights)
        return found, quartic_closed_form(directions, mean, scale @ scale.T)

    assert_close(*both_sides(*make_inputs(key, d, dtype)[:3]), dtype)


def test_a_quadratic_needs_only_two_opposite_draws(key, dtype):
    d = 3

    @jax.jit
    def both_sides(matrix, mean, scale, noise):
        symmetric, slope = matrix @ matrix.T, matrix[0]

        def f(z):
            return jnp.vdot(z, symmetric @ z) / 2 + jnp.vdot(slope, z)

        return every_estimate(f, mean, scale, jnp.concatenate([noise, -noise])), {
            "mean_gradient": symmetric @ mean + slope,
            "covariance_gradient": symmetric / 2,
            "mean_mean_hessian": symmetric,
            "covariance_covariance_hessian": jnp.zeros((d,) * 4, dtype),
            "mean_covariance_hessian": jnp.zeros((d,) * 3, dtype),
        }

    assert_close(*both_sides(*make_inputs(key, d, dtype)), dtype)


def test_the_closed_form_by_hand_is_the_derivative_of_the_expectation(key, dtype):
    @jax.jit
    def both_sides(directions, mean, scale):
        at = (mean, scale @ scale.T)
        autodiff = derivatives(partial(expected_quartic, directions), *at)
        return quartic_closed_form(directions, *at), autodiff

    assert_close(*both_sides(*make_inputs(key, 2, dtype)[:3]), dtype)


def test_the_higher_derivatives_are_symmetric_in_every_pair_of_indices(key, dtype):
    @jax.jit
    def estimates(directions, mean, scale, draws):
        return every_estimate(lambda z: jnp.sum(jnp.sin(directions @ z)), mean, scale, draws)

    found = estimates(*make_inputs(key, 3, dtype, num_draws=4))
    found = {name: np.asarray(value) for name, value in found.items()}
    for name in ESTIMATORS[2:]:
        for order in itertools.permutations(range(found[name].ndim)):
            assert_close(np.transpose(found[name], order), found[name], dtype)


def test_equation_1_is_twice_the_theorem_of_price(key, dtype):
    @jax.jit
    def both_sides(directions, *rest):
        inputs = (quartic(directions), *rest)
        return gaussian.mean_mean_hessian(*inputs), 2 * gaussian.covariance_gradient(*inputs)

    assert_close(*both_sides(*make_inputs(key, 3, dtype, num_draws=4)), dtype)


def test_equations_1_to_3_agree_with_theorem_1_by_the_chain_rule(key, dtype):
    d = 2
    draws, weights = gauss_hermite(d, dtype)

    def covariance(scale):
        return scale @ scale.T

    @jax.jit
    def both_sides(directions, mean, scale):
        def f(z):
            return quartic(directions)(z) + jnp.sum((directions @ z) ** 3) + z[0]

        inputs = (f, mean, scale, draws)
        found = every_estimate(*inputs, weights=weights)
        in_covariance = found["covariance_gradient"]
        first, second = jax.jacobian(covariance)(scale), jax.hessian(covariance)(scale)
        slope = jnp.einsum("ab,abij->ij", in_covariance, first)
        mixed = jnp.einsum("iab,abkl->ikl", found["mean_covariance_hessian"], first)
        fourth = found["covariance_covariance_hessian"]
        dense = jnp.einsum("abij,abce,cekl->ijkl", first, fourth, first)
        dense = dense + jnp.einsum("ab,abijkl->ijkl", in_covariance, second)
        # Theorem 1 orders the scale column by column.
        by_chain_rule = (
            (found["mean_gradient"], slope),
            found["mean_mean_hessian"],
            mixed.transpose(0, 2, 1).reshape(d, d * d),
            dense.transpose(1, 0, 3, 2).reshape(d * d, d * d),
        )
        theorem_1 = (
            ls.gradient(*inputs, weights=weights),
            ls.hessian(*inputs, weights=weights)[:d, :d],
            ls.mean_scale_hessian(*inputs, weights=weights),
            ls.scale_scale_hessian(*inputs, weights=weights),
        )
        return theorem_1, by_chain_rule

    assert_close(*both_sides(*make_inputs(key, d, dtype)[:3]), dtype)


def test_tied_derivatives_are_those_of_the_lower_triangle(key, dtype):
    d = 3
    draws, weights = gauss_hermite(d, dtype)
    rows, columns = np.tril_indices(d)

    @jax.jit
    def both_sides(directions, mean, scale):
        def expectation(mean, triangle):
            lower = jnp.zeros((d, d), dtype).at[rows, columns].set(triangle)
            covariance = lower + jnp.tril(lower, -1).T
            return expected_quartic(directions, mean, covariance)

        def evaluate(estimator):
            return estimator(quartic(directions), mean, scale, draws, weights=weights)

        at = (mean, (scale @ scale.T)[rows, columns])
        separate = evaluate(gaussian.covariance_gradient)
        dense = jax.hessian(expectation, (0, 1))(*at)
        fourth = evaluate(gaussian.covariance_covariance_hessian)
        found = (
            gaussian.tie_covariance_gradient(separate),
            gaussian.tie_mean_covariance_hessian(evaluate(gaussian.mean_covariance_hessian)),
            gaussian.tie_covariance_covariance_hessian(fourth),
        )
        return found, (jax.grad(expectation, 1)(*at), dense[0][1], dense[1][1]), separate

    found, expected, separate = both_sides(*make_inputs(key, d, dtype)[:3])
    assert_close(found, expected, dtype)
    # Read without tying, as the paper prints them, the off-diagonal derivatives are half too small.
    off_diagonal = rows != columns
    printed = separate[rows, columns]
    assert_close(found[0][off_diagonal], 2 * printed[off_diagonal], dtype)


def test_the_estimators_are_unbiased_for_the_closed_form(key, dtype):
    # E cos(a'z) = cos(a'mean) exp(-a'Ca / 2): bounded, so the normal limit holds well.
    d, num_draws = 2, 100_000

    @jax.jit
    def estimates_and_limits(directions, mean, scale, draws):
        def f(z):
            return jnp.sum(jnp.cos(directions @ z))

        def closed_form(mean, covariance):
            v = jnp.einsum("ri,ij,rj->r", directions, covariance, directions)
            return jnp.sum(jnp.cos(directions @ mean) * jnp.exp(-v / 2))

        per_draw = jax.vmap(lambda noise: every_estimate(f, mean, scale, noise[None]))(draws)
        return per_draw, derivatives(closed_form, mean, scale @ scale.T)

    per_draw, expected = estimates_and_limits(*make_inputs(key, d, dtype, num_draws))
    for name in ESTIMATORS:
        assert_unbiased(per_draw[name], expected[name], num_cases=5)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_wrong_shapes_are_refused_with_what_where_and_what_to_do(name, dtype):
    estimator = getattr(gaussian, name)
    directions, mean, scale, _ = make_inputs(jax.random.key(0), 2, dtype)
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
