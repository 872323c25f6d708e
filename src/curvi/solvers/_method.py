"""The contract of a method: a frozen description with ``init`` and ``step``, and no state."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi._core.errors import InputError, Outcome
from curvi.solvers._problem import Problem

# How much of the predicted decrease a step delivered: below POOR the model is trusted less,
# above GOOD it is trusted more.
POOR, GOOD = 0.25, 0.75


class Info(NamedTuple):
    """What one step reports; scalars, so that a run's trace is a table.

    Attributes
    ----------
    value : the objective on the step's sample, before the step
    grad_norm : norm of its gradient, in the natural metric where there is one
    gain : decrease that the step's model predicts, in units of the objective (nats)
    cg_steps : conjugate-gradient steps or line-search trials
    accepted : whether the parameters moved
    finite : whether everything that was computed was finite
    negative_curvature : whether a direction of negative curvature was met
    outcome : CONVERGED if the method's stopping rule is satisfied, else RUNNING
    """

    value: Array
    grad_norm: Array
    gain: Array
    cg_steps: Array
    accepted: Array
    finite: Array
    negative_curvature: Array
    outcome: Array


def make_info(value: Array, **entries: Any) -> Info:
    """An :class:`Info` of uniform dtypes; what is left out is zero, accepted and running."""
    real = {"grad_norm": 0.0, "gain": 0.0}
    flags = {"accepted": True, "finite": True, "negative_curvature": False}
    counts = {"cg_steps": 0, "outcome": Outcome.RUNNING.value}
    return Info(
        value=value,
        **{name: jnp.asarray(entries.get(name, d), value.dtype) for name, d in real.items()},
        **{name: jnp.asarray(entries.get(name, d), jnp.bool_) for name, d in flags.items()},
        **{name: jnp.asarray(entries.get(name, d), jnp.int32) for name, d in counts.items()},
    )


class Method(abc.ABC):
    """How to go downhill. Implementations are frozen dataclasses: static, hashable, comparable."""

    @property
    def needs_fresh_draws(self) -> bool:
        """Whether the method is defined on a new sample at every step."""
        return False

    def stops(self, problem: Problem) -> bool:
        """Whether the method can tell by itself that it has converged on this problem."""
        del problem
        return False

    @property
    def default_max_steps(self) -> int:
        """Steps after which a run ends if nothing else ends it."""
        return 1000

    @abc.abstractmethod
    def init(self, problem: Problem, params: Any, resources: Any) -> Any:
        """The state before the first step; it has a field ``params``."""

    @abc.abstractmethod
    def step(
        self, problem: Problem, state: Any, resources: Any, step: Array, tolerance: Array
    ) -> tuple[Any, Info]:
        """One step. It never moves to parameters at which something it computed is not finite."""

    def answer(self, state: Any) -> Any:
        """The parameters to return; an average where the method keeps one."""
        return state.params


class StochasticMethod(Method):
    """A method that is defined on a fresh batch and fresh draws at every step."""

    @property
    def needs_fresh_draws(self) -> bool:
        """Always."""
        return True


class CheapSteps(StochasticMethod):
    """A stochastic method whose steps are cheap and many."""

    @property
    def default_max_steps(self) -> int:
        """Ten times as many as usual."""
        return 10_000


def check_preconditioner(preconditioner: str | None, *more: str) -> None:
    """Refuse what a Hessian-free method has no preconditioner for; ``more`` are its own."""
    if preconditioner not in (None, "diagonal", *more):
        names = " or ".join(repr(name) for name in (None, "diagonal", *more))
        raise InputError(f"preconditioner is {preconditioner!r}; choose {names}")


def all_finite(*trees: Any) -> Array:
    """Whether every entry of every leaf is finite."""
    # Zero times an infinity or a NaN is a NaN, which the sum keeps; a sum of numbers runs faster
    # than a conjunction of flags.
    sums = [jnp.sum(0 * leaf) for leaf in jax.tree.leaves(trees)]
    return jnp.all(jnp.isfinite(jnp.stack(sums)))


def select(condition: Array, first: Any, second: Any) -> Any:
    """``first`` where the condition holds, leaf by leaf."""
    return optax.tree.where(condition, first, second)


def rounding_of(value: Array) -> Array:
    """Size of the rounding error of an objective value."""
    return jnp.finfo(value.dtype).eps * jnp.maximum(jnp.abs(value), 1.0)


def agreement(value: Array, trial_value: Array, gain: Array) -> Array:
    """Delivered over predicted decrease of a step.

    Both are lifted by the rounding error of the values: near the optimum their ratio is noise,
    and a good step must not be refused for it.
    """
    lift = 10 * rounding_of(value)
    return (value - trial_value + lift) / (gain + lift)
