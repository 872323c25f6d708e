"""DSVI and optax methods against the same steps written out by hand."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import curvi
from curvi._core.errors import InputError
from curvi.solvers._averaging import average_towards
from tests.solvers.problems import PRIOR_SD, generator, linear, variational

PLAN = curvi.Draws("iid", 4, fresh=True)


def set_up(family, key, dtype):
    model = linear(generator(key))
    target = model.target(dtype, start=[0.3, 0.1, -0.2])
    return model, *variational(target, family, PLAN, key)


def close(dtype):
    tolerance = 1e-10 if dtype == jnp.float64 else 2e-4
    return {"rtol": tolerance, "atol": tolerance}


@pytest.mark.parametrize("family", [curvi.MeanField(), curvi.FullRank()], ids=str)
def test_a_step_of_dsvi_is_its_formula(family, key, dtype):
    method = curvi.DSVI(learning_rate=0.01, decay=0.5, decay_steps=3, scale_factor=0.2)
    model, problem, resources, params = set_up(family, key, dtype)
    step = jnp.asarray(7, jnp.int32)
    noise = np.asarray(problem.sample(resources, step).noise, float)

    mean = np.array([0.3, 0.1, -0.2])
    factor = 0.3 * np.eye(3)
    points = mean + noise @ factor.T
    slopes = (model.y - points @ model.x.T) @ model.x - points / PRIOR_SD**2
    rate = 0.01 * 0.5 ** (7 // 3)
    new_mean = mean + rate * slopes.mean(axis=0)
    change = slopes.T @ noise / len(noise) + np.diag(1 / np.diag(factor))
    shape = np.tril(np.ones((3, 3))) if family == curvi.FullRank() else np.eye(3)
    new_factor = factor + 0.2 * rate * change * shape
    signs = np.where(np.diag(new_factor) < 0, -1, 1)
    np.fill_diagonal(new_factor, signs * np.diag(new_factor))

    state = method.init(problem, params, resources)
    moved, _ = jax.jit(partial(method.step, problem))(state, resources, step, jnp.zeros(()))
    raw = family.to_raw(moved.params)
    np.testing.assert_allclose(raw.mean, new_mean, **close(dtype))
    expected = new_factor if family == curvi.FullRank() else np.diag(new_factor)
    np.testing.assert_allclose(raw.scale_params, expected, **close(dtype))


def test_a_negative_diagonal_is_reflected(key, dtype):
    """With a huge rate the entries of R change sign; their magnitude is kept."""
    method = curvi.DSVI(learning_rate=10.0, scale_factor=1.0)
    # Far too wide, on many draws: every gradient of the scale points down for sure.
    plan = curvi.Draws("iid", 256, fresh=True)
    target = linear(generator(key)).target(dtype)
    problem, resources, _ = variational(target, curvi.MeanField(), plan, key)
    params = problem.family.init(target.start, 30.0)
    step = jnp.asarray(0, jnp.int32)

    @jax.jit
    def both(params, resources):
        sample = problem.sample(resources, step)
        raw = problem.to_raw(params)
        gradient = jax.grad(lambda r: problem.value(problem.from_raw(r), sample))(raw)
        state = method.init(problem, params, resources)
        moved, _ = method.step(problem, state, resources, step, jnp.zeros(()))
        return raw.scale_params - 10 * gradient.scale_params, jnp.exp(moved.params.scale_params)

    plain, reflected = both(params, resources)
    assert (plain < 0).all()
    np.testing.assert_allclose(reflected, jnp.abs(plain), rtol=1e-4)


def test_first_order_is_a_plain_optax_loop(key, dtype):
    transformation = optax.chain(optax.trace(0.9), optax.scale(-1e-3))
    method = curvi.FirstOrder(transformation)
    _, problem, resources, start = set_up(curvi.MeanField(), key, dtype)
    step_once = jax.jit(partial(method.step, problem))
    gradient_of = jax.jit(jax.value_and_grad(problem.value))
    state = method.init(problem, start, resources)
    params, inner = start, transformation.init(start)
    for i in range(5):
        step = jnp.asarray(i, jnp.int32)
        state, info = step_once(state, resources, step, jnp.zeros(()))
        value, gradient = gradient_of(params, problem.sample(resources, step))
        updates, inner = transformation.update(gradient, inner, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(float(info.value), float(value), rtol=1e-5)
    for mine, theirs in zip(jax.tree.leaves(state.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(mine, theirs, **close(dtype))


@pytest.mark.float64_only
def test_what_is_no_transformation_or_no_rate_is_refused():
    with pytest.raises(InputError, match=r"takes an optax transformation, such as optax\.adam"):
        curvi.FirstOrder(0.01)
    with pytest.raises(InputError, match="learning_rate is -1; it must be positive"):
        curvi.DSVI(learning_rate=-1)
    with pytest.raises(InputError, match="decay_steps is 0"):
        curvi.DSVI(decay_steps=0)


def test_an_average_over_few_steps_takes_each_of_them(key, dtype):
    """Also after the first hundred, where long averages leave most steps out."""
    places = np.asarray(jax.random.normal(key, (20, 3), dtype))
    average = expected = places[0]
    for count, place in enumerate(places[1:], 101):
        window, step = jnp.asarray(2.0, dtype), jnp.asarray(count, jnp.int32)
        average = average_towards(jnp.asarray(average), jnp.asarray(place), window, step)
        expected = expected + (place - expected) / 3
    np.testing.assert_allclose(average, expected, **close(dtype))
