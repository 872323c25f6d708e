"""One step of Algorithm 1 against dense linear algebra in (mu, R)."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import curvi
from curvi._core.errors import InputError
from curvi.engine import ObjectiveProblem, Resources
from curvi.families import Params
from curvi.linalg import conjugate_gradient
from curvi.vae import MLPObjective, initial_params
from tests.solvers.problems import generator, linear, variational

SHARED = curvi.Draws("iid", 64, fresh=True)
PER_ROW = curvi.Draws("iid", 8, fresh=True, per_row=True)
MEAN_FIELD, FULL_RANK = curvi.MeanField(), curvi.FullRank()
STEP = jnp.asarray(3, jnp.int32)


def raw_of(params):
    """(mu, R) by hand: R is diagonal or lower triangular, its diagonal is stored as logs."""
    if params.scale_params.ndim == 1:
        return Params(params.mean, jnp.exp(params.scale_params))
    diagonal = jnp.diag(jnp.exp(jnp.diag(params.scale_params)))
    return Params(params.mean, jnp.tril(params.scale_params, -1) + diagonal)


def from_raw(raw):
    if raw.scale_params.ndim == 1:
        return Params(raw.mean, jnp.log(jnp.abs(raw.scale_params)))
    diagonal = jnp.diag(jnp.log(jnp.abs(jnp.diag(raw.scale_params))))
    return Params(raw.mean, jnp.tril(raw.scale_params, -1) + diagonal)


@jax.jit
def dense(problem, params, resources):
    """Flat (mu, R), gradient and Hessian on the sample of the step."""
    sample = problem.sample(resources, STEP)
    flat, unravel = ravel_pytree(raw_of(params))

    def value(flat):
        return problem.value(from_raw(unravel(flat)), sample)

    return flat, jax.grad(value)(flat), jax.hessian(value)(flat)


@partial(jax.jit, static_argnums=0)
def step_of(method, problem, params, resources):
    """Flat (mu, R) after one step, and what the step reports."""
    state = method.init(problem, params, resources)
    moved, info = method.step(problem, state, resources, STEP, jnp.zeros(()))
    return ravel_pytree(raw_of(moved.params))[0], info


def one_step(method, family, plan, key, dtype):
    """The step that the method takes, and the dense gradient and Hessian it should be made of."""
    target = linear(generator(key)).target(dtype, start=[0.3, 0.1, -0.2])
    problem, resources, params = variational(target, family, plan, key, batch_size=6)
    moved, info = step_of(method, problem, params, resources)
    flat, gradient, hessian = (np.asarray(item) for item in dense(problem, params, resources))
    return np.asarray(moved) - flat, gradient, hessian, flat, info


def magnitude_of_scale(vector, family):
    """A column of R with a negative diagonal entry is turned: that does not change q."""
    mean, scale = vector[:3], vector[3:]
    if family == MEAN_FIELD:
        return np.concatenate([mean, np.abs(scale)])
    scale = scale.reshape(3, 3)
    return np.concatenate([mean, (scale * np.sign(np.diag(scale))).ravel()])


@pytest.mark.parametrize(
    ("family", "plan"),
    [
        pytest.param(MEAN_FIELD, SHARED, id="mean-field", marks=pytest.mark.float64_only),
        pytest.param(FULL_RANK, PER_ROW, id="full-rank-per-row"),
    ],
)
def test_with_enough_iterations_a_step_is_the_dense_newton_step(family, plan, key, dtype):
    taken, gradient, hessian, flat, info = one_step(
        curvi.HFSGVI(cg_steps=60), family, plan, key, dtype
    )
    used = np.abs(np.diag(hessian)) > 0  # the upper triangle of R is not a parameter
    newton = np.zeros_like(flat)
    newton[used] = np.linalg.solve(hessian[np.ix_(used, used)], -gradient[used])
    expected = magnitude_of_scale(flat + newton, family) - flat
    tolerance = 1e-6 if dtype == jnp.float64 else 2e-2
    np.testing.assert_allclose(taken, expected, atol=tolerance * np.abs(expected).max())
    # The sampled bound of a log-concave target is concave in (mu, R).
    assert np.linalg.eigvalsh(hessian[np.ix_(used, used)]).min() > 0
    assert not bool(info.negative_curvature)
    np.testing.assert_allclose(
        float(info.gain), -0.5 * gradient @ newton, rtol=1e-6 if dtype == jnp.float64 else 1e-2
    )


@pytest.mark.float64_only
def test_one_iteration_is_steepest_descent_with_the_best_length(key, dtype):
    taken, gradient, hessian, flat, info = one_step(
        curvi.HFSGVI(cg_steps=1), MEAN_FIELD, SHARED, key, dtype
    )
    step = -(gradient @ gradient) / (gradient @ hessian @ gradient) * gradient
    expected = magnitude_of_scale(flat + step, MEAN_FIELD) - flat
    np.testing.assert_allclose(taken, expected, rtol=1e-8, atol=1e-10)
    assert int(info.cg_steps) == 1


@pytest.mark.float64_only
def test_the_preconditioner_does_not_change_the_exact_step(key, dtype):
    plain, *_ = one_step(curvi.HFSGVI(cg_steps=60), MEAN_FIELD, SHARED, key, dtype)
    method = curvi.HFSGVI(cg_steps=60, preconditioner="diagonal")
    taken, *_ = one_step(method, MEAN_FIELD, SHARED, key, dtype)
    np.testing.assert_allclose(taken, plain, atol=1e-6 * np.abs(plain).max())


@pytest.mark.float64_only
def test_steps_can_be_taken_in_the_logarithms_of_the_scale(key, dtype):
    target = linear(generator(key)).target(dtype, start=[0.3, 0.1, -0.2])
    problem, resources, params = variational(target, MEAN_FIELD, SHARED, key, batch_size=6)
    method = curvi.HFSGVI(cg_steps=60, parameters="log_scale")
    moved, _ = step_of(method, problem, params, resources)
    flat, unravel = ravel_pytree(params)

    def value(point):
        return problem.value(unravel(point), problem.sample(resources, STEP))

    gradient, hessian = jax.jit(lambda point: (jax.grad(value)(point), jax.hessian(value)(point)))(
        flat
    )
    if np.linalg.eigvalsh(hessian).min() <= 0:
        pytest.skip("not convex in the logarithms on these draws")
    newton = np.linalg.solve(hessian, -gradient)
    logs = jnp.log(moved[3:])
    taken = jnp.concatenate([moved[:3], logs]) - flat
    np.testing.assert_allclose(taken, newton, atol=1e-6 * np.abs(newton).max())


@pytest.mark.float64_only
def test_options_that_are_none_are_refused():
    with pytest.raises(InputError, match="curvature is 'fisher'; choose one of 'exact'"):
        curvi.HFSGVI(curvature="fisher")
    with pytest.raises(InputError, match="parameters is 'log'; choose one of 'scale'"):
        curvi.HFSGVI(parameters="log")
    with pytest.raises(InputError, match="keep is 'last'; choose one of 'lowest_model'"):
        curvi.HFSGVI(keep="last")
    with pytest.raises(InputError, match="preconditioner is 'jacobi'; choose None or 'diagonal'"):
        curvi.HFSGVI(preconditioner="jacobi")
    with pytest.raises(InputError, match="cg_steps is 0; it must be a positive integer"):
        curvi.HFSGVI(cg_steps=0)


def auto_encoder_step(method, key):
    """A step from the paper's first weights, N(0, 0.01^2) and zero biases, with what it sees."""
    rng = generator(key)
    params = initial_params(rng, inputs=4, hidden=(3,), latent=1, scale=0.01, dtype=np.float64)
    rows = jnp.asarray(rng.random((20, 4)))
    objective = MLPObjective(decoder_l2=1e-3)
    problem = ObjectiveProblem(objective, None, fixed_key=False)
    resources, zero = Resources(key, rows, None), jnp.asarray(0, jnp.int32)
    state = method.init(problem, params, resources)
    after, info = jax.jit(lambda s: method.step(problem, s, resources, zero, jnp.asarray(0.0)))(
        state
    )
    return objective, params, problem.sample(resources, zero), after.params, info


