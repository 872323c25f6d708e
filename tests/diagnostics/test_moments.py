"""Moments over draws need bounded memory and lose no digits."""

from __future__ import annotations

import importlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.programs import trace
from curvi.diagnostics import _moments as moments

evaluate_module = importlib.import_module("curvi.diagnostics._evaluation")


def test_moments_over_blocks_are_those_of_all_draws(key, dtype):
    blocks = replace(moments.DRAWS, most_numbers=64)  # of 16 rows of 4 numbers
    noise = jax.random.normal(key, (128, 2), dtype)

    def fn(row):
        return {"far": 1000 + row, "square": row**2}

    mean, sd = moments.moments_over(trace(fn, noise[0]), noise, policy=blocks)
    everything = jax.vmap(fn)(noise)
    close = 1e4 * float(jnp.finfo(dtype).eps)
    for name, values in everything.items():
        exact = np.asarray(values, np.float64)
        np.testing.assert_allclose(mean[name], exact.mean(axis=0), rtol=close)
        np.testing.assert_allclose(sd[name], exact.std(axis=0), rtol=close)


@pytest.mark.float64_only
def test_fewer_draws_judge_a_target_of_very_many_coordinates(key):
    """As many numbers as 200 draws have: blocks of 32 draws, or a power of two, fit into them."""
    size = 2000
    effort = replace(evaluate_module.EFFORT, most_numbers=200 * size)
    policy = replace(moments.DRAWS, most_numbers=200 * size)
    target = curvi.Target(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(size))
    family = curvi.MeanField()
    assert evaluate_module.evaluation_noise(target, family, key, effort=effort).shape == (192, size)
    start = family.init(jnp.zeros(size), 1.0)
    noise = moments.moment_draws(family, start, key, policy=policy)
    assert noise.shape == (128, size)
    np.testing.assert_allclose(np.mean(noise, axis=0), 0, atol=1e-12)
