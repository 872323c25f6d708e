r"""KFAC: steps preconditioned by Kronecker factors of the Gauss-Newton matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.meshes import each_on_one
from curvi.linalg import all_finite, select
from curvi.solvers._averaging import average_towards
from curvi.solvers._kronecker import backward, cut, layer_factors, num_rows_of
from curvi.solvers._method import CheapSteps, Info, Layer, Layered, Problem, make_info


@dataclass(frozen=True)
class Decay:
    """What a run of KFAC averages, and how its penalty pulls."""

    averaged_share: float = 0.3  # part of the run so far that is averaged
    longest_period: int = 50  # steps between pulls of the penalty
    gentle_pull: float = 0.1  # part of a weight that one pull may take


DECAY = Decay()


class KroneckerFactors(NamedTuple):
    """Kronecker factors of every layer and their inverse roots."""

    input_factors: tuple[Array, ...]
    output_factors: tuple[Array, ...]
    input_roots: tuple[Array, ...]
    output_roots: tuple[Array, ...]


class KFACState(NamedTuple):
    """Parameters, momentum, curvature and the running average of the parameters."""

    params: Any
    momentum: tuple[Array, ...]
    curvature: KroneckerFactors
    average: Any


@dataclass(frozen=True)
class KFAC(CheapSteps):
    r"""Momentum on gradients that Kronecker curvature has preconditioned.

    The Gauss-Newton matrix of layer l is approximated by :math:`A_l \otimes G_l`, with
    :math:`A_l = E[a a^\top]` of the rows that enter it (ones included) and
    :math:`G_l = E[\delta \delta^\top]`, or its diagonal, of what a random sign times the square
    root of the output curvature becomes when it is propagated back. All outputs are probed
    together, so that for an auto-encoder the KL term is part of the curvature. A step is

    .. math:: W \leftarrow W - \eta_t m, \qquad m \leftarrow 0.9\, m + 0.1\,
        (A + \rho \bar\lambda_A)^{-1/2} \, \nabla_W F \, (G + \rho \bar\lambda_G)^{-1/2}.

    The square root makes the step a number of posterior-like sds and not a Newton step: with
    gradients of 100 rows the full inverse follows noise. Roots are applied to activations and
    deltas before their outer product, which is cheaper than to the gradient. What is returned is
    the average of the parameters over a window of recent steps.

    There is no learning rate to tune: the defaults are meant for every data set. It needs an
    objective that shows its layers (:class:`~curvi.solvers._method.Layered`), such as that of the
    built-in networks of ``curvi.VAE``.

    Parameters
    ----------
    step_size : float
        Eta; kept for ``plateau`` steps, then it falls like 1/sqrt(t).
    momentum : float
        Weight of the past.
    damping : float
        Rho, in units of the mean eigenvalue of a factor.
    plateau : int
        Steps at full size; half of it is the early phase, in which factors are renewed more
        often.
    factor_every, root_every : int
        Steps between estimates of the factors, and between decompositions.
    factor_rows : int
        Rows per estimate.
    factor_memory : float
        Weight of the past in the factors.
    clip : float
        Largest norm of a layer's preconditioned gradient, in units of what noise alone would give
        it, sqrt(entries / rows): the first gradients of a run are far above it.
    average_window : int
        Steps in the average that is returned, at most; 0 returns the last parameters.
    horizon : int, optional
        Steps of the whole run, where they are known. The step size then stays at eta for the first
        half and falls to zero in a straight line in the second, and the average is taken over ever
        fewer steps: at the end the noise is gone, and nothing is left to average.
    directions : int, optional
        For ``curvi.VAE``, whose images are rotated to principal coordinates: the encoder reads at
        most so many of the leading ones. None keeps all. Other objectives do not use it.
    output_factors : {"diagonal", "full"}
        What is kept of :math:`G_l`. With the diagonal a step costs a sixth less on MNIST, and as
        many are needed.
    path_derivative : bool
        For auto-encoders: leave the score of q out of the gradient, which makes the encoder's less
        noisy the closer q is to the posterior.
    """

    step_size: float = 0.05
    momentum: float = 0.9
    damping: float = 0.01
    plateau: int = 1200
    factor_every: int = 60
    root_every: int = 600
    factor_rows: int = 200
    factor_memory: float = 0.9
    clip: float = 1.5
    average_window: int = 1800
    horizon: int | None = None
    directions: int | None = 200
    output_factors: str = "diagonal"
    path_derivative: bool = True

    def __post_init__(self) -> None:
        """Validate the options."""
        if self.horizon is not None:
            validation.positive_integer(self.horizon, "horizon")
        for name in ("step_size", "damping", "clip"):
            validation.positive_number(getattr(self, name), name)
        for name in ("plateau", "factor_every", "root_every", "factor_rows"):
            validation.positive_integer(getattr(self, name), name)
        for name in ("momentum", "factor_memory"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)!r}; it must be in [0, 1)")
        if self.directions is not None:
            validation.positive_integer(self.directions, "directions")
        validation.one_of(self.output_factors, ("diagonal", "full"), "output_factors")
        if self.average_window != 0:
            validation.positive_integer(self.average_window, "average_window")

    @property
    def principal(self) -> tuple[int | None, float]:
        """In principal coordinates the first layer needs no factor."""
        return self.directions, self.damping

    @property
    def decomposes(self) -> bool:
        """Factors of every layer."""
        return True

    def init(self, problem: Problem, params: Any, resources: Any) -> KFACState:
        """Identity roots; the first step estimates the factors."""
        objective = problem.layered()
        matrices, layers = objective.matrices(params), self._layers(objective, params)
        inputs = tuple(
            jnp.zeros((0, 0), m.dtype) if layer.white_input else jnp.eye(m.shape[0], dtype=m.dtype)
            for m, layer in zip(matrices, layers, strict=True)
        )
        outputs = tuple(
            jnp.ones((1, m.shape[1]), m.dtype)
            if layer.diagonal_output
            else jnp.eye(m.shape[1], dtype=m.dtype)
            for m, layer in zip(matrices, layers, strict=True)
        )
        curvature = KroneckerFactors(inputs, outputs, inputs, outputs)
        return KFACState(params, tuple(jnp.zeros_like(m) for m in matrices), curvature, params)

    def estimate(self, state: KFACState) -> Any:
        """The average."""
        return state.average if self.average_window else state.params

    def step(
        self, problem: Problem, state: KFACState, resources: Any, step: Array, tolerance: Array
    ) -> tuple[KFACState, Info]:
        """Renew the curvature if it is due, then one preconditioned momentum step."""
        objective = problem.layered()
        curvature = self._renewed(problem, objective, state, resources, step)
        batch, key = problem.sample(resources, step)
        layers = self._layers(objective, state.params)
        roots = list(zip(curvature.input_roots, curvature.output_roots, strict=True))

        def gradient(batch: Any) -> tuple[Array, Array, list[Array]]:
            value, deltas, inputs = backward(objective, state.params, batch, key)
            rows = jnp.asarray(num_rows_of(objective, batch, inputs), value.dtype)
            return value, rows, list(map(_preconditioned, layers, roots, inputs, deltas))

        value, rows, updates = cut(objective, gradient, batch)
        now = step.astype(value.dtype)
        rate = self._rate(now)
        matrices = objective.matrices(state.params)
        norms = [jnp.sqrt(jnp.sum(update * update)) for update in updates]
        # A norm is finite only if every entry is: one pass over the updates serves both.
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(rate * jnp.stack(norms)))
        momentum, updated = [], []
        for index, layer in enumerate(layers):
            matrix, past = matrices[index], state.momentum[index]
            clip = self._clipped(updates[index], norms[index], rows)
            update = self._decayed(layer, roots[index], matrix, updates[index], (step, rate, clip))
            weight = (1 - self.momentum) * clip
            mixed = jnp.where(finite, self.momentum * past + weight * update, past)
            momentum.append(mixed)
            updated.append(jnp.where(finite, matrix - rate * mixed, matrix))
        params = objective.assemble(state.params, tuple(updated))
        average = params
        if self.average_window:
            average = average_towards(state.average, params, self._window(now), step)
        value = value + objective.penalty(state.params)
        norm = optax.tree.norm(norms)
        info = make_info(value, grad_norm=norm, accepted=finite, finite=finite)
        return KFACState(params, tuple(momentum), curvature, average), info

    def _layers(self, objective: Layered, params: Any) -> tuple[Layer, ...]:
        """The layers, with as much of their output factors as is asked for."""
        layers = objective.layers(params)
        if self.output_factors == "full":
            return layers
        return tuple(layer._replace(diagonal_output=True) for layer in layers)

    def _rate(self, now: Array) -> Array:
        """Step size of a step."""
        if self.horizon is None:
            return self.step_size * jnp.sqrt(self.plateau / jnp.maximum(now, self.plateau))
        return self.step_size * jnp.clip(2 * (1 - now / self.horizon), 0.0, 1.0)

    def _window(self, now: Array) -> Array:
        """Steps in the average."""
        window = jnp.minimum(DECAY.averaged_share * now, self.average_window)
        if self.horizon is None:
            return window
        return jnp.minimum(window, DECAY.averaged_share * jnp.maximum(self.horizon - now, 0.0))

    def _clipped(self, update: Array, norm: Array, rows: Array) -> Array:
        """Factor that keeps an update within ``clip`` times the size that noise alone has."""
        noise = (update.size / rows) ** 0.5
        return jnp.minimum(1.0, self.clip * noise / (norm + jnp.finfo(norm.dtype).tiny))

    def _decayed(
        self, layer: Layer, roots: tuple[Array, Array], matrix: Array, update: Array, now: Any
    ) -> Array:
        """The update with the preconditioned slope of the L2 penalty, every few steps.

        The slope is dense: its product with the roots costs as much as the rest of a step. It is
        taken once in ``period`` steps and so much stronger, always at the parameters of the step:
        an old one would go on pulling past its minimum. A penalty so strong that a longer pull
        could overshoot acts at every step. The clip, which the caller applies to the sum, is
        meant for the gradient alone and divided out.
        """
        if layer.decay == 0:
            return update
        step, rate, clip = now
        strength = layer.decay * rate * _largest(roots[0]) * _largest(roots[1])
        period = jnp.clip(DECAY.gentle_pull / strength, 1, DECAY.longest_period).astype(jnp.int32)

        def pull() -> Array:
            slope = layer.decay * (matrix.at[-1].set(0.0) if layer.bias else matrix)
            weight = period.astype(slope.dtype) / clip
            return update + weight * _both_sides(roots[0], slope, roots[1])

        return jax.lax.cond(step % period == 0, pull, lambda: update)

    def _renewed(
        self, problem: Problem, objective: Layered, state: KFACState, resources: Any, step: Array
    ) -> KroneckerFactors:
        """Factors and roots of this step; both are renewed more often in the early phase."""
        early = 2 * step < self.plateau
        factor_due = step % jnp.where(early, max(1, self.factor_every // 3), self.factor_every) == 0
        root_due = step % jnp.where(early, max(1, self.root_every // 6), self.root_every) == 0
        memory = jnp.where(early, max(self.factor_memory - 0.1, 0.0), self.factor_memory)
        memory = jnp.where(step == 0, 0.0, memory)
        curvature = state.curvature

        def estimate() -> tuple[Any, Any]:
            batch, key = problem.sample(resources, step, 1, self.factor_rows)
            layers = self._layers(objective, state.params)
            new_in, new_out = cut(
                objective,
                lambda b: layer_factors(objective, state.params, b, key, layers=layers),
                batch,
            )
            keep = memory.astype(new_out[0].dtype)
            old = (curvature.input_factors, curvature.output_factors)
            return jax.tree.map(lambda a, b: keep * a + (1 - keep) * b, old, (new_in, new_out))

        def renew() -> KroneckerFactors:
            old = curvature.input_factors, curvature.output_factors
            factors = jax.lax.cond(factor_due, estimate, lambda: old)

            def decompose() -> Any:
                leaves, structure = jax.tree.flatten(factors)
                roots = each_on_one(lambda factor: _inverse_root(factor, self.damping), leaves)
                return structure.unflatten(roots)

            roots_before = curvature.input_roots, curvature.output_roots
            roots = jax.lax.cond(root_due, decompose, lambda: roots_before)
            renewed = KroneckerFactors(*factors, *roots)
            return select(all_finite(renewed), renewed, curvature)

        # One branch around both: what enters the decomposition is transposed to its layout, and
        # that must not happen at every step.
        return jax.lax.cond(factor_due | root_due, renew, lambda: curvature)


def _inverse_root(factor: Array, damping: float) -> Array:
    """``(factor + damping mean(eigenvalues))^(-1/2)``; a row holds a diagonal factor."""
    if factor.size == 0:
        return factor
    tiny = jnp.finfo(factor.dtype).tiny
    if factor.shape[0] == 1:
        return (factor + damping * jnp.mean(factor) + tiny) ** -0.5
    values, vectors = jnp.linalg.eigh(factor)
    values = jnp.maximum(values, 0.0)
    lifted = values + damping * jnp.mean(values) + tiny
    return (vectors * lifted[None, :] ** -0.5) @ vectors.T


def _largest(root: Array) -> Array:
    """An entry on the diagonal is at most the largest eigenvalue, and of its order."""
    if root.size == 0:
        return jnp.ones((), root.dtype)
    return jnp.max(root if root.shape[0] == 1 else jnp.diagonal(root))


def _both_sides(left: Array, matrix: Array, right: Array) -> Array:
    product = matrix if left.size == 0 else left @ matrix
    return product * right if right.shape[0] == 1 else product @ right


def _preconditioned(layer: Layer, roots: tuple[Array, Array], rows: Array, deltas: Array) -> Array:
    """The preconditioned gradient of one layer, the left root applied to the thinner side."""
    left, right = roots
    deltas = deltas * right if right.shape[0] == 1 else deltas @ right
    if layer.white_input:
        return rows.T @ deltas
    if rows.shape[0] > deltas.shape[1]:
        return left @ (rows.T @ deltas)
    # The root is symmetric: from this side the outer product needs no transposed copy.
    return (left @ rows.T) @ deltas
