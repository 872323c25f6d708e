"""Conjugate gradients on the host are those of the compiled iteration."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi.linalg import CGOutcome, FunctionMetric, conjugate_gradient
from curvi.linalg._cg import eager_conjugate_gradient

pytestmark = pytest.mark.float64_only
SIZE = 6


def system(key, *, definite=True):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))
    basis, _ = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))
    eigenvalues = np.geomspace(0.1, 10.0, SIZE)
    if not definite:
        eigenvalues[0] = -1.0
    matrix = (basis * eigenvalues) @ basis.T
    return matrix, rng.uniform(0.5, 2.0, size=SIZE), rng.normal(size=SIZE)


def on_host(matrix, metric, rhs, **options):
    def product(p):
        return matrix @ p, matrix @ p / metric

    options = {"relative_tolerance": 1e-10, "max_steps": 200, **options}
    return eager_conjugate_gradient(product, rhs, rhs / metric, eps=2e-16, **options)


def test_a_definite_system_is_solved(key):
    matrix, metric, rhs = system(key)
    found = on_host(matrix, metric, rhs, radius=np.inf)
    assert found.outcome == CGOutcome.CONVERGED
    exact = np.linalg.solve(matrix, rhs)
    np.testing.assert_allclose(found.solution, exact, rtol=0, atol=1e-7 * np.abs(exact).max())
    np.testing.assert_allclose(found.model_value, -0.5 * rhs @ exact, rtol=1e-8)
    length = np.sqrt(found.solution @ (metric * found.solution))
    np.testing.assert_allclose(found.length, length, rtol=1e-6)


@pytest.mark.parametrize("definite", [True, False])
def test_a_trust_region_ends_both_iterations_at_the_same_point(key, definite):
    matrix, metric, rhs = system(key, definite=definite)
    newton = np.linalg.solve(matrix, rhs)
    radius = 0.5 * float(np.sqrt(newton @ (metric * newton)))
    host = on_host(matrix, metric, rhs, radius=radius)
    compiled = conjugate_gradient(
        lambda v: jnp.asarray(matrix) @ v,
        jnp.asarray(rhs),
        preconditioner=FunctionMetric(lambda v: metric * v, lambda v: v / metric),
        natural_norm=True,
        relative_tolerance=1e-10,
        radius=radius,
    )
    assert int(host.outcome) == int(compiled.outcome)
    np.testing.assert_allclose(host.solution, compiled.solution, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(host.model_value, compiled.model_value, rtol=1e-6)
    length = np.sqrt(host.solution @ (metric * host.solution))
    np.testing.assert_allclose(length, radius, rtol=1e-6)


def test_what_is_not_finite_and_what_is_zero_is_said(key):
    matrix, metric, rhs = system(key)
    assert on_host(matrix * np.nan, metric, rhs).outcome == CGOutcome.NON_FINITE
    assert on_host(matrix, metric, rhs * np.nan).outcome == CGOutcome.NON_FINITE
    nothing = on_host(matrix, metric, 0 * rhs)
    assert nothing.outcome == CGOutcome.CONVERGED
    assert not nothing.solution.any()
    assert on_host(matrix, metric, rhs, max_steps=1).outcome == CGOutcome.MAX_STEPS
