"""Compiled code is kept for the next fit, and never used for values that have changed."""

from __future__ import annotations

import functools
import gc
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import curvi
from curvi._core import compilation
from curvi._core.programs import trace
from tests.adversarial.outcomes import refused
from tests.compilations import num_compiled


class Holder:
    value = 1.0


def attribute_of_a_function(x):
    return attribute_of_a_function.value * x


def _class_attribute():
    def change():
        Holder.value = 5.0

    Holder.value = 1.0
    return (lambda x: Holder.value * x), change


def _module_attribute():
    module = types.ModuleType("settings")
    module.value = 1.0
    return (lambda x: module.value * x), lambda: setattr(module, "value", 5.0)


def _function_attribute():
    attribute_of_a_function.value = 1.0
    return attribute_of_a_function, lambda: setattr(attribute_of_a_function, "value", 5.0)


def _set():
    held = {1.0}

    def change():
        held.clear()
        held.add(5.0)

    return (lambda x: max(held) * x), change


def _bytearray():
    held = bytearray([1])
    return (lambda x: held[0] * x), lambda: held.__setitem__(0, 5)


def _object_array():
    held = np.array([1.0, None], dtype=object)
    return (lambda x: held[0] * x), lambda: held.__setitem__(0, 5.0)


def _masked_array():
    held = np.ma.MaskedArray([1.0, 4.0], mask=[False, True])
    return (lambda x: float(held.sum()) * x), lambda: held.mask.__setitem__(1, False)


def _sparse_matrix():
    held = scipy.sparse.csr_matrix(np.eye(1))
    return (lambda x: held.data[0] * x), lambda: held.data.__setitem__(0, 5.0)


def _polynomial():
    held = np.poly1d([1.0, 0.0])
    return (lambda x: held.coeffs[0] * x), lambda: held.coeffs.__setitem__(0, 5.0)


def _array():
    held = np.ones(1)
    return (lambda x: held[0] * x), lambda: held.__setitem__(0, 5.0)


def _array_of_a_compiled_function():
    class Model:
        held = np.ones(1)

        def __call__(self, x):
            return jax.jit(lambda y: jnp.sum(self.held * y))(x)

    model = Model()
    return model, lambda: model.held.__setitem__(0, 5.0)


def _bound_method():
    class Model:
        value = 1.0

        def slope(self, x):
            return self.value * x

    model = Model()
    return model.slope, lambda: setattr(model, "value", 5.0)


def _compiled_function():
    @jax.jit
    def scaled(x):
        return Holder.value * x

    Holder.value = 1.0
    return scaled, lambda: setattr(Holder, "value", 5.0)


def _body_of_a_loop():
    def body(carry, step):
        return carry + Holder.value * step, None

    Holder.value = 1.0
    change = functools.partial(setattr, Holder, "value", 5.0)
    return (lambda x: jax.lax.scan(body, 0 * x, x[None])[0]), change


def _branch():
    def branch(x):
        return Holder.value * x

    Holder.value = 1.0
    change = functools.partial(setattr, Holder, "value", 5.0)
    return (lambda x: jax.lax.cond(jnp.isfinite(x), branch, branch, x)), change


def _rule_inside_a_solver():
    def solve(x):
        return jax.lax.custom_root(
            lambda s: s - Holder.value * x,
            0 * x,
            lambda f, guess: jax.lax.stop_gradient(Holder.value * x) + 0 * guess,
            lambda g, y: y,
        )

    Holder.value = 1.0
    return solve, lambda: setattr(Holder, "value", 5.0)


def _rule_of_differentiation():
    @functools.partial(jax.custom_jvp)
    def scaled(x):
        return 5.0 * x if Holder.value > 2 else x

    scaled.defjvps(lambda tangent, value, x: Holder.value * tangent)
    Holder.value = 1.0
    return scaled, lambda: setattr(Holder, "value", 5.0)


READ = [
    _class_attribute, _module_attribute, _function_attribute, _set, _bytearray, _object_array,
    _masked_array, _sparse_matrix, _polynomial, _array, _array_of_a_compiled_function,
    _bound_method, _compiled_function, _body_of_a_loop, _branch, _rule_inside_a_solver,
    _rule_of_differentiation,
]  # fmt: skip


@pytest.mark.parametrize("make", READ, ids=lambda make: make.__name__.strip("_"))
def test_what_a_log_density_reads_is_read_for_every_fit(make, dtype):
    slope, change = make()

    def log_density(x):
        return jnp.asarray(slope(x) - 0.5 * x**2, dtype)

    target = curvi.Target(log_density, jnp.zeros((), dtype))
    means = [float(curvi.fit(target, progress=False).mean)]
    change()
    means.append(float(curvi.fit(target, progress=False).mean))
    np.testing.assert_allclose(means, [1.0, 5.0], rtol=1e-4)


