"""curvi.minimise on functions whose minimum is known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError, NotConvergedWarning, NumericalError
from tests.solvers.problems import generator, linear, seed_of


def rosenbrock(params, batch, key):
    assert batch is None
    return (1 - params["x"]) ** 2 + 100 * (params["y"] - params["x"] ** 2) ** 2


def valley(dtype):
    return {"x": jnp.asarray(-1.2, dtype), "y": jnp.asarray(1.0, dtype)}


@pytest.mark.parametrize("method", [curvi.TrustRegion(), curvi.LBFGS()], ids=lambda m: repr(m)[:5])
def test_rosenbrock_is_minimised_and_keeps_its_structure(method, dtype):
    result = curvi.minimise(rosenbrock, valley(dtype), method=method, fixed_key=True)
    assert result.converged
    assert isinstance(result, curvi.OptimiseResult)
    assert set(result.params) == {"x", "y"}
    assert result.params["x"].dtype == dtype
    tolerance = 1e-3 if dtype == jnp.float64 else 2e-2
    np.testing.assert_allclose(result.params["x"], 1, atol=tolerance)
    np.testing.assert_allclose(result.params["y"], 1, atol=2 * tolerance)
    assert {len(column) for column in result.trace.values()} == {len(result.trace["step"])}


def squares(params, batch, key):
    return 0.5 * jnp.mean((batch["y"] - batch["x"] @ params) ** 2)


def test_stochastic_regression_comes_close_to_least_squares(key, dtype):
    model = linear(generator(key))
    data = {"x": jnp.asarray(model.x, dtype), "y": jnp.asarray(model.y, dtype)}
    result = curvi.minimise(
        squares,
        jnp.zeros(3, dtype),
        data=data,
        batch_size=6,
        seed=seed_of(key),
        max_steps=600,
        on_failure="return",
    )
    assert result.outcome in (curvi.Outcome.CONVERGED, curvi.Outcome.BUDGET)
    best = np.linalg.lstsq(model.x, model.y, rcond=None)[0]
    moments = model.x.T @ model.x / len(model.y)

    def excess(w):
        return 0.5 * (w - best) @ moments @ (w - best)

    assert excess(np.asarray(result.params, float)) < 0.1 * excess(np.zeros(3)) + 0.1


def noisy(params, batch, key):
    return jnp.sum((params - 1 + 0.1 * jax.random.normal(key, params.shape, params.dtype)) ** 2)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(dtype):
    def run(seed):
        return curvi.minimise(
            noisy, jnp.zeros(3, dtype), method=curvi.DSVI(), seed=seed, max_steps=30
        )

    first, again, other = run(5), run(5), run(6)
    assert first.outcome is curvi.Outcome.BUDGET  # no stopping rule: no warning either
    assert np.asarray(first.params).tobytes() == np.asarray(again.params).tobytes()
    assert first.trace["value"].tobytes() == again.trace["value"].tobytes()
    assert np.asarray(first.params).tobytes() != np.asarray(other.params).tobytes()


def hopeless(params, batch, key):
    return jnp.sum(params) * jnp.nan


def test_an_objective_that_is_never_finite_fails_as_the_user_asked(dtype):
    start = jnp.ones(2, dtype)
    options = {"method": curvi.LBFGS(), "fixed_key": True}
    with pytest.raises(NumericalError, match="non-finite again and again") as caught:
        curvi.minimise(hopeless, start, **options)
    assert caught.value.result.outcome is curvi.Outcome.NON_FINITE
    np.testing.assert_array_equal(caught.value.result.params, start)
    with pytest.warns(NotConvergedWarning, match="non-finite again and again"):
        warned = curvi.minimise(hopeless, start, on_failure="warn", **options)
    silent = curvi.minimise(hopeless, start, on_failure="return", **options)
    for result in (warned, silent):
        assert not result.converged
        np.testing.assert_array_equal(result.params, start)


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 3}, "batch_size needs data; pass data="),
        ({"data": np.ones((4, 2)), "batch_size": 0}, "batch_size is 0; it must be a positive"),
        ({"method": "newton"}, r"method is 'newton'; give a method such as curvi\.TrustRegion"),
        ({"on_failure": "ignore"}, "on_failure is 'ignore'; choose one of 'raise', 'warn'"),
        ({"tolerance": 0.0}, r"tolerance is 0\.0; it must be positive and finite"),
        ({"time_budget": -1}, "time_budget is -1; it must be positive and finite"),
        ({"max_steps": 0}, "max_steps is 0; it must be a positive integer"),
        ({"data": np.array([1.0, np.nan])}, r"data\[1\] is nan; data must be finite"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        curvi.minimise(lambda p, batch, key: jnp.sum(p**2), jnp.zeros(2), **options)


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("fn", "params", "sentence"),
    [
        (lambda p, b, k: p, jnp.zeros(2), r"fn returned shape \(2,\); it must return one scalar"),
        (lambda p, b, k: p["x"], jnp.zeros(2), "fn could not be traced by JAX"),
        (lambda p, b, k: jnp.sum(p), jnp.array([0.0, np.inf]), r"\[1\] is inf"),
        (lambda p, b, k: jnp.sum(p), jnp.arange(2), "must be floating point"),
    ],
)
def test_functions_and_starts_that_cannot_work_are_refused(fn, params, sentence):
    with pytest.raises(InputError, match=sentence):
        curvi.minimise(fn, params)