@pytest.mark.float64_only
def test_a_step_with_the_gauss_newton_matrix_solves_with_its_dense_form(key):
    method = curvi.HFSGVI(cg_steps=500, curvature="gauss_newton")
    objective, params, sample, after, info = auto_encoder_step(method, key)

    @jax.jit
    def seen(params):
        _, gradient, operator = objective.gauss_newton(params, *sample)
        return operator.dense(), ravel_pytree(gradient)[0]

    dense, slope = map(np.asarray, seen(params))
    assert np.linalg.eigvalsh(dense).min() > -1e-10
    taken = np.asarray(ravel_pytree(after)[0] - ravel_pytree(params)[0])
    np.testing.assert_allclose(dense @ taken, -slope, atol=1e-5 * np.abs(slope).max())
    assert not bool(info.negative_curvature)


@pytest.mark.float64_only
def test_the_gauss_newton_matrix_needs_an_objective_that_has_one(key, dtype):
    method = curvi.HFSGVI(curvature="gauss_newton")
    with pytest.raises(InputError, match="does not say where its loss begins"):
        one_step(method, MEAN_FIELD, SHARED, key, dtype)


@pytest.mark.float64_only
@pytest.mark.slow
def test_a_step_on_an_auto_encoder_is_ten_iterations_on_its_dense_hessian(key):
    """Full step, no damping."""
    method = curvi.HFSGVI(cg_steps=10)
    objective, params, (batch, draws), after, info = auto_encoder_step(method, key)
    flat, unravel = ravel_pytree(params)
    dense = jax.jit(jax.hessian(lambda p: objective(unravel(p), batch, draws)))(flat)
    gradient = jax.grad(lambda p: objective(unravel(p), batch, draws))(flat)
    solved = conjugate_gradient(lambda v: dense @ v, -gradient, max_steps=10)
    np.testing.assert_allclose(ravel_pytree(after)[0] - flat, solved.solution, rtol=1e-5, atol=1e-9)
    assert int(info.cg_steps) == int(solved.steps)
