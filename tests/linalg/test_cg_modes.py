"""The eager and the compiled driver of conjugate gradients run one and the same iteration."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curvi.linalg import CGOutcome
from curvi.linalg._cg import eager_conjugate_gradient
from tests.linalg.systems import (
    dimensions,
    indefinite_system,
    model,
    positive_diagonal,
    positive_system,
    seeds,
)
from tests.linalg.systems import solve as solve_compiled

pytestmark = pytest.mark.float64_only
EPS = float(np.finfo(np.float64).eps)


def eager(system, diagonal, **options):
    def products(vector):
        image = system.matrix @ vector
        return image, image / diagonal

    options = {"relative_tolerance": 1e-10, "max_steps": 500, **options}
    return eager_conjugate_gradient(products, system.rhs, system.rhs / diagonal, eps=EPS, **options)


def compiled(system, diagonal, radius=None, **options):
    options = {"relative_tolerance": 1e-10, "max_steps": 500, "natural_norm": True, **options}
    return solve_compiled(system, jnp.float64, diagonal=diagonal, radius=radius, **options)


@given(seed=seeds, size=dimensions, verify=st.booleans())
def test_a_positive_system_is_solved(seed, size, verify):
    system, diagonal = positive_system(seed, size, 100.0), positive_diagonal(seed, size)
    found = eager(system, diagonal, radius=np.inf, verify=verify)
    exact = np.linalg.solve(system.matrix, system.rhs)
    assert found.outcome in (CGOutcome.CONVERGED, CGOutcome.STALLED)
    np.testing.assert_allclose(found.solution, exact, rtol=0, atol=1e-6 * np.abs(exact).max())
    assert found.model_value == pytest.approx(-0.5 * system.rhs @ exact, rel=1e-8)
    length = np.sqrt(found.solution @ (diagonal * found.solution))
    assert found.length == pytest.approx(length, rel=1e-6)


@given(seed=seeds, size=dimensions)
def test_the_same_iterates_are_visited_in_both_modes(seed, size):
    system, diagonal = positive_system(seed, size, 30.0), positive_diagonal(seed, size)
    for steps in range(1, min(size, 4) + 1):
        one, other = (
            solve(system, diagonal, max_steps=steps, verify=False) for solve in (eager, compiled)
        )
        assert int(one.outcome) == int(other.outcome)
        assert int(one.products) == int(other.products) == int(one.steps)
        np.testing.assert_allclose(one.solution, other.solution, rtol=1e-9, atol=1e-12)


@given(seed=seeds, size=dimensions, indefinite=st.booleans(), factor=st.floats(0.1, 0.9))
def test_both_modes_end_at_the_same_point_of_the_boundary(seed, size, indefinite, factor):
    make = indefinite_system if indefinite else lambda s, n: positive_system(s, n, 30.0)
    system, diagonal = make(seed, size), positive_diagonal(seed, size)
    shifted = system.matrix + 1.5 * np.abs(system.eigenvalues).max() * np.eye(size)
    inner = np.linalg.solve(shifted, system.rhs)
    radius = factor * float(np.sqrt(inner @ (diagonal * inner)))
    one, other = (solve(system, diagonal, radius=radius) for solve in (eager, compiled))
    assert int(one.outcome) == int(other.outcome)
    np.testing.assert_allclose(one.solution, other.solution, rtol=1e-6, atol=1e-9 * radius)
    assert one.model_value == pytest.approx(model(system, one.solution), rel=1e-6)
    for found in (one, other):
        x = np.asarray(found.solution)
        assert np.sqrt(x @ (diagonal * x)) == pytest.approx(radius, rel=1e-6)
        assert float(found.length) == pytest.approx(radius, rel=1e-12)


@pytest.mark.parametrize("solve", [eager, compiled])
def test_what_is_not_finite_and_what_is_zero_is_reported(solve):
    system, diagonal = positive_system(3, 5, 10.0), np.ones(5)
    broken = system._replace(matrix=system.matrix * np.nan)
    assert int(solve(broken, diagonal).outcome) == CGOutcome.NON_FINITE
    broken = system._replace(rhs=system.rhs * np.nan)
    assert int(solve(broken, diagonal).outcome) == CGOutcome.NON_FINITE
    nothing = solve(system._replace(rhs=np.zeros(5)), diagonal)
    assert int(nothing.outcome) == CGOutcome.CONVERGED
    assert not np.asarray(nothing.solution).any()
    assert int(solve(system, diagonal, max_steps=1).outcome) == CGOutcome.MAX_STEPS
    indefinite = solve(indefinite_system(3, 5), diagonal)
    assert int(indefinite.outcome) == CGOutcome.NEGATIVE_CURVATURE


def test_refinement_reaches_what_products_in_single_precision_allow():
    """Products of float32 in the loop of float64: the true residual decides, not the recursion."""
    system = positive_system(7, 12, 1e4)
    single = system.matrix.astype(np.float32)

    def products(vector):
        image = (single @ vector.astype(np.float32)).astype(np.float64)
        return image, image

    found = eager_conjugate_gradient(
        products, system.rhs, system.rhs, eps=1.2e-7,
        relative_tolerance=1e-3, max_steps=500, verify=True,
    )  # fmt: skip
    assert found.outcome == CGOutcome.CONVERGED
    residual = system.rhs - products(found.solution)[0]
    assert np.linalg.norm(residual) <= 1e-3 * np.linalg.norm(system.rhs)
