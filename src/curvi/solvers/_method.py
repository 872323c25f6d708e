"""The contract between methods and what they minimise.

A :class:`Problem` is a stochastic objective with a way to sample it. A :class:`Method` is a frozen
description with ``init`` and ``step``, and no state. A :class:`Stepper` takes the same steps on the
host. :class:`Layered` is what KFAC needs to see of a network.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from curvi._core.compilation import Cost
from curvi._core.errors import InputError, Outcome
from curvi.linalg import LinearMap, Metric, hessian
from curvi.solvers._flat import FlatObjective


class Layer(NamedTuple):
    """How one layer ``rows W`` is to be preconditioned; rows carry a last column of ones.

    Attributes
    ----------
    white_input : bool
        Whether the rows are uncorrelated and scaled already, so that their side needs nothing.
    diagonal_output : bool
        Whether the curvature in the layer's outputs is known to be diagonal.
    decay : float
        Weight of the L2 penalty on the layer's matrix, its last row (the bias) excepted.
    bias : bool
        Whether there is such a row.
    """

    white_input: bool = False
    diagonal_output: bool = False
    decay: float = 0.0
    bias: bool = True


class Pass(NamedTuple):
    """One forward pass of a network.

    Attributes
    ----------
    outputs : pytree
        What the loss depends on.
    inputs : tuple of arrays
        The rows that entered each layer, ones appended.
    """

    outputs: Any
    inputs: tuple[Array, ...]


@runtime_checkable
class Layered(Protocol):
    """An objective ``loss(outputs, batch) + penalty`` over a network of affine layers.

    Layer l multiplies its input rows, ones appended, with matrix l and adds ``taps[l]`` (zeros):
    derivatives in the taps are the back-propagated deltas.
    """

    def layers(self, params: Any) -> tuple[Layer, ...]:
        """How each layer is to be preconditioned."""

    def matrices(self, params: Any) -> tuple[Float[Array, "_ _"], ...]:
        """The matrices, the last row of each being the bias."""

    def assemble(self, params: Any, matrices: tuple[Array, ...]) -> Any:
        """Parameters like the given ones, with these matrices."""

    def tap_shapes(self, params: Any, batch: Any) -> tuple[tuple[int, int], ...]:
        """Shapes of the taps for a batch."""

    def tapped(self, params: Any, taps: Any, batch: Any, key: PRNGKeyArray) -> Pass:
        """Forward pass."""

    def loss(self, outputs: Any, batch: Any) -> Array:
        """Mean loss per row."""

    def curvature(self, outputs: Any) -> Any:
        """Diagonal of the loss's curvature in the outputs, for single rows."""

    def penalty(self, params: Any) -> Array:
        """What the objective adds to the loss, the L2 terms of all layers."""


class Problem(abc.ABC):
    """``F(params) = E[value(params, sample)]``, without the arrays it reads.

    A problem is a pytree that the compiled loop takes as an argument. Its leaves are the arrays
    that users' functions read; everything else about it is compared by value. Data, fixed draws
    and keys travel in ``resources``.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        jax.tree_util.register_pytree_node_class(cls)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Leaves, and what is compared by value; a problem without arrays is all of the latter."""
        return (), self

    @classmethod
    def tree_unflatten(cls, rest: Any, leaves: Any) -> Problem:
        """The problem with other leaves, or with tracers in their place."""
        del leaves
        problem: Problem = rest
        return problem

    @property
    @abc.abstractmethod
    def fixed(self) -> bool:
        """Whether every step sees the same sample, so that F is a deterministic function."""

    @abc.abstractmethod
    def sample(self, resources: Any, step: Array, stream: int = 0, size: int | None = None) -> Any:
        """The sample of a step; different streams are independent, ``size`` is a batch size."""

    def probe_key(self, resources: Any, step: Array) -> PRNGKeyArray:
        """The key of vectors that probe the curvature of a step, apart from that of its samples."""
        return jax.random.fold_in(jax.random.fold_in(resources.key, 0xD1A6), step)

    @abc.abstractmethod
    def value(self, params: Any, sample: Any) -> Float[Array, ""]:
        """The objective on a sample."""

    def linearise(self, params: Any, sample: Any) -> tuple[Array, Any, LinearMap]:
        """Value, gradient and Hessian on a sample, by the R-operator unless overridden."""
        return hessian(lambda p: self.value(p, sample), params)

    def surrogate(self, params: Any, sample: Any) -> Float[Array, ""]:
        """A function of the same value and gradient whose Hessian stands for the exact one."""
        raise InputError(
            "this objective has no hyperparameters that are maximised analytically; use "
            "HFSGVI(curvature='exact')"
        )

    def squared_gradients(self, back: Callable[[Any], Any], point: Any, sample: Any) -> Any:
        """Entrywise squares of the gradients of single rows at ``back(point)``, summed."""
        raise InputError(
            "this objective does not show the gradients of its rows; preconditioner='martens' is "
            "for regressions with dense rows, choose 'diagonal' or None"
        )

    def gauss_newton(self, params: Any, sample: Any) -> tuple[Array, Any, LinearMap]:
        """Value, gradient and Gauss-Newton matrix on a sample, where the objective has one."""
        raise InputError(
            "this objective does not say where its loss begins; a Gauss-Newton method needs "
            "fn.gauss_newton(params, batch, key), such as a curvi.vae.VAEObjective"
        )

    def layered(self) -> Layered:
        """The layers of the objective, where it shows them; samples are then (batch, key)."""
        raise InputError(
            "this objective does not show its layers; KFAC needs one that does, such as a "
            "curvi.vae.VAEObjective. Choose LBFGS or FirstOrder instead"
        )

    def cost(self, params: Any, resources: Any) -> Cost | None:
        """What one product costs, where that is known; it decides how to compile."""
        return None

    @property
    def knows_its_length(self) -> bool:
        """Whether :meth:`cost` is that of a whole run, and not of one product."""
        return False

    def metric(self, params: Any) -> Metric | None:
        """Natural metric at the parameters, if the problem has one."""
        return None

    def project(self, params: Any, tangent: Any) -> Any:
        """Remove directions that do not change the objective (default: there are none)."""
        return tangent

    def to_mean(self, params: Any) -> Any:
        """The mean itself and the scale as the family stores it, which is in logarithms."""
        return params

    def from_mean(self, params: Any) -> Any:
        """Back from mean and scale."""
        return params

    def to_raw(self, params: Any) -> Any:
        """The parameters in which DSVI and HFSGVI take their steps (default: the same)."""
        return params

    def from_raw(self, raw: Any) -> Any:
        """Inverse of :meth:`to_raw`."""
        return raw

    def flat(self, params: Any, resources: Any) -> FlatObjective | None:
        """The objective as a function of one vector, where the cost of its products is known."""
        cost = self.cost(params, resources)
        return None if cost is None else FlatObjective(self, resources, params, cost)


