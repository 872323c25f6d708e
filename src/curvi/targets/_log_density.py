"""A target given by its log density."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.fingerprint import fingerprint
from curvi.targets._density import Density
from curvi.targets._labels import Labels


@dataclass(frozen=True, eq=False)
class Target:
    r"""An unnormalised log density over a pytree of unconstrained real numbers.

    Parameters
    ----------
    log_density : callable
        ``log_density(position) -> scalar``, :math:`\log p(z) + \text{const}`, written in JAX.
    position : pytree of floating-point arrays
        Its *value* is where the variational mean starts; its structure is that of every result.
    constrain : callable, optional
        Maps an unconstrained position to the user's own space (default: they are the same).
    labels : Labels, optional
        Names of axes and observed data, for tables and ArviZ.

    Raises
    ------
    InputError
        If the position is empty, not floating point or not finite, or if the log density does
        not return one floating-point scalar.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> target = Target(lambda x: -0.5 * jnp.sum(x["a"] ** 2), {"a": jnp.zeros(3)})
    >>> target.dimension
    3
    """

    log_density: Callable[[PyTree], Float[Array, ""]]
    position: PyTree
    constrain: Callable[[PyTree], PyTree] | None = None
    labels: Labels | None = field(default=None, repr=False)
    start: Float[Array, " dimension"] = field(init=False, repr=False)
    density: Density = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Pass the gate."""
        start, unravel = validation.flat_position(self.position)
        if not callable(self.log_density):
            raise InputError("log_density is not callable; give a function of the position")
        object.__setattr__(self, "start", start)
        reads = fingerprint(self.log_density)
        density = Density(self.log_density, unravel, start.dtype, reads)
        object.__setattr__(self, "density", density)
        jax.eval_shape(density.log_prob, start)  # traces once, and checks what comes back

    @property
    def dimension(self) -> int:
        """Number of scalar coordinates."""
        return int(self.start.shape[0])

    @property
    def dtype(self) -> Any:
        """Precision of the whole computation, taken from the position."""
        return self.start.dtype

    @property
    def rows(self) -> None:
        """A plain log density has no rows."""
        return None

    def log_prob(self, z: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log density of a flat position."""
        return self.density.log_prob(z)

    def check_start(self) -> None:
        """Evaluate the log density once at the start and refuse it if it is not finite."""
        value = np.asarray(self.log_prob(self.start))
        if not np.isfinite(value):
            raise InputError(
                f"log_density is {value} at the starting position; start inside the support and "
                "check for log of zero, division by zero or overflow"
            )
