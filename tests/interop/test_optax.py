"""The Hessian-free step in a plain optax loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from curvi._core.errors import InputError
from curvi.interop import hessian_free


def rosenbrock(params):
    x, y = params["x"], params["y"]
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def guarded(params):
    return jnp.where(params["x"] > 1.5, jnp.nan, rosenbrock(params))


@pytest.mark.parametrize("loss", [rosenbrock, guarded])
def test_it_converges_on_rosenbrock_under_jit(loss, dtype):
    optimiser = optax.chain(optax.identity(), hessian_free(cg_steps=5))

    @jax.jit
    def step(params, state):
        gradient = jax.grad(loss)(params)
        updates, state = optimiser.update(gradient, state, params, value_fn=loss)
        return optax.apply_updates(params, updates), state

    params = {"x": jnp.asarray(-1.2, dtype), "y": jnp.asarray(1.0, dtype)}
    state = optimiser.init(params)
    loss_of = jax.jit(loss)
    value = loss_of(params)
    for _ in range(80):
        params, state = step(params, state)
        following = loss_of(params)
        assert following <= value + 1e-6
        value = following
    np.testing.assert_allclose(params["x"], 1, atol=1e-6 if dtype == jnp.float64 else 2e-2)
    assert params["x"].dtype == dtype


def test_a_step_without_the_objective_is_refused(dtype):
    optimiser = hessian_free()
    params = jnp.zeros(2, dtype)
    state = optimiser.init(params)
    with pytest.raises(InputError, match="value_fn=loss"):
        optimiser.update(params, state, params)
    with pytest.raises(InputError, match="value_fn=loss"):
        optimiser.update(params, state, value_fn=jnp.sum)


def test_where_nothing_is_finite_the_update_is_zero_and_the_damping_grows(dtype):
    optimiser = hessian_free()
    params = jnp.ones(2, dtype)
    state = optimiser.init(params)
    update = jax.jit(partial(optimiser.update, value_fn=lambda p: jnp.sum(p) * jnp.nan))
    updates, after = update(params, state, params)
    np.testing.assert_array_equal(updates, 0)
    assert after.damping > state.damping


@pytest.mark.float64_only
def test_options_out_of_range_are_refused():
    with pytest.raises(InputError, match="cg_steps is 0"):
        hessian_free(cg_steps=0)
    with pytest.raises(InputError, match=r"initial_damping is 0\.0"):
        hessian_free(initial_damping=0.0)
