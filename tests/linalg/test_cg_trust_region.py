"""Steihaug's boundary: conjugate gradients inside a trust region."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curvi.linalg import CGOutcome, conjugate_gradient
from tests.linalg.systems import (
    dimensions,
    indefinite_system,
    model,
    positive_diagonal,
    positive_system,
    seeds,
    solve,
)


def precision(dtype):
    return 1e-8 if dtype == jnp.float64 else 2e-3


def make(seed, size, indefinite):
    return indefinite_system(seed, size) if indefinite else positive_system(seed, size, 50.0)


def cauchy_point(system, diagonal, radius):
    direction = system.rhs / diagonal
    curvature = direction @ system.matrix @ direction
    limit = radius / np.sqrt(direction @ (diagonal * direction))
    inside = direction @ system.rhs / curvature if curvature > 0 else np.inf
    return min(inside, limit) * direction


def natural_length(system, diagonal):
    """A length at which the boundary matters: that of the regularised solution."""
    shift = 1.5 * np.abs(system.eigenvalues).max()
    x = np.linalg.solve(system.matrix + shift * np.eye(len(system.rhs)), system.rhs)
    return np.sqrt(x @ (diagonal * x))


@given(seed=seeds, size=dimensions, indefinite=st.booleans(), factor=st.floats(0.1, 3.0))
def test_the_solution_stays_inside_and_is_never_worse_than_the_cauchy_point(
    dtype, seed, size, indefinite, factor
):
    system = make(seed, size, indefinite)
    diagonal = positive_diagonal(seed, size)
    radius = factor * natural_length(system, diagonal)
    result = solve(system, dtype, diagonal=diagonal, radius=radius)
    found = np.asarray(result.solution, float)
    length = np.sqrt(found @ (diagonal * found))
    assert length <= radius * (1 + precision(dtype))
    outcome = CGOutcome(int(result.outcome))
    if outcome in (CGOutcome.BOUNDARY, CGOutcome.NEGATIVE_CURVATURE):
        np.testing.assert_allclose(length, radius, rtol=precision(dtype))
    else:
        assert not indefinite
        assert outcome in (CGOutcome.CONVERGED, CGOutcome.STALLED)
    scale = abs(model(system, found))
    assert abs(float(result.model_value) - model(system, found)) <= 10 * precision(dtype) * scale
    cauchy = model(system, cauchy_point(system, diagonal, radius))
    assert model(system, found) <= cauchy + 10 * precision(dtype) * abs(cauchy)


@given(seed=seeds, size=dimensions, indefinite=st.booleans(), factor=st.floats(0.1, 3.0))
def test_no_warm_start_makes_it_worse_than_the_cauchy_point(dtype, seed, size, indefinite, factor):
    system = make(seed, size, indefinite)
    diagonal = positive_diagonal(seed, size)
    radius = factor * natural_length(system, diagonal)
    start = np.random.default_rng(seed).normal(size=size) * radius
    result = solve(system, dtype, diagonal=diagonal, radius=radius, initial=start)
    found = np.asarray(result.solution, float)
    assert np.sqrt(found @ (diagonal * found)) <= radius * (1 + precision(dtype))
    cauchy = model(system, cauchy_point(system, diagonal, radius))
    assert model(system, found) <= cauchy + 10 * precision(dtype) * abs(cauchy)


@given(seed=seeds, size=dimensions)
def test_a_large_radius_changes_nothing(dtype, seed, size):
    system = positive_system(seed, size, 50.0)
    exact = np.linalg.solve(system.matrix, system.rhs)
    free = solve(system, dtype)
    bounded = solve(system, dtype, radius=100 * float(np.linalg.norm(exact)))
    assert int(bounded.outcome) == int(free.outcome)
    error = np.linalg.norm(np.asarray(bounded.solution, float) - exact)
    assert error <= 10 * precision(dtype) * np.linalg.norm(exact)


@given(seed=seeds, size=dimensions)
def test_a_tiny_radius_gives_preconditioned_steepest_descent(dtype, seed, size):
    system = positive_system(seed, size, 50.0)
    diagonal = positive_diagonal(seed, size)
    radius = 1e-3 * natural_length(system, diagonal)
    result = solve(system, dtype, diagonal=diagonal, radius=radius)
    direction = system.rhs / diagonal
    expected = direction * radius / np.sqrt(direction @ (diagonal * direction))
    assert int(result.outcome) == CGOutcome.BOUNDARY
    error = np.linalg.norm(np.asarray(result.solution, float) - expected)
    assert error <= 10 * precision(dtype) * np.linalg.norm(expected)


def test_the_radius_may_be_traced_and_batched(dtype):
    system = positive_system(0, 5, 50.0)
    matrix, rhs = jnp.asarray(system.matrix, dtype), jnp.asarray(system.rhs, dtype)
    radii = jnp.asarray([0.01, 0.1, 1.0, 1e6], dtype) * jnp.linalg.norm(
        jnp.linalg.solve(matrix, rhs)
    )
    run = jax.jit(
        jax.vmap(lambda radius: conjugate_gradient(lambda v: matrix @ v, rhs, radius=radius))
    )
    result = run(radii)
    lengths = jnp.linalg.norm(result.solution, axis=1)
    np.testing.assert_allclose(lengths[:2], radii[:2], rtol=1e-5)
    assert int(result.outcome[-1]) == CGOutcome.CONVERGED
