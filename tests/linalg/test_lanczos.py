"""The condition number from CG coefficients, and the error that it allows."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curvi._core.errors import InputError
from curvi.linalg import (
    condition_estimate,
    conjugate_gradient,
    lanczos_tridiagonal,
    relative_error_bound,
)
from tests.linalg.systems import (
    dimensions,
    make_system,
    positive_diagonal,
    positive_system,
    seeds,
    solve,
)


def spread_system(seed, size, condition):
    """Eigenvalues apart from each other, so that D steps see all of them."""
    generator = np.random.default_rng(seed)
    return make_system(generator, np.linspace(1.0, condition, size))


def slack(dtype):
    return 1e-6 if dtype == jnp.float64 else 1e-2


@given(seed=seeds, size=dimensions, count=st.sampled_from([1, 2, 20]))
def test_the_estimate_is_a_lower_bound(dtype, seed, size, count):
    condition = 30.0 if size > 1 else 1.0
    system = positive_system(seed, size, condition)
    result = solve(system, dtype, num_coefficients=20)
    result = result._replace(alphas=result.alphas[:count], betas=result.betas[:count])
    estimate = float(condition_estimate(result))
    assert 1 - slack(dtype) <= estimate <= condition * (1 + slack(dtype))


@pytest.mark.slow
@given(seed=seeds, size=dimensions)
def test_the_estimate_is_close_after_as_many_steps_as_dimensions(dtype, seed, size):
    condition = 30.0 if size > 1 else 1.0
    system = spread_system(seed, size, condition)
    result = solve(system, dtype, num_coefficients=20, max_steps=size)
    np.testing.assert_allclose(float(condition_estimate(result)), condition, rtol=0.05)


@given(seed=seeds)
def test_with_a_preconditioner_the_estimate_is_of_the_preconditioned_operator(dtype, seed):
    system = spread_system(seed, 5, 10.0)
    diagonal = positive_diagonal(seed, 5)
    root = np.sqrt(diagonal)
    spectrum = np.linalg.eigvalsh(system.matrix / np.outer(root, root))
    result = solve(system, dtype, diagonal=diagonal, num_coefficients=5)
    estimate = float(condition_estimate(result))
    assert estimate <= spectrum[-1] / spectrum[0] * (1 + slack(dtype))
    ritz = np.linalg.eigvalsh(np.asarray(lanczos_tridiagonal(result), float))
    assert ritz[0] >= spectrum[0] * (1 - slack(dtype))
    assert ritz[-1] <= spectrum[-1] * (1 + slack(dtype))


def test_without_a_step_the_estimate_is_one(dtype):
    result = conjugate_gradient(lambda v: v, jnp.zeros(3, dtype), num_coefficients=4)
    assert float(condition_estimate(result)) == 1


def test_an_estimate_without_coefficients_is_refused(dtype):
    result = conjugate_gradient(lambda v: v, jnp.ones(3, dtype))
    with pytest.raises(InputError, match="num_coefficients"):
        condition_estimate(result)


@given(seed=seeds, size=dimensions, steps=st.sampled_from([1, 2, 3]))
def test_the_error_in_the_energy_norm_obeys_the_bound(dtype, seed, size, steps):
    condition = 100.0 if size > 1 else 1.0
    system = positive_system(seed, size, condition)
    result = solve(system, dtype, max_steps=steps)
    exact = np.linalg.solve(system.matrix, system.rhs)
    error = np.asarray(result.solution, float) - exact
    relative = np.sqrt(error @ system.matrix @ error / (exact @ system.matrix @ exact))
    rounding = 1e-9 if dtype == jnp.float64 else 1e-3
    sharp = float(relative_error_bound(condition, steps, chebyshev=True))
    assert relative <= sharp + rounding
    assert sharp <= float(relative_error_bound(condition, steps)) + 1e-6


def test_the_bound_without_the_factor_two_is_false():
    """The appendix of the paper prints exp(-2K/sqrt(c)); one step on two eigenvalues exceeds it."""
    condition = 100.0
    # The worst right-hand side after one step: equal energy error along both eigenvectors.
    matrix, exact = np.diag([1.0, condition]), np.array([1.0, 1.0 / condition])
    rhs = matrix @ exact
    x = (rhs @ rhs) / (rhs @ matrix @ rhs) * rhs
    error = x - exact
    relative = np.sqrt(error @ matrix @ error / (exact @ matrix @ exact))
    assert relative > np.exp(-2 / np.sqrt(condition))
    assert relative <= float(relative_error_bound(condition, 1))


@pytest.mark.parametrize("chebyshev", [False, True])
def test_the_bound_is_at_most_one_and_falls_with_steps(chebyshev):
    steps = jnp.arange(0, 50)
    bound = np.asarray(relative_error_bound(25, steps, chebyshev=chebyshev))
    assert bound[0] == 1
    assert (np.diff(bound) <= 0).all()
    assert bound[-1] < 1e-5
