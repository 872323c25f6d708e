"""A result is data: it survives being copied, pickled, and sent to another process."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from tests.copies import each_copy, pickled
from tests.solvers.problems import generator, linear, logistic

pytestmark = pytest.mark.float64_only


def assert_same(twin, result):
    np.testing.assert_array_equal(twin.mean, result.mean)
    np.testing.assert_array_equal(twin.sample(5), result.sample(5))
    assert twin.mc_error == result.mc_error
    assert twin.khat == result.khat
    assert twin.summary() == result.summary()


@each_copy
def test_a_copy_of_a_result_reads_the_same(copied, key, dtype):
    result = curvi.fit(logistic(generator(key), dtype), num_draws=32, progress=False)
    assert_same(copied(result), result)


def test_an_error_brings_its_result_back_from_another_process(key, dtype):
    target = linear(generator(key)).target(dtype)
    with pytest.raises(curvi.NumericalError) as caught:
        curvi.fit(target, method=curvi.DSVI(learning_rate=1e3), max_steps=60)
    twin = pickled(caught.value)
    assert str(twin) == str(caught.value)
    assert twin.result.outcome is caught.value.result.outcome


def test_a_laplace_approximation_survives(key, dtype):
    found = curvi.laplace(linear(generator(key)).target(dtype))
    twin = pickled(found)
    np.testing.assert_array_equal(twin.mean, found.mean)


@pytest.mark.parametrize("wide", [True, False])
def test_a_copy_keeps_its_precision_wherever_it_is_loaded(wide):
    kind = np.float64 if wide else np.float32
    with jax.enable_x64(wide):
        target = curvi.Target(quadratic, jnp.full(3, 1 / 3, kind))
        result, found = curvi.fit(target, num_draws=8), curvi.laplace(target)
    for outside in (True, False):
        with jax.enable_x64(outside):
            twin, other = pickled(result), pickled(found)
        assert twin.params.mean.dtype == twin.mean.dtype == twin.noise.dtype == kind
        np.testing.assert_array_equal(twin.mean, result.mean)
        assert other.mode.dtype == other.mean.dtype == kind


def quadratic(position):
    return -0.5 * jnp.sum(position**2)
