"""L-BFGS on quadratics, and its line search in front of walls."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curvi
from curvi.solvers._lbfgs import line_search
from tests.linalg.systems import positive_system, seeds

ARMIJO, CURVATURE = 1e-4, 0.9


def quadratic(params, batch, key):
    x = jnp.concatenate([params["a"], params["b"]])
    return 0.5 * x @ batch["matrix"] @ x - batch["rhs"] @ x


@settings(max_examples=10)
@given(seed=seeds)
def test_a_quadratic_with_no_more_dimensions_than_pairs_is_solved(dtype, seed):
    system = positive_system(seed, 4, 30.0)
    scale = np.abs(system.eigenvalues).max()
    data = {
        "matrix": jnp.asarray(system.matrix / scale, dtype),
        "rhs": jnp.asarray(system.rhs, dtype),
    }
    start = {"a": jnp.zeros(1, dtype), "b": jnp.zeros(3, dtype)}
    result = curvi.minimise(quadratic, start, method=curvi.LBFGS(5), data=data, fixed_key=True)
    assert result.converged
    assert len(result.trace["step"]) <= 40
    x = np.concatenate([np.asarray(result.params[name], float) for name in "ab"])
    best = np.linalg.solve(system.matrix / scale, system.rhs)
    left = 0.5 * (x - best) @ (system.matrix / scale) @ (x - best)
    assert left < (1e-6 if dtype == jnp.float64 else 1e-3)


def saddle(params, batch, key):
    return params[0] ** 4 / 4 - params[0] ** 2 / 2 + params[1] ** 2 / 2


def minimise_saddle(start, dtype):
    return curvi.minimise(
        saddle, jnp.asarray(start, dtype), method=curvi.LBFGS(), fixed_key=True, max_steps=60
    )


def test_a_run_that_starts_at_the_optimum_ends_there_at_once(dtype):
    result = minimise_saddle([1.0, 0.0], dtype)
    assert result.converged
    assert len(result.trace["step"]) == 1
    np.testing.assert_array_equal(result.params, [1, 0])


def test_a_run_that_starts_next_to_a_saddle_is_not_declared_converged_there(dtype):
    result = minimise_saddle([1e-9, 1.0], dtype)
    assert result.converged
    np.testing.assert_allclose(result.params, [1, 0], atol=1e-2)


@functools.cache
def search(wall_value):
    """phi(t) = (t - best)^2 scaled, but another value beyond the wall."""

    @jax.jit
    def run(best, wall, first):
        def phi(t):
            return jnp.where(t < wall, 1 + (t - best) ** 2, wall_value)

        evaluate = jax.value_and_grad(phi)
        zero = jnp.zeros_like(best)
        value, slope = evaluate(zero)
        found = line_search(evaluate, zero, jnp.ones_like(best), value, slope, first, 60)
        return value, slope, found, evaluate(found.length)

    return run


@pytest.mark.parametrize("wall_value", [np.inf, np.nan, 1e30], ids=str)
@settings(max_examples=20)
@given(
    best=st.floats(0.01, 100), distance=st.floats(0.05, 10), first=st.sampled_from([1e-4, 1.0, 1e4])
)
def test_the_line_search_finds_a_weak_wolfe_point_before_a_wall(
    dtype, wall_value, best, distance, first
):
    wall = best * (1 + distance)
    numbers = (jnp.asarray(number, dtype) for number in (best, wall, first))
    value, slope, found, (end_value, end_slope) = search(wall_value)(*numbers)
    assert bool(found.success)
    assert int(found.trials) < 60
    rounding = 20 * float(jnp.finfo(dtype).eps) * float(value)
    assert float(end_value) <= float(value + ARMIJO * found.length * slope) + rounding
    # In the precision of the search itself: the two sides may be equal up to its rounding.
    assert bool(end_slope >= CURVATURE * slope)
    # The same function, compiled in two places: equal but for the last bits of its precision.
    same = functools.partial(np.testing.assert_allclose, rtol=4 * float(jnp.finfo(dtype).eps))
    same(found.gradient, end_slope, atol=rounding)
    same(found.value, end_value)


@pytest.mark.parametrize("wall_value", [np.inf, np.nan], ids=str)
def test_a_wall_before_the_minimum_is_approached_but_not_crossed(dtype, wall_value):
    """It is steep everywhere before it: the trials run out."""
    numbers = (jnp.asarray(number, dtype) for number in (3.0, 0.1, 1.0))
    value, _, found, (end_value, _) = search(wall_value)(*numbers)
    assert bool(found.success)
    assert not bool(found.finite)
    assert 0.09 < float(found.length) < 0.1
    assert float(end_value) < float(value)


def test_a_search_that_sees_nothing_finite_fails_without_moving(dtype):
    numbers = (jnp.asarray(number, dtype) for number in (3.0, 0.0, 1.0))
    _, _, found, _ = search(np.nan)(*numbers)
    assert not bool(found.success)
    assert not bool(found.finite)
    assert float(found.length) == 0
