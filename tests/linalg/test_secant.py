"""The limited-memory inverse against the dense BFGS recursion."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from curvi.linalg import apply_inverse, empty_memory, remember
from tests.linalg.systems import positive_system, seeds

SIZE = 4
remember_compiled = jax.jit(remember)
apply_compiled = jax.jit(apply_inverse)


def tree(vector, dtype):
    """A vector as a pytree of two leaves, in flattening order."""
    return {"a": jnp.asarray(vector[:1], dtype), "b": jnp.asarray(vector[1:], dtype)}


def flat(pytree):
    return np.concatenate([np.asarray(leaf) for leaf in jax.tree.leaves(pytree)]).astype(float)


def apply(memory, vector, dtype):
    return flat(apply_compiled(memory, tree(vector, dtype)))


@functools.cache
def vacant(history, dtype):
    return empty_memory(tree(np.zeros(SIZE), dtype), history)


def close(dtype):
    tolerance = 1e-8 if dtype == jnp.float64 else 2e-3
    return {"rtol": tolerance, "atol": tolerance}


def dense_inverse(pairs):
    """BFGS update of the inverse, from the scaled identity that the newest pair suggests."""
    s, y = pairs[-1]
    inverse = (s @ y) / (y @ y) * np.eye(SIZE)
    for s, y in pairs:
        rho = 1 / (s @ y)
        left = np.eye(SIZE) - rho * np.outer(s, y)
        inverse = left @ inverse @ left.T + rho * np.outer(s, s)
    return inverse


def test_an_empty_memory_is_the_identity(key, dtype):
    vector = np.asarray(jax.random.normal(key, (SIZE,), dtype))
    np.testing.assert_array_equal(apply(vacant(3, dtype), vector, dtype), vector)


@settings(max_examples=15)
@given(seed=seeds, count=st.integers(1, 6), history=st.sampled_from([1, 3]))
def test_the_recursion_is_the_dense_update_of_the_last_pairs(dtype, seed, count, history):
    rng = np.random.default_rng(seed)
    matrix = positive_system(seed, SIZE, 10.0).matrix
    matrix = matrix / np.linalg.norm(matrix, 2)
    pairs = []
    memory = vacant(history, dtype)
    for _ in range(count):
        step = rng.normal(size=SIZE)
        pairs.append((step, matrix @ step))
        memory, kept = remember_compiled(memory, tree(step, dtype), tree(matrix @ step, dtype))
        assert bool(kept)
    vector = rng.normal(size=SIZE)
    expected = dense_inverse(pairs[-history:]) @ vector
    np.testing.assert_allclose(apply(memory, vector, dtype), expected, **close(dtype))


@settings(max_examples=10)
@given(seed=seeds, count=st.integers(1, 5))
def test_the_newest_pair_satisfies_the_secant_equation(dtype, seed, count):
    rng = np.random.default_rng(seed)
    matrix = positive_system(seed, SIZE, 10.0).matrix
    matrix = matrix / np.linalg.norm(matrix, 2)
    memory = vacant(3, dtype)
    for _ in range(count):
        step = rng.normal(size=SIZE)
        memory, _ = remember_compiled(memory, tree(step, dtype), tree(matrix @ step, dtype))
    np.testing.assert_allclose(apply(memory, matrix @ step, dtype), step, **close(dtype))


def test_pairs_without_positive_curvature_are_screened_out(dtype):
    step = np.array([1.0, 2.0, -1.0, 0.5])
    memory, kept = remember_compiled(vacant(3, dtype), tree(step, dtype), tree(2 * step, dtype))
    assert bool(kept)
    across = np.array([2.0, -1.0, 0.0, 0.0])
    useless = {
        "negative": -step,
        "orthogonal": across,
        "almost orthogonal": across + 1e-9 * step,
        "zero": 0 * step,
        "not finite": np.array([np.nan, 1.0, 1.0, 1.0]),
        "infinite": np.array([np.inf, 1.0, 1.0, 1.0]),
    }
    for name, difference in useless.items():
        same, kept = remember_compiled(memory, tree(step, dtype), tree(difference, dtype))
        assert not bool(kept), name
        for old, new in zip(jax.tree.leaves(memory), jax.tree.leaves(same), strict=True):
            np.testing.assert_array_equal(old, new)
    _, kept = remember_compiled(memory, tree(0 * step, dtype), tree(step, dtype))
    assert not bool(kept)


@settings(max_examples=10)
@given(seed=seeds)
def test_the_inverse_is_positive_definite_whatever_was_offered(dtype, seed):
    """On pairs of noise, about half of which have negative curvature."""
    rng = np.random.default_rng(seed)
    memory = vacant(3, dtype)
    for _ in range(4):
        offered = (tree(rng.normal(size=SIZE), dtype) for _ in range(2))
        memory, _ = remember_compiled(memory, *offered)
    vector = rng.normal(size=SIZE)
    assert vector @ apply(memory, vector, dtype) > 0
