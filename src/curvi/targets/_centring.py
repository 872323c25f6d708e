r"""Group effects between their own form and that of standard noise.

An effect x with location m and scale s can be inferred as itself (centred), as the noise
:math:`(x - m) / s` (not centred), or as anything between,

.. math:: y = \lambda m + s^{\lambda - 1} (x - m), \qquad 0 \le \lambda \le 1 .

Noise is the simple form where the data say little about x, x itself where they say much; the best
degree :math:`\lambda` is about the share of the information on x that comes from the data
(Papaspiliopoulos, Roberts and Sköld, 2003).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np

Degrees = Mapping[str, Any]


class Centring(abc.ABC):
    """The other forms of a posterior whose target infers group effects as standard noise.

    Attributes
    ----------
    precisions : mapping
        The precision that the noise of a variable has before any data, by its name in the position.
    """

    precisions: Mapping[str, float]

    @abc.abstractmethod
    def target(self, degrees: Degrees) -> Any:
        """The target of the same posterior with other degrees, arrays by name of the variable."""

    @abc.abstractmethod
    def moved(self, position: Any, degrees: Degrees, others: Degrees) -> Any:
        """The same place with other degrees; both may be traced."""

    def none(self, position: Any) -> dict[str, np.ndarray]:
        """No centring: the degrees that the target itself has."""
        return {name: np.zeros(np.shape(position[name])) for name in self.precisions}
