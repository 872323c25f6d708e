"""Compiled fits are reused for the same function and data, and never for other data."""

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.fingerprint import fingerprint

SHIFT = 1.0


def reads_a_global(x):
    return -0.5 * jnp.sum((x - SHIFT) ** 2)


def test_a_changed_global_changes_the_answer(monkeypatch, dtype):
    first = curvi.fit(reads_a_global, jnp.zeros(2, dtype), progress=False)
    monkeypatch.setitem(globals(), "SHIFT", 5.0)
    second = curvi.fit(reads_a_global, jnp.zeros(2, dtype), progress=False)
    np.testing.assert_allclose(first.mean, 1.0, rtol=1e-4)
    np.testing.assert_allclose(second.mean, 5.0, rtol=1e-4)


def test_an_array_changed_in_place_changes_the_fingerprint():
    data = np.zeros(3)

    def function(x):
        return x + data

    before = fingerprint(function)
    assert before == fingerprint(function)
    data[1] = 2.0
    assert before != fingerprint(function)


def test_what_cannot_be_compared_is_never_the_same():
    class Model:
        def log_density(self, x):
            return x

    method = Model().log_density
    assert fingerprint(method) != fingerprint(method)


@pytest.mark.parametrize("other", [2.0, 1, "1.0", None, (1.0,), [1.0], {"a": 1.0}, jnp.sum])
def test_closed_over_values_are_compared(other):
    def make(value):
        return lambda x: (x, value)

    assert fingerprint(make(1.0)) == fingerprint(make(1.0))
    assert fingerprint(make(1.0)) != fingerprint(make(other))


def test_functions_that_call_functions_are_followed():
    def make(value):
        def inner(x):
            return x + value

        return lambda x: 2 * inner(x)

    assert fingerprint(make(1.0)) == fingerprint(make(1.0))
    assert fingerprint(make(1.0)) != fingerprint(make(2.0))


def test_a_function_that_calls_itself_has_a_fingerprint():
    def recursive(n):
        return recursive(n - 1) if n else 0

    assert fingerprint(recursive) == fingerprint(recursive)
