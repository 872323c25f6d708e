"""Running averages of parameters, and a wrapper that gives one to any method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from curvi._core import validation
from curvi.solvers._method import Info, Method, Problem


def average_towards(
    average: Any, params: Any, window: Array, step: Array, *, every: int = 100, thinned: int = 8
) -> Any:
    """``average + (params - average) / (1 + window)``, leaf by leaf.

    Neighbours among hundreds of steps hardly differ: later on every eighth one is enough, with a
    weight eight times as large. A pass over the weights is a part of a step that can be felt.
    A window of a few steps takes each of them.

    ``every``: first steps, each of which enters an average.
    ``thinned``: of the later ones, each so-many-th.
    """
    early = (step < every) | (window < thinned)
    count = jnp.where(early, 1, thinned).astype(window.dtype)
    rate = 1 / (1 + window / count)

    def mixed() -> Any:
        return jax.tree.map(lambda a, p: a + rate.astype(a.dtype) * (p - a), average, params)

    return jax.lax.cond(early | (step % thinned == 0), mixed, lambda: average)


class AveragedState(NamedTuple):
    """The inner state and the average of its parameters."""

    inner: Any
    average: Any

    @property
    def params(self) -> Any:
        """The inner parameters."""
        return self.inner.params


@dataclass(frozen=True)
class Averaged(Method):
    """Any method, returning the average of its recent parameters.

    Parameters
    ----------
    method : Method
        What takes the steps.
    window : int
        Steps in the average, at most; it grows as ``fraction`` of the steps taken.
    fraction : float
        Part of the run so far that is averaged.
    """

    method: Method
    window: int = 1800
    fraction: float = 0.3

    def __post_init__(self) -> None:
        """Validate the window."""
        validation.positive_integer(self.window, "window")
        validation.positive_number(self.fraction, "fraction")

    @property
    def needs_fresh_draws(self) -> bool:
        """As the inner method."""
        return self.method.needs_fresh_draws

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Those of the inner method."""
        return self.method.batch_sizes

    @property
    def default_max_steps(self) -> int:
        """As the inner method."""
        return self.method.default_max_steps

    @property
    def decomposes(self) -> bool:
        """As the inner method."""
        return self.method.decomposes

    def init(self, problem: Problem, params: Any, resources: Any) -> AveragedState:
        """Start the average at the parameters."""
        return AveragedState(self.method.init(problem, params, resources), params)

    def step(
        self, problem: Problem, state: AveragedState, resources: Any, step: Array, tolerance: Array
    ) -> tuple[AveragedState, Info]:
        """A step of the inner method, then of the average."""
        inner, info = self.method.step(problem, state.inner, resources, step, tolerance)
        window = jnp.minimum(self.fraction * step.astype(info.value.dtype), self.window)
        return AveragedState(
            inner, average_towards(state.average, inner.params, window, step)
        ), info

    def estimate(self, state: AveragedState) -> Any:
        """The average."""
        return state.average
