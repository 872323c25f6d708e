"""Conjugate gradients without a trust region, against dense linear algebra."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curvi._core.errors import InputError
from curvi.linalg import CGOutcome, DenseMap, FunctionMetric, conjugate_gradient
from tests.linalg.systems import (
    dimensions,
    indefinite_system,
    model,
    positive_diagonal,
    positive_system,
    seeds,
    solve,
)


def close(dtype, *, loose=1.0):
    tolerance = (1e-8 if dtype == jnp.float64 else 2e-3) * loose
    return {"rtol": tolerance, "atol": tolerance}


def relative_residual(system, x, dtype):
    """In extended precision, because the rounding of this product is as large as the answer."""
    matrix = np.asarray(system.matrix, dtype).astype(np.longdouble)
    rhs = np.asarray(system.rhs, dtype).astype(np.longdouble)
    residual = rhs - matrix @ np.asarray(x).astype(np.longdouble)
    return float(np.sqrt((residual**2).sum() / (rhs**2).sum()))


@settings(max_examples=50)
@given(seed=seeds, size=st.sampled_from([1, 2, 5, 20, 50]), digits=st.floats(0, 1))
def test_a_positive_system_is_solved_to_the_accuracy_that_the_precision_allows(
    dtype, seed, size, digits
):
    condition = 10 ** (digits * (8 if dtype == jnp.float64 else 3))
    system = positive_system(seed, size, condition)
    result = solve(system, dtype)
    eps = float(jnp.finfo(dtype).eps)
    residual = relative_residual(system, result.solution, dtype)
    # Merely rounding the exact solution leaves a residual of up to eps * condition / 2.
    assert residual <= max(1e-8 if dtype == jnp.float64 else 1e-4, 2 * eps * condition)
    assert not bool(result.negative_curvature)
    outcome = CGOutcome(int(result.outcome))
    assert outcome in (CGOutcome.CONVERGED, CGOutcome.STALLED)

    # numpy has an error of its own, of the order eps * condition.
    exact = np.linalg.solve(
        np.asarray(system.matrix, dtype).astype(float), np.asarray(system.rhs, dtype).astype(float)
    )
    error = np.linalg.norm(np.asarray(result.solution, float) - exact) / np.linalg.norm(exact)
    assert error <= 1.01 * condition * residual + 10 * eps * condition


@pytest.mark.slow
def test_pytrees_are_solved_like_the_flat_vector(dtype, key):
    system = positive_system(3, 8, 20.0)
    flat = jnp.asarray(system.rhs, dtype)
    tree = {"a": flat[:6].reshape(2, 3), "b": (flat[6], flat[7:])}
    operator = DenseMap(jnp.asarray(system.matrix, dtype), tree)
    result = conjugate_gradient(operator, tree)
    assert jax.tree.structure(result.solution) == jax.tree.structure(tree)
    assert jax.tree.structure(result.direction) == jax.tree.structure(tree)
    joined = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(result.solution)])
    np.testing.assert_allclose(joined, np.linalg.solve(system.matrix, system.rhs), **close(dtype))
    assert {leaf.dtype for leaf in jax.tree.leaves(result.solution)} == {dtype}
    assert result.model_value.dtype == dtype


@settings(max_examples=500)
@given(seed=seeds, size=dimensions)
def test_an_indefinite_system_gives_a_descent_direction_and_the_flag(dtype, seed, size):
    system = indefinite_system(seed, size)
    result = solve(system, dtype)
    assert int(result.outcome) == CGOutcome.NEGATIVE_CURVATURE
    assert bool(result.negative_curvature)
    assert system.rhs @ np.asarray(result.solution, float) > 0
    direction = np.asarray(result.direction, float)
    curvature = direction @ system.matrix @ direction / (direction @ direction)
    assert curvature <= 10 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(
        float(result.model_value), model(system, result.solution), **close(dtype, loose=10)
    )


@given(seed=seeds, size=dimensions)
def test_an_indefinite_system_with_any_warm_start_still_gives_descent(dtype, seed, size):
    system = indefinite_system(seed, size)
    start = np.random.default_rng(seed).normal(size=size) * 3
    result = solve(system, dtype, initial=start)
    assert system.rhs @ np.asarray(result.solution, float) > 0


def test_negative_curvature_at_once_gives_the_preconditioned_gradient(dtype):
    system = indefinite_system(0, 1)
    result = solve(system, dtype, diagonal=np.array([4.0]))
    np.testing.assert_allclose(result.solution, system.rhs / 4, rtol=1e-6)
    assert int(result.steps) == 0
    np.testing.assert_allclose(float(result.model_value), model(system, result.solution), rtol=1e-5)


@given(seed=seeds, size=dimensions)
def test_truncation_after_k_steps_gives_the_best_point_of_the_krylov_space(dtype, seed, size):
    system = positive_system(seed, size, 30.0 if size > 1 else 1.0)
    steps = min(3, size)
    basis = np.empty((size, 0))
    vector = system.rhs
    for _ in range(steps):
        vector = vector - basis @ (basis.T @ vector)
        vector = vector - basis @ (basis.T @ vector)
        norm = np.linalg.norm(vector)
        if norm < 1e-6:  # the space is invariant: CG has converged
            break
        basis = np.column_stack([basis, vector / norm])
        vector = system.matrix @ basis[:, -1] / system.eigenvalues[-1]
    projected = basis.T @ system.matrix @ basis
    best = basis @ np.linalg.lstsq(projected, basis.T @ system.rhs, rcond=None)[0]
    result = solve(system, dtype, max_steps=steps)
    found = np.asarray(result.solution, float)
    assert np.linalg.norm(found - best) <= close(dtype)["rtol"] * 10 * np.linalg.norm(best)
    assert int(result.steps) <= steps


@given(seed=seeds, size=dimensions)
def test_a_preconditioner_equals_a_change_of_variables(dtype, seed, size):
    system = positive_system(seed, size, 30.0)
    diagonal = positive_diagonal(seed, size)
    root = np.sqrt(diagonal)
    changed = system._replace(matrix=system.matrix / np.outer(root, root), rhs=system.rhs / root)
    steps = min(3, size)
    one = np.asarray(solve(system, dtype, diagonal=diagonal, max_steps=steps).solution)
    other = np.asarray(solve(changed, dtype, max_steps=steps).solution) / root
    assert np.linalg.norm(one - other) <= close(dtype)["rtol"] * 10 * np.linalg.norm(other)


@given(seed=seeds, exponent=st.integers(-30, 18))
def test_scaling_the_right_hand_side_scales_the_solution(dtype, seed, exponent):
    system = positive_system(seed, 5, 30.0)
    plain = solve(system, dtype)
    scaled = solve(system._replace(rhs=system.rhs * 10.0**exponent), dtype)
    np.testing.assert_allclose(
        np.asarray(scaled.solution, float) / 10.0**exponent / np.abs(plain.solution).max(),
        np.asarray(plain.solution, float) / np.abs(plain.solution).max(),
        **close(dtype),
    )


@jax.jit
def solve_with_inverse(matrix, inverse, rhs):
    metric = FunctionMetric(lambda v: matrix @ v, lambda v: inverse @ v)
    tolerance = 1e-9 if rhs.dtype == jnp.float64 else 1e-3
    return conjugate_gradient(
        lambda v: matrix @ v, rhs, preconditioner=metric, relative_tolerance=tolerance
    )


@given(seed=seeds)
def test_the_exact_inverse_as_preconditioner_converges_in_one_step(dtype, seed):
    system = positive_system(seed, 8, 100.0)
    arrays = (system.matrix, np.linalg.inv(system.matrix), system.rhs)
    result = solve_with_inverse(*(jnp.asarray(array, dtype) for array in arrays))
    assert int(result.steps) == 1
    assert int(result.outcome) == CGOutcome.CONVERGED


@given(seed=seeds, size=dimensions)
def test_a_warm_start_at_the_solution_takes_no_step(dtype, seed, size):
    system = positive_system(seed, size, 5.0)
    exact = np.linalg.solve(system.matrix, system.rhs)
    result = solve(system, dtype, initial=exact)
    assert int(result.steps) == 0
    assert int(result.products) == 1
    assert int(result.outcome) == CGOutcome.CONVERGED
    np.testing.assert_array_equal(result.solution, exact.astype(dtype))


@given(seed=seeds, factor=st.sampled_from([np.nan, np.inf, 0.0, -1e3, 1e6, 0.5]))
def test_a_poor_warm_start_does_no_harm(dtype, seed, factor):
    system = positive_system(seed, 5, 30.0)
    start = factor * np.random.default_rng(seed).normal(size=5)
    exact = np.linalg.solve(system.matrix, system.rhs)
    truncated = solve(system, dtype, initial=start, max_steps=1)
    assert float(truncated.model_value) <= 0
    assert system.rhs @ np.asarray(truncated.solution, float) > 0
    found = np.asarray(solve(system, dtype, initial=start).solution)
    assert np.linalg.norm(found - exact) <= close(dtype)["rtol"] * 10 * np.linalg.norm(exact)


@pytest.mark.parametrize("radius", [None, 1.0])
@pytest.mark.parametrize("initial", [None, np.ones(3)])
def test_a_zero_right_hand_side_gives_zero(dtype, radius, initial):
    for system in (positive_system(1, 3, 10.0), indefinite_system(1, 3)):
        zero = system._replace(rhs=np.zeros(3))
        result = solve(zero, dtype, radius=radius, initial=initial)
        np.testing.assert_array_equal(result.solution, np.zeros(3))
        assert int(result.outcome) == CGOutcome.CONVERGED
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(result))


@pytest.mark.parametrize("radius", [None, 1.0])
def test_a_product_that_is_never_finite_is_reported_and_stays_finite(dtype, radius):
    rhs = jnp.asarray([1.0, -2.0], dtype)
    result = conjugate_gradient(lambda v: v * jnp.nan, rhs, radius=radius)
    assert int(result.outcome) == CGOutcome.NON_FINITE
    assert bool(jnp.isfinite(result.solution).all())
    assert float(result.model_value) == 0
    if radius is None:
        assert float(rhs @ result.solution) > 0


def test_the_best_finite_iterate_survives_a_later_non_finite_product(dtype):
    diagonal = jnp.asarray([1.0, 2.0, 3.0], dtype)
    rhs = jnp.ones(3, dtype)

    def product(v):
        return jnp.where(jnp.ptp(v) < 1e-3, diagonal * v, jnp.inf)

    result = conjugate_gradient(product, rhs)
    assert int(result.outcome) == CGOutcome.NON_FINITE
    assert int(result.steps) == 1
    np.testing.assert_allclose(result.solution, rhs * 3 / 6, rtol=1e-6)


def test_a_right_hand_side_that_is_not_finite_is_reported(dtype):
    result = conjugate_gradient(lambda v: v, jnp.asarray([1.0, jnp.nan], dtype))
    assert int(result.outcome) == CGOutcome.NON_FINITE
    np.testing.assert_array_equal(result.solution, np.zeros(2))


def test_a_preconditioner_that_is_not_positive_is_left_out(dtype):
    metric = FunctionMetric(lambda v: -v, lambda v: -v)
    result = conjugate_gradient(lambda v: v, jnp.ones(2, dtype), preconditioner=metric)
    assert int(result.outcome) == CGOutcome.STALLED
    np.testing.assert_array_equal(result.solution, np.ones(2))


@pytest.mark.slow
@given(seed=seeds)
def test_with_a_map_that_is_not_quite_symmetric_more_steps_never_make_the_model_worse(dtype, seed):
    system = positive_system(seed, 8, 1e3)
    noise = np.random.default_rng(seed).normal(size=(8, 8)) * system.eigenvalues[-1]
    system = system._replace(matrix=system.matrix + 0.01 * noise)
    values = [float(solve(system, dtype, max_steps=k).model_value) for k in (1, 2, 4, 8, 16, 32)]
    slack = float(jnp.finfo(dtype).eps) ** 0.5
    for before, after in itertools.pairwise(values):
        assert after <= before + 10 * slack * abs(before)


@pytest.mark.float64_only
@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-4])
def test_the_progress_test_stops_where_martens_formula_says(dtype, tolerance):
    # Evenly spaced eigenvalues: no Ritz value converges early, so rounding does not grow.
    size = 2000
    spectrum = np.linspace(1, 1e4, size)
    rhs = np.ones(size)
    x, r, p, models = np.zeros(size), rhs, rhs, [0.0]
    while True:
        alpha = r @ r / (p @ (spectrum * p))
        x, fresh = x + alpha * p, r - alpha * (spectrum * p)
        p, r = fresh + (fresh @ fresh) / (r @ r) * p, fresh
        models.append(-0.5 * x @ (rhs + r))
        k = len(models) - 1
        window = max(10, k // 10)
        if k > window and (models[k] - models[k - window]) / models[k] < window * tolerance:
            break
    result = conjugate_gradient(
        lambda v: jnp.asarray(spectrum) * v, jnp.asarray(rhs), progress_tolerance=tolerance
    )
    assert int(result.outcome) == CGOutcome.PROGRESS
    assert int(result.steps) == k
    np.testing.assert_allclose(float(result.model_value), models[-1], rtol=1e-8)


@jax.jit
def solve_batch(matrix, batch):
    return jax.vmap(lambda rhs: conjugate_gradient(lambda v: matrix @ v, rhs))(batch)


@pytest.mark.slow
@given(seed=seeds)
def test_a_batch_of_right_hand_sides_equals_a_loop(dtype, seed):
    system = positive_system(seed, 5, 100.0)
    batch = np.random.default_rng(seed).normal(size=(4, 5))
    batch[2] = 0.0
    together = solve_batch(jnp.asarray(system.matrix, dtype), jnp.asarray(batch, dtype))
    for row, rhs in enumerate(batch):
        alone = solve(system._replace(rhs=rhs), dtype)
        scale = max(np.abs(alone.solution).max(), 1e-30)
        np.testing.assert_allclose(
            together.solution[row] / scale, alone.solution / scale, **close(dtype)
        )


def test_every_outcome_has_a_sentence():
    for outcome in CGOutcome:
        assert outcome.sentence.endswith(".")


def test_products_count_every_call_of_the_operator(dtype):
    calls = []

    def product(v):
        jax.debug.callback(lambda _: calls.append(1), v[0])
        return jnp.asarray([1.0, 3.0, 9.0], dtype) * v

    result = conjugate_gradient(product, jnp.ones(3, dtype), initial=jnp.ones(3, dtype))
    jax.effects_barrier()
    assert int(result.products) == len(calls)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, "max_steps is 0"),
        ({"relative_tolerance": 1.5}, "relative_tolerance is 1.5"),
        ({"radius": 0.0}, "radius is 0.0"),
        ({"num_coefficients": -1}, "num_coefficients is -1"),
        ({"initial": np.zeros(3)}, "initial leaf 0"),
        ({"initial": [np.zeros(2)]}, "initial has structure"),
    ],
)
def test_an_option_out_of_range_is_refused(dtype, options, message):
    with pytest.raises(InputError, match=message):
        conjugate_gradient(lambda v: v, jnp.ones(2, dtype), **options)


def test_a_right_hand_side_without_one_float_dtype_is_refused():
    with pytest.raises(InputError, match="int32"):
        conjugate_gradient(lambda v: v, jnp.ones(2, jnp.int32))
    with pytest.raises(InputError, match="no leaf"):
        conjugate_gradient(lambda v: v, {})
    mixed = (jnp.ones(1, jnp.float32), jnp.ones(1, jnp.float16))
    with pytest.raises(InputError, match="float16, float32"):
        conjugate_gradient(lambda v: v, mixed)


@settings(max_examples=25)
@given(seed=seeds)
@pytest.mark.float64_only
def test_the_iterate_of_least_residual_can_be_kept(dtype, seed):
    """On a system so ill conditioned that residuals rise on the way to the solution."""
    system = positive_system(seed, 12, 1e4)
    iterates = [solve(system, dtype, max_steps=k, verify=False).solution for k in range(1, 7)]
    residuals = [np.linalg.norm(system.rhs - system.matrix @ np.asarray(x)) for x in iterates]
    kept = solve(system, dtype, max_steps=6, verify=False, keep="least_residual")
    best = int(np.argmin(residuals))
    if residuals[best] < np.linalg.norm(system.rhs):
        np.testing.assert_allclose(kept.solution, iterates[best], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(
            kept.residual_norm, residuals[best] / np.linalg.norm(system.rhs), rtol=1e-6
        )
    else:
        np.testing.assert_array_equal(kept.solution, 0)


def test_an_unknown_rule_for_the_iterate_is_refused(dtype):
    with pytest.raises(InputError, match="keep is 'last'; choose one of 'lowest_model'"):
        conjugate_gradient(lambda v: v, jnp.ones(2, dtype), keep="last")
