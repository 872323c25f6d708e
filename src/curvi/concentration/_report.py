"""The bound next to what is measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi._core.errors import InputError
from curvi.concentration._inequalities import variance_bound


@dataclass(frozen=True)
class VarianceReport:
    """Variance of an estimate from one draw: of its value, bounded and measured; of its gradient.

    The bounds cover values only. For gradients the measured variance (its trace) stands alone.

    Attributes
    ----------
    value : float
        Measured variance of the value.
    gradient : float
        Measured trace of the covariance of the gradient in the variational parameters; nan
        where it was not asked for.
    lipschitz : float
        Constant of the value as a function of the standard Gaussian; infinite if none is known.
    sharp, paper : float
        ``L^2`` and ``L^2 pi^2 / 4`` (Theorem 2).
    """

    value: float
    gradient: float
    lipschitz: float

    @property
    def sharp(self) -> float:
        """The sharp bound of the variance of the value."""
        return variance_bound(self.lipschitz)

    @property
    def paper(self) -> float:
        """Theorem 2's bound of the variance of the value."""
        return variance_bound(self.lipschitz, constant="paper")

    def __str__(self) -> str:
        if math.isinf(self.lipschitz):
            bound = "no bound: the log density is not known to be Lipschitz"
        else:
            ratio = self.sharp / self.value if self.value > 0 else math.inf
            bound = f"at most {self.sharp:.4g} (L = {self.lipschitz:.4g}), {ratio:.3g} times that"
        return f"variance of one draw {self.value:.4g}; {bound}"


def measure_variance(
    fn: Callable[[Array], Array],
    noise: Float[Array, "draws dimension"],
    *,
    lipschitz: float = math.inf,
    gradient: Callable[[Array], Array] | None = None,
) -> VarianceReport:
    """Measure ``fn`` at independent draws of a standard Gaussian.

    Parameters
    ----------
    fn : callable
        One value per draw.
    noise : array, (draws, dimension)
        Independent draws; at least two.
    lipschitz : float
        A proved constant of ``fn``, if there is one.
    gradient : callable, optional
        A flat gradient per draw, whose total variance is measured as well.
    """
    if noise.shape[0] < 2:
        raise InputError(f"noise holds {noise.shape[0]} draws; a variance needs at least two")
    values = np.asarray(jax.vmap(fn)(noise), np.float64)
    total = math.nan
    if gradient is not None:
        rows = jax.vmap(gradient)(noise)
        total = float(jnp.sum(jnp.var(rows, axis=0, ddof=1)))
    return VarianceReport(float(values.var(ddof=1)), total, lipschitz)
