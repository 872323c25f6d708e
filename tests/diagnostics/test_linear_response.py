"""Linear response, against closed forms and against dense autodiff."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.flatten_util import ravel_pytree

import curvi
from curvi._core.errors import NumericalError
from curvi.diagnostics import _linear_response as response
from curvi.diagnostics._flat_directions import _by_coordinate
from curvi.objective import fixed_draws, neg_elbo
from tests.diagnostics.test_fit_result import result_of
from tests.solvers.problems import WIDTH, generator, linear, logistic


def judged(target, family, params, key, kind="whitened", count=32, **changes):
    """A result on fixed draws that no fit was needed for."""
    width = family.num_noise(target.dimension)
    plan = curvi.Draws(kind, count)
    noise = fixed_draws(key, plan, width, family.base, target.dtype)
    return result_of(target, family, params, draws=plan, noise=noise, **changes)


def tolerance(dtype):
    return 1e-6 if dtype == jnp.float64 else 2e-3


def test_mean_field_with_linear_response_has_the_exact_covariance_of_a_gaussian(key, dtype):
    model = linear(generator(key))
    target, family = model.target(dtype), curvi.MeanField()
    sd = np.diag(model.precision) ** -0.5
    params = family.init(jnp.asarray(model.mean, dtype), jnp.asarray(sd, dtype))
    result = judged(target, family, params, key)
    covariance = np.asarray(result.covariance(linear_response=True), float)
    scale = np.sqrt(np.diag(model.covariance))
    difference = (covariance - model.covariance) / np.outer(scale, scale)
    assert np.abs(difference).max() < tolerance(dtype)
    assert not np.allclose(result.covariance(), model.covariance, rtol=0.01)
    found = result.linear_response(lambda z: {"sum": jnp.sum(z), "pair": z[:2]})
    np.testing.assert_allclose(found["sum"], model.covariance.sum() ** 0.5, rtol=tolerance(dtype))
    np.testing.assert_allclose(found["pair"], scale[:2], rtol=tolerance(dtype))


@pytest.mark.float64_only
def test_many_functions_are_answered_block_by_block(key, dtype, monkeypatch):
    """Five systems in blocks of two: no more right-hand sides than that exist at once."""
    shapes, make = [], response.gradients

    def watched(*arguments):
        found = make(*arguments)
        shapes.append(found.mean.shape)
        return found

    pairs = replace(response.SOLVING, most_together=2)
    monkeypatch.setitem(response.block_size.__kwdefaults__, "policy", pairs)
    monkeypatch.setattr(response, "gradients", watched)
    model = linear(generator(key))
    family, sd = curvi.MeanField(), np.diag(model.precision) ** -0.5
    params = family.init(jnp.asarray(model.mean, dtype), jnp.asarray(sd, dtype))
    directions = generator(key).normal(size=(5, WIDTH))
    result = judged(model.target(dtype), family, params, key)
    found = result.linear_response(lambda z: jnp.asarray(directions) @ z)
    exact = np.einsum("ij,jk,ik->i", directions, model.covariance, directions) ** 0.5
    np.testing.assert_allclose(found, exact, rtol=tolerance(dtype))
    assert shapes == [(2, WIDTH)] * 3


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
@pytest.mark.parametrize(
    "family", [curvi.FullRank(), curvi.LowRank(1)], ids=lambda f: type(f).__name__
)
@pytest.mark.slow
def test_linear_response_is_the_dense_inverse_on_the_directions_that_change_q(family, key, dtype):
    target = logistic(generator(key), dtype)
    result = curvi.fit(target, family=family, num_draws=32, progress=False)
    noise = result.noise
    flat, unravel = ravel_pytree(result.params)

    def objective(vector):
        return neg_elbo(target.density, family, unravel(vector), noise, target.rows)

    def project(vector):
        return ravel_pytree(family.project(result.params, unravel(vector)))[0]

    basis = np.asarray(jax.vmap(project)(jnp.eye(flat.size, dtype=dtype)))
    dense = basis @ np.asarray(jax.hessian(objective)(flat)) @ basis
    inverse = np.linalg.pinv(dense, rcond=1e-9, hermitian=True)
    expected = inverse[:WIDTH, :WIDTH]  # the mean comes first
    np.testing.assert_allclose(
        result.covariance(linear_response=True), expected, rtol=1e-5, atol=1e-8
    )

    def function(z):
        return jnp.exp(z[0] + z[1])

    def average(vector):
        params = unravel(vector)
        return jnp.mean(jax.vmap(lambda e: function(family.transform(params, e)))(noise))

    slope = np.asarray(jax.grad(average)(flat))
    np.testing.assert_allclose(
        result.linear_response(function), (slope @ inverse @ slope) ** 0.5, rtol=1e-5
    )


def two_modes(position):
    centre = 2 + 0 * position["a"]
    first = -0.5 * ((position["a"] - centre) ** 2 + (position["b"] - centre) ** 2)
    second = -0.5 * ((position["a"] + centre) ** 2 + (position["b"] + centre) ** 2)
    return jnp.logaddexp(first, second) - 0.5 * position["c"] ** 2


@pytest.mark.float64_only
def test_an_indefinite_hessian_is_refused_with_the_flat_directions_named(key, dtype):
    """Between two modes along a = b the means of a and b have negative curvature, c has not."""
    zero = jnp.zeros((), dtype)
    target = curvi.Target(two_modes, {"a": zero, "b": zero, "c": zero})
    params = curvi.MeanField().init(target.start, jnp.asarray([1.7, 1.7, 1.0], dtype))
    result = judged(target, curvi.MeanField(), params, key, kind="antithetic", count=8192)
    with pytest.raises(NumericalError, match=r"the mean of [ab] and the mean of [ab]") as caught:
        result.linear_response(lambda z: z["a"] + z["c"])
    assert "of c" not in str(caught.value)


def chain(position):
    steps = position[1:] - 0.8 * position[:-1]
    return -0.5 * (position[0] ** 2 + jnp.sum(steps**2))


@pytest.mark.slow
def test_fifteen_thousand_coordinates_need_no_dense_matrix(key, dtype):
    size = 15_000
    target = curvi.Target(chain, jnp.zeros(size, dtype))
    diagonal = np.full(size, 1.64)
    diagonal[-1] = 1.0
    params = curvi.MeanField().init(target.start, jnp.asarray(diagonal**-0.5, dtype))
    result = judged(target, curvi.MeanField(), params, key, kind="normalised", count=4)
    banded = np.stack([np.concatenate([[0.0], np.full(size - 1, -0.8)]), diagonal])
    places = np.array([0, 5000, size - 1])
    unit = np.zeros((size, 3))
    unit[places, np.arange(3)] = 1
    exact = np.sqrt(scipy.linalg.solveh_banded(banded, unit)[places, np.arange(3)])
    found = result.linear_response(lambda z: z[jnp.asarray(places)])
    np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_a_flat_direction_of_a_sparse_precision_is_named_by_its_mean():
    table = {"mean": np.asarray([0.0, 3.0, 0.0]), "entries": np.arange(5.0)}
    np.testing.assert_array_equal(_by_coordinate(table, 3), [0.0, 3.0, 0.0])