@runtime_checkable
class Stepper(Protocol):
    """A run on the host: where it stands, and how it takes a step."""

    @property
    def params(self) -> Any:
        """The parameters where the run stands."""

    def step(self, tolerance: float) -> Info:
        """Take one step and report it, in plain numbers."""


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
    batches : batches that it read
    """

    value: Any
    grad_norm: Any
    gain: Any
    cg_steps: Any
    accepted: Any
    finite: Any
    negative_curvature: Any
    outcome: Any
    batches: Any = 1


def make_info(value: Array, **entries: Any) -> Info:
    """An :class:`Info` of uniform dtypes; what is left out is zero, accepted and running."""
    real = {"grad_norm": 0.0, "gain": 0.0}
    flags = {"accepted": True, "finite": True, "negative_curvature": False}
    counts = {"cg_steps": 0, "outcome": Outcome.RUNNING.value, "batches": 1}
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
        return False

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Numbers of rows that it asks a problem for, besides the batch size of the fit."""
        return ()

    @property
    def default_max_steps(self) -> int:
        """Steps after which a run ends if nothing else ends it."""
        return 1000

    @property
    def principal(self) -> tuple[int | None, float] | None:
        """How many principal coordinates the built-in auto-encoders are to be trained in.

        With the damping of their scale; None for pixels as they are.
        """
        return None

    @property
    def usual_batch_size(self) -> int:
        """Rows per step of an auto-encoder where the user does not say."""
        return 100

    @property
    def path_derivative(self) -> bool:
        """Whether an auto-encoder is to leave the score of q out of its gradients.

        They are then less noisy, but not those of the values on the same draws.
        """
        return False

    @property
    def decomposes(self) -> bool:
        """Whether compiled steps decompose matrices of some hundred rows.

        They then run with one thread of the BLAS: several wait for each other, which takes ten
        times as long on a busy machine and longer even on an idle one.
        """
        return False

    @abc.abstractmethod
    def init(self, problem: Problem, params: Any, resources: Any) -> Any:
        """The state before the first step; it has a field ``params``."""

    @abc.abstractmethod
    def step(
        self, problem: Problem, state: Any, resources: Any, step: Array, tolerance: Array
    ) -> tuple[Any, Info]:
        """One step. It never moves to parameters at which something it computed is not finite."""

    def estimate(self, state: Any) -> Any:
        """The parameters to return; an average where the method keeps one."""
        return state.params

    def takes_newton_steps(self, problem: Problem) -> bool:
        """Whether it converges to an optimum of this problem by Newton steps."""
        return False

    def has_host_steps(self, problem: Problem) -> bool:
        """Whether :meth:`stepper` can take the steps of this problem on the host."""
        return False

    @property
    def host_only(self) -> bool:
        """Whether it has no other steps."""
        return False

    def stepper(self, problem: Problem, params: Any, resources: Any) -> Stepper | None:
        """The same steps taken on the host, where the method and the problem allow it."""
        return None


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
    """Validate the name of a preconditioner; ``more`` are those of one method alone."""
    if preconditioner not in (None, "diagonal", *more):
        names = " or ".join(repr(name) for name in (None, "diagonal", *more))
        raise InputError(f"preconditioner is {preconditioner!r}; choose {names}")
