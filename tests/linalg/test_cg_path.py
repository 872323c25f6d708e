"""The iterates that conjugate gradients keep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi.linalg import DiagonalMetric, conjugate_gradient, conjugate_gradient_path


def system_of(key, size=12):
    keys = jax.random.split(key, 3)
    root = jax.random.normal(keys[0], (size, size))
    matrix = root @ root.T + 0.1 * jnp.eye(size)
    return matrix, jax.random.normal(keys[1], (size,)), 0.5 + jax.random.uniform(keys[2], (size,))


@pytest.mark.float64_only
@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_entries_are_the_iterates_after_1_3_7_steps_and_the_last(key, warm):
    matrix, rhs, weights = system_of(key)
    metric = DiagonalMetric(weights)
    initial = 0.1 * rhs if warm else None
    path = conjugate_gradient_path(
        lambda v: matrix @ v, rhs, preconditioner=metric, initial=initial, max_steps=9,
        relative_tolerance=1e-12,
    )  # fmt: skip
    for entry, steps in ((1, 1), (2, 3), (3, 7), (4, 9)):
        reference = conjugate_gradient(
            lambda v: matrix @ v, rhs, preconditioner=metric, initial=initial, max_steps=steps,
            relative_tolerance=1e-12, natural_norm=True, verify=False,
        )  # fmt: skip
        np.testing.assert_allclose(path.iterates[entry], reference.solution, rtol=1e-8)
    models = 0.5 * jnp.einsum("ki,ij,kj->k", path.iterates, matrix, path.iterates)
    np.testing.assert_allclose(path.models, models - path.iterates @ rhs, rtol=1e-6, atol=1e-9)
    assert bool(path.used.all())
    assert int(path.steps) == 9
    assert bool(jnp.any(path.iterates[0] != 0)) == warm


def test_a_short_path_leaves_entries_unused(key, dtype):
    matrix, rhs, _ = system_of(key)
    path = jax.jit(
        lambda most: conjugate_gradient_path(
            lambda v: matrix.astype(dtype) @ v, rhs.astype(dtype), max_steps=most
        )
    )(jnp.asarray(2, jnp.int32))  # the cap may be computed
    assert path.used.tolist() == [True, True, True, False, False]
    assert path.iterates.dtype == dtype


@pytest.mark.float64_only
def test_where_the_first_direction_has_no_curvature_the_way_is_steepest_descent(key):
    _, rhs, weights = system_of(key)
    path = conjugate_gradient_path(
        lambda v: -v, rhs, preconditioner=DiagonalMetric(weights), max_steps=5
    )
    assert bool(path.negative_curvature)
    np.testing.assert_allclose(path.iterates[1], rhs / weights, rtol=1e-12)
    assert path.used.tolist() == [True, True, False, False, False]
