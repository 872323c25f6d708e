"""What a fit gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi.core import gate
from curvi.core.outcomes import Outcome
from curvi.core.trees import coordinate_names, precision_of
from curvi.expectation import Draws, fixed_draws
from curvi.families import Family, Params
from curvi.methods import Method
from curvi.results.table import summary_table
from curvi.targets import DataTarget, Target

_MOMENT_DRAWS = 4096  # for means and sds through a non-linear constraint


@dataclass(frozen=True, eq=False)
class FitResult:
    """A fitted variational posterior, and whether to trust it.

    Attributes
    ----------
    outcome, message : Outcome, str
        How the fit ended, and one sentence.
    elbo, elbo_se : float
        Evidence lower bound on fresh draws, and its standard error.
    trace : dict of arrays
        One entry per step: step, seconds (without compilation), elbo (on that step's sample),
        grad_norm, gain, cg_steps, accepted, finite, negative_curvature.
    params : Params
        Variational parameters in the flat, unconstrained space.
    draws : Draws
        The plan of draws that was used.
    seconds : float
        Wall-clock time of the whole call, compilation included.
    """

    target: Target | DataTarget = field(repr=False)
    family: Family
    method: Method
    params: Params = field(repr=False)
    outcome: Outcome
    message: str
    elbo: float
    elbo_se: float
    trace: dict[str, np.ndarray] = field(repr=False)
    draws: Draws
    steps: int
    seconds: float

    @property
    def converged(self) -> bool:
        """Whether the method's stopping rule was met and the bound is finite on fresh draws."""
        return self.outcome is Outcome.CONVERGED

    def _to_user(self, z: Float[Array, " dimension"]) -> PyTree:
        position = self.target.density.unravel(z)
        return position if self.target.constrain is None else self.target.constrain(position)

    @cached_property
    def _moments(self) -> tuple[PyTree, PyTree]:
        if self.target.constrain is None:
            with precision_of(self.target.dtype):
                sd = self.family.sd(self.params)
                return self._to_user(self.params.mean), self._to_user(sd)
        with precision_of(self.target.dtype):
            draws = self._sample_for_moments()
            return (
                jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), draws),
                jax.tree.map(lambda leaf: jnp.std(leaf, axis=0, ddof=0), draws),
            )

    def _sample_for_moments(self) -> PyTree:
        """Draws whose first two moments are exact, so that linear functions have no noise."""
        width = self.family.num_noise(self.target.dimension)
        kind = "whitened" if width < _MOMENT_DRAWS // 4 else "normalised"
        plan = Draws(kind, _MOMENT_DRAWS)
        noise = fixed_draws(
            jax.random.key(0), plan, width, self.family.base, self.params.mean.dtype
        )
        flat = jax.vmap(lambda e: self.family.transform(self.params, e))(noise)
        return jax.vmap(self._to_user)(flat)

    @property
    def mean(self) -> PyTree:
        """Posterior mean in the user's space."""
        return self._moments[0]

    @property
    def sd(self) -> PyTree:
        """Posterior standard deviations in the user's space."""
        return self._moments[1]

    def covariance(self) -> Float[Array, "dimension dimension"]:
        """Dense covariance of the unconstrained coordinates, in flattening order."""
        with precision_of(self.target.dtype):
            return self.family.covariance(self.params)

    def sample(self, num_draws: int, seed: int = 0) -> PyTree:
        """Draws from q in the user's space, with a leading axis."""
        gate.positive_integer(num_draws, "num_draws")
        with precision_of(self.target.dtype):
            flat = _sample(self.family, self.params, jax.random.key(seed), num_draws)
            return jax.vmap(self._to_user)(flat)

    def to_arviz(self, num_draws: int = 1000, *, seed: int = 0) -> Any:
        """Draws and the verdict as an ArviZ InferenceData (0.x) or a DataTree (1.x).

        See :func:`curvi.results.arviz_door.to_arviz`.
        """
        from curvi.results.arviz_door import to_arviz

        return to_arviz(self, num_draws, seed=seed)

    def to_blackjax(self, num_chains: int = 4, *, seed: int = 0) -> Any:
        """Log density, starting positions and inverse mass matrix for BlackJAX's NUTS.

        See :func:`curvi.results.blackjax_door.to_blackjax`.
        """
        from curvi.results.blackjax_door import to_blackjax

        return to_blackjax(self, num_chains, seed=seed)

    def summary(self, names: list[str] | None = None) -> str:
        """The verdict, the bound, and a table of means and sds, with your names if given."""
        return summary_table(
            verdict=("converged" if self.converged else "NOT CONVERGED", self.message),
            facts={
                "ELBO": f"{self.elbo:.4f} (se {self.elbo_se:.4f})",
                "family": f"{self.family}, {self.draws.num_draws} {self.draws.kind} draws"
                + (", fresh every step" if self.draws.fresh else ", fixed"),
                "method": f"{self.method}, {self.steps} steps, {self.seconds:.2f} s",
            },
            names=coordinate_names(self.mean) if names is None else names,
            columns={"mean": _flat(self.mean), "sd": _flat(self.sd)},
        )

    def plot(self, names: list[str] | None = None) -> Any:
        """Figure with the bound against time, and means with intervals of two sds."""
        from curvi.plots import plot_fit

        return plot_fit(
            self.trace,
            names=coordinate_names(self.mean) if names is None else names,
            mean=_flat(self.mean),
            sd=_flat(self.sd),
            title=f"{type(self.family).__name__}: {self.outcome.name.lower()}",
        )


def _flat(tree: PyTree) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)])


@partial(jax.jit, static_argnames=("family", "num_draws"))
def _sample(
    family: Family, params: Params, key: PRNGKeyArray, num_draws: int
) -> Float[Array, "draws dimension"]:
    shape = (num_draws, family.num_noise(params.mean.shape[0]))
    noise = family.base.sample(key, shape, params.mean.dtype)
    return jax.vmap(lambda e: family.transform(params, e))(noise)