@pytest.mark.parametrize("make", READ, ids=lambda make: make.__name__.strip("_"))
def test_a_program_keeps_what_its_function_read(make, dtype):
    function, change = make()
    zero = jnp.zeros((), dtype)
    first = trace(lambda x: jnp.asarray(function(x), dtype), zero)
    again = trace(lambda x: jnp.asarray(function(x), dtype), zero)
    change()
    second = trace(lambda x: jnp.asarray(function(x), dtype), zero)
    two = jnp.asarray(2.0, dtype)
    assert first.structure == again.structure
    assert (float(first(two)), float(second(two))) == (2.0, 10.0)
    assert (float(jax.grad(first)(two)), float(jax.grad(second)(two))) == (1.0, 5.0)


def test_a_negative_zero_is_not_zero(dtype):
    def at(zero):
        return trace(lambda x: jnp.copysign(x, zero), jnp.ones((), dtype))

    assert at(0.0).structure != at(-0.0).structure
    assert float(at(-0.0)(jnp.ones((), dtype))) == -1.0


def test_a_rule_of_differentiation_alone_makes_another_program(dtype):
    def with_slope(slope):
        square = jax.custom_jvp(lambda x: x**2)
        square.defjvps(lambda tangent, value, x: slope * x * tangent)
        return trace(square, jnp.ones((), dtype))

    assert with_slope(2.0).structure == with_slope(2.0).structure
    assert with_slope(2.0).structure != with_slope(3.0).structure


def test_the_same_model_on_other_data_compiles_nothing(key, dtype):
    def fitted(number):
        rows = np.asarray(jax.random.normal(jax.random.fold_in(key, number), (20,)), dtype)
        target = curvi.Target(lambda x: -0.5 * jnp.sum((x - rows) ** 2), jnp.zeros((), dtype))
        result = curvi.fit(target, progress=False)
        np.testing.assert_allclose(result.mean, rows.mean(), atol=1e-3)
        return target

    fitted(0)
    before = num_compiled()
    target = fitted(1)
    assert num_compiled() == before
    # Nor is any of its data kept.
    array = weakref.ref(target.density.prior.constants[0])
    del target
    gc.collect()
    assert array() is None


def test_rows_are_not_those_of_a_buffer_that_is_filled_again(dtype):
    rows = np.zeros(4096, dtype)  # large enough for an aligned buffer, which JAX would not copy
    target = curvi.DataTarget(
        lambda x, some: -0.5 * (some - x) ** 2, rows, lambda x: -0.5 * x**2, jnp.zeros((), dtype)
    )
    before = float(target.log_prob(target.start))
    rows[:] = 9.0
    assert float(target.log_prob(target.start)) == before


def test_integers_beyond_32_bits_are_refused_or_kept(dtype):
    rows = np.array([2**32 + 1, 2])

    def target():
        return curvi.DataTarget(
            lambda x, some: -0.5 * (some.astype(dtype) - x) ** 2,
            rows,
            lambda x: -0.5 * x**2,
            jnp.zeros((), dtype),
        )

    if dtype == jnp.float64:
        assert int(target().rows[0]) == 2**32 + 1
    else:
        refused(target, curvi.InputError, "data[0] is 4294967297", "jax_enable_x64")


def test_caches_can_be_cleared_and_are_when_they_are_full(dtype, monkeypatch):
    curvi.fit(lambda x: -0.5 * x**2, jnp.zeros((), dtype), progress=False)
    before = num_compiled()
    curvi.clear_caches()
    curvi.fit(lambda x: -0.5 * x**2, jnp.zeros((), dtype), progress=False)
    assert num_compiled() > before
    cleared = []
    monkeypatch.setattr(compilation, "clear_caches", lambda: cleared.append(1))
    monkeypatch.setattr(
        compilation, "_used", set(range(compilation.count_use.__kwdefaults__["most"]))
    )
    trace(lambda x: x**11, jnp.zeros((), dtype))
    assert cleared


def test_code_for_a_new_method_counts(dtype, monkeypatch):
    monkeypatch.setattr(compilation, "_used", set())
    counts = []
    for rate in (1e-3, 2e-3, 2e-3):
        curvi.fit(
            lambda x: -0.5 * x**2,
            jnp.zeros((), dtype),
            method=curvi.DSVI(learning_rate=rate),
            max_steps=2,
            on_failure="return",
            progress=False,
        )
        counts.append(len(compilation._used))
    assert counts[0] < counts[1] == counts[2]
