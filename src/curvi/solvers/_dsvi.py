"""DSVI: doubly stochastic variational inference, the paper's first-order baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import optax
from jaxtyping import Array

from curvi._core import validation
from curvi.linalg import all_finite, select
from curvi.solvers._method import CheapSteps, Info, Problem, make_info


class DSVIState(NamedTuple):
    """Only the parameters; the learning rate is a function of the step."""

    params: Any


@dataclass(frozen=True)
class DSVI(CheapSteps):
    r"""Plain stochastic gradient ascent in (mu, R) with decaying learning rates.

    .. math::

        \mu \leftarrow \mu + \rho_t \nabla_z \log p(z), \qquad
        R \leftarrow R + c\,\rho_t \big(\nabla_z \log p(z)\, \epsilon^\top + \Delta_R\big)

    with :math:`\Delta_R = \mathrm{diag}(1/R_{ii})`, the gradient of the entropy, and
    :math:`\rho_t = \rho_0\, d^{\lfloor t / T \rfloor}`. The steps are taken in the entries of R
    themselves, not in their logarithms; a diagonal entry that would turn negative is reflected,
    which leaves its distribution as it is. There is no stopping rule.

    Parameters
    ----------
    learning_rate : float
        :math:`\rho_0`. It matters a lot and depends on the scale of the data.
    decay, decay_steps : float, int
        The factor d applied every T steps.
    scale_factor : float
        c, by which the steps in R are smaller.

    References
    ----------
    Titsias and Lazaro-Gredilla (2014), *Doubly stochastic variational Bayes for non-conjugate
    inference*.
    """

    learning_rate: float = 0.01
    decay: float = 0.95
    decay_steps: int = 1000
    scale_factor: float = 0.1

    def __post_init__(self) -> None:
        """Validate rates."""
        validation.positive_number(self.learning_rate, "learning_rate")
        validation.positive_number(self.decay, "decay")
        validation.positive_integer(self.decay_steps, "decay_steps")
        validation.positive_number(self.scale_factor, "scale_factor")

    def init(self, problem: Problem, params: Any, resources: Any) -> DSVIState:
        """No state but the parameters."""
        return DSVIState(params)

    def step(
        self, problem: Problem, state: DSVIState, resources: Any, step: Array, tolerance: Array
    ) -> tuple[DSVIState, Info]:
        """One stochastic gradient in the entries of R, one decayed step."""
        sample = problem.sample(resources, step)
        raw = problem.to_raw(state.params)
        value, gradient = jax.value_and_grad(lambda r: problem.value(problem.from_raw(r), sample))(
            raw
        )
        drops = (step // self.decay_steps).astype(value.dtype)
        rate = self.learning_rate * self.decay**drops
        raw_params = self._move(raw, gradient, rate)
        proposal = DSVIState(problem.from_raw(raw_params))
        finite = all_finite(value, gradient, proposal)
        info = make_info(value, grad_norm=optax.tree.norm(gradient), accepted=finite, finite=finite)
        return select(finite, proposal, state), info

    def _move(self, raw: Any, gradient: Any, rate: Array) -> Any:
        """Move the mean by rho and R by c rho; an objective that is no bound has no R."""
        if not (hasattr(raw, "mean") and hasattr(raw, "scale_params")):
            return optax.tree.add_scale(raw, -rate, gradient)
        mean = raw.mean - rate * gradient.mean
        scale = jax.tree.map(
            lambda r, g: r - self.scale_factor * rate * g, raw.scale_params, gradient.scale_params
        )
        return raw._replace(mean=mean, scale_params=scale)
