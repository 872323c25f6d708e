"""What a model of another library knows beyond its density: names of axes and the observed data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Labels:
    """Names for the arrays of a result; none of them enters the computation.

    Attributes
    ----------
    dims : mapping
        Names of the axes of a variable, as ArviZ calls them.
    coords : mapping
        Values along a named axis.
    observed : mapping
        The data that the model was conditioned on.
    """

    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)
    observed: Mapping[str, np.ndarray] = field(default_factory=dict)
