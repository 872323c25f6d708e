"""How far group effects are centred, decided by a first fit."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from scipy import linalg

from curvi._core.compilation import SizedJit
from curvi._core.programs import trace
from curvi._core.trees import on_device, precision_of, ravel
from curvi.families import HostMap
from curvi.targets import AbstractTarget


class Recentred:
    """A target in the form that suits what the data say about each group effect.

    Parameters
    ----------
    plain : AbstractTarget
        The target as it was given, its effects as standard noise.
    degrees : dict
        Degrees of centring, by name of the noise.
    """

    def __init__(self, plain: AbstractTarget, degrees: dict[str, np.ndarray]) -> None:
        assert plain.centring is not None  # noqa: S101  for the type checker
        self.plain, self.degrees, self.forms = plain, degrees, plain.centring
        with precision_of(plain.dtype):
            self.target: AbstractTarget = self.forms.target(degrees)
            none = self.forms.none(plain.position)
            self._program = trace(self._moved, plain.start, degrees, none)

    @classmethod
    def by(
        cls, target: AbstractTarget, place: HostMap, *, least_degree: float = 0.3
    ) -> Recentred | None:
        r"""The form that a Gaussian q of the target asks for; None for the one it has.

        The noise of an effect has a known precision before any data; what its precision given all
        else, :math:`\Lambda_{jj}`, has more than that comes from the data. The degree is its share.

        ``least_degree``: degree that some effect must have to be worth another run.
        """
        forms = target.centring
        if forms is None:
            return None
        inverse = linalg.solve_triangular(place.factor, np.eye(len(place.factor)), lower=True)
        precision = np.empty(len(inverse))
        precision[place.order] = np.sum(inverse**2, axis=0)
        given = target.density.unravel.on_host(precision)
        degrees = {
            name: np.clip(1 - before / given[name], 0.0, 1.0)
            for name, before in forms.precisions.items()
        }
        if max(float(degree.max(initial=0.0)) for degree in degrees.values()) < least_degree:
            return None
        return cls(target, degrees)

    def there(self, positions: np.ndarray) -> np.ndarray:
        """Positions of the plain target in this form, one per row."""
        return self._in_blocks(positions, self.forms.none(self.plain.position), self.degrees)

    def back(self, positions: np.ndarray) -> np.ndarray:
        """Positions of this form as those of the plain target."""
        return self._in_blocks(positions, self.degrees, self.forms.none(self.plain.position))

    def _in_blocks(
        self, positions: np.ndarray, degrees: Any, others: Any, *, block: int = 256
    ) -> np.ndarray:
        found = np.empty_like(positions)
        with precision_of(self.plain.dtype), np.errstate(over="ignore"):
            put = partial(on_device, dtype=self.plain.dtype)
            degrees, others = jax.tree.map(put, (degrees, others))
            for begin in range(0, len(positions), block):
                part = positions[begin : begin + block].astype(self.plain.dtype)
                padded = np.concatenate([part, np.repeat(part[-1:], block - len(part), axis=0)])
                moved = _all_moved(0.0, self._program, on_device(padded), degrees, others)
                found[begin : begin + block] = np.asarray(moved)[: len(part)]
        return found

    def _moved(self, z: Any, degrees: Any, others: Any) -> Any:
        return ravel(self.forms.moved(self.plain.density.unravel(z), degrees, others))


_all_moved = SizedJit(
    lambda program, positions, degrees, others: jax.vmap(lambda z: program(z, degrees, others))(
        positions
    )
)
