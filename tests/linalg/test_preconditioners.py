"""Metrics for conjugate gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from curvi._core.errors import InputError
from curvi.linalg import (
    CGOutcome,
    DenseMap,
    DiagonalMetric,
    FunctionMetric,
    Identity,
    conjugate_gradient,
    hutchinson_diagonal,
    martens_diagonal,
    projected,
)
from tests.linalg.systems import positive_diagonal, positive_system, seeds


@given(seed=seeds)
def test_solve_undoes_apply_and_two_square_roots_make_a_solve(dtype, seed):
    entries = positive_diagonal(seed, 5)
    tree = {"a": jnp.asarray(entries[:3], dtype), "b": jnp.asarray(entries[3:], dtype)}
    vector = jax.tree.map(jnp.cos, tree)
    for metric in (Identity(), DiagonalMetric(tree)):
        back = metric.solve(metric.apply(vector))
        twice = metric.solve_sqrt(metric.solve_sqrt(vector))
        for found, expected in ((back, vector), (twice, metric.solve(vector))):
            for name in tree:
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)


def test_entries_that_are_not_positive_are_raised_to_the_floor(dtype):
    eps = float(jnp.finfo(dtype).eps)
    metric = DiagonalMetric(jnp.asarray([4.0, 0.0, -8.0], dtype))
    np.testing.assert_allclose(metric.entries, [4.0, 8 * eps, 8 * eps], rtol=1e-6)
    np.testing.assert_array_equal(DiagonalMetric(jnp.zeros(2, dtype)).entries, np.ones(2))


def test_a_diagonal_that_is_not_finite_is_reported_by_the_solver(dtype):
    metric = DiagonalMetric(jnp.asarray([1.0, jnp.nan], dtype))
    result = conjugate_gradient(lambda v: v, jnp.ones(2, dtype), preconditioner=metric)
    assert int(result.outcome) == CGOutcome.NON_FINITE
    assert bool(jnp.isfinite(result.solution).all())


def test_a_diagonal_crosses_jit_as_a_pytree(dtype):
    metric = jax.jit(DiagonalMetric)(jnp.asarray([1.0, 2.0], dtype))
    assert isinstance(metric, DiagonalMetric)
    np.testing.assert_array_equal(metric.apply(jnp.ones(2, dtype)), [1.0, 2.0])


@jax.jit
def estimate_diagonal(entries, key):
    operator = DenseMap(jnp.diag(entries), {"a": entries[:1], "b": entries[1:]})
    return hutchinson_diagonal(operator, key, 1)


@given(seed=seeds)
def test_one_probe_is_exact_for_a_diagonal_matrix(dtype, seed):
    entries = jnp.asarray(positive_diagonal(seed, 4), dtype)
    found = estimate_diagonal(entries, jax.random.key(seed))
    np.testing.assert_allclose(jnp.concatenate([found["a"], found["b"]]), entries, rtol=1e-6)


def test_the_hutchinson_estimate_is_within_its_standard_error(dtype, key):
    system = positive_system(0, 6, 10.0)
    operator = DenseMap(jnp.asarray(system.matrix, dtype), jnp.zeros(6, dtype))
    probes = 4000
    found = jax.jit(lambda k: hutchinson_diagonal(operator, k, probes))(key)
    off_diagonal = system.matrix - np.diag(np.diag(system.matrix))
    error = np.sqrt((off_diagonal**2).sum(1) / probes)
    # Seven standard errors: one seed in 10^11 fails.
    assert (np.abs(np.asarray(found) - np.diag(system.matrix)) <= 7 * error).all()


def test_martens_preconditioner_is_the_damped_power(dtype):
    squares = {"w": jnp.asarray([0.0, 3.0, 8.0], dtype)}
    metric = martens_diagonal(squares, 1.0, exponent=0.5)
    np.testing.assert_allclose(metric.diagonal["w"], [1.0, 2.0, 3.0], rtol=1e-6)
    default = martens_diagonal(squares, jnp.asarray(1.0, dtype))
    np.testing.assert_allclose(default.diagonal["w"][1], 4.0**0.75, rtol=1e-6)


def test_a_projected_metric_solves_inside_the_subspace(dtype):
    """Lower triangular matrices: what is above the diagonal never appears."""
    system = positive_system(2, 9, 10.0)
    example = jnp.zeros((3, 3), dtype)
    operator = projected(DenseMap(jnp.asarray(system.matrix, dtype), example), jnp.tril)
    metric = FunctionMetric(lambda v: 2.0 * v, lambda v: v / 2.0, jnp.tril)
    rhs = jnp.tril(jnp.asarray(system.rhs.reshape(3, 3), dtype))
    found = conjugate_gradient(operator, rhs, preconditioner=metric)
    inside = np.flatnonzero(np.tril(np.ones((3, 3))))
    expected = np.zeros(9)
    expected[inside] = np.linalg.solve(
        system.matrix[np.ix_(inside, inside)], np.asarray(rhs, float).ravel()[inside]
    )
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found.solution.ravel() / scale, expected / scale, atol=1e-3)
    np.testing.assert_array_equal(jnp.triu(found.solution, 1), np.zeros((3, 3)))
    np.testing.assert_array_equal(
        metric.apply(jnp.ones((3, 3), dtype)), 2 * np.tril(np.ones((3, 3)))
    )


def test_bad_options_are_refused(dtype):
    operator = DenseMap(jnp.eye(2, dtype=dtype), jnp.zeros(2, dtype))
    with pytest.raises(InputError, match="num_probes is 0"):
        hutchinson_diagonal(operator, jax.random.key(0), 0)
    with pytest.raises(InputError, match="exponent is 2"):
        martens_diagonal(jnp.ones(2, dtype), 1.0, exponent=2.0)
    with pytest.raises(InputError, match="diagonal has dtype int32"):
        DiagonalMetric(jnp.ones(2, jnp.int32)).apply(jnp.ones(2, dtype))
