"""
A method of your own
====================

A method is a frozen dataclass with ``init`` and a pure ``step``. It sees the objective through a
problem: samples, values and linear maps. Budgets, Ctrl-C, the trace and the progress bar belong to
the loop around it.
"""

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

import curvi
from curvi.linalg import FunctionMetric, Metric
from curvi.solvers import Info, Method


class State(NamedTuple):
    params: jax.Array


@dataclass(frozen=True)
class Preconditioned(Method):
    """Gradient descent in a metric that the user gives."""

    metric: Metric
    rate: float = 0.5

    def init(self, problem, params, resources):
        return State(params)

    def step(self, problem, state, resources, step, tolerance):
        sample = problem.sample(resources, step)
        value, gradient = jax.value_and_grad(problem.value)(state.params, sample)
        moved = state.params - self.rate * self.metric.solve(gradient)
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(moved))
        params = jnp.where(finite, moved, state.params)
        norm = jnp.linalg.norm(gradient)
        nothing, zero = jnp.asarray(False), jnp.asarray(0, jnp.int32)
        return State(params), Info(
            value, norm, jnp.zeros_like(norm), zero, finite, finite, nothing, zero, zero + 1
        )


# %%
# A bowl that is a hundred times steeper in one direction. In the right metric it is round. The
# method has no stopping rule, so that the budget of 40 steps ends it, and the result says so.
def bowl(params, batch, key):
    return 0.5 * (100 * (params[0] - 1) ** 2 + (params[1] + 2) ** 2)


scale = jnp.asarray([100.0, 1.0])
metric = FunctionMetric(lambda t: scale * t, lambda t: t / scale)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", curvi.NotConvergedWarning)
    result = curvi.minimise(
        bowl,
        jnp.zeros(2),
        method=Preconditioned(metric),
        fixed_key=True,
        max_steps=40,
        progress=False,
    )
print(result.summary())
print("params:", jnp.round(result.params, 5))

# %%
result.plot()
