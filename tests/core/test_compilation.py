"""Compilation effort follows from the size of a program, and changes no answer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi._core import compilation as effort

pytestmark = pytest.mark.float64_only


def scanned(x):
    def body(total, row):
        return total + jnp.exp(row), None

    return jax.lax.scan(body, jnp.zeros(3), x)[0]


def test_the_cost_counts_products_and_repeats():
    matrix, vector = jnp.ones((4, 5)), jnp.ones(5)
    assert effort.cost_of(jnp.dot, matrix, vector).numbers == 4 * 5
    once = effort.cost_of(scanned, jnp.ones((1, 3)))
    often = effort.cost_of(scanned, jnp.ones((7, 3)))
    assert often.operations - once.operations == pytest.approx(6 * 2, abs=6)
    assert 3 < often.numbers / once.numbers <= 7


@pytest.mark.parametrize("work", [1.0, 2 * effort.QUICK, float("inf")])
def test_every_effort_gives_the_same_answer(work):
    compiled = effort.SizedJit(
        lambda x, power: jnp.sum(jnp.sin(x) ** power), static_argnames=("power",)
    )
    x = np.linspace(0, 3, 50)
    assert float(compiled(work, jnp.asarray(x), power=2)) == pytest.approx(np.sum(np.sin(x) ** 2))


def test_options_that_this_xla_does_not_know_are_left_out(monkeypatch):
    monkeypatch.setattr(effort, "_UNOPTIMISED", {"xla_no_such_option_at_all": True})
    compiled = effort.SizedJit(jnp.sin, static_argnames=())
    assert float(compiled(1.0, jnp.asarray(0.0))) == 0.0
    assert not compiled._known
