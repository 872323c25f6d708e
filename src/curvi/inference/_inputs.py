"""What ``fit`` and ``laplace`` accept as a target."""

from __future__ import annotations

from typing import Any

from jaxtyping import PyTree

from curvi._core.errors import InputError
from curvi.targets import AbstractTarget, Target


def as_target(target: Any, position: PyTree | None) -> AbstractTarget:
    """A target from a target, or from a plain log density with a position."""
    if isinstance(target, AbstractTarget):
        if position is None:
            return target
        return target.with_position(position)
    if not callable(target):
        raise InputError(
            f"target is a {type(target).__name__}; give a curvi.Target, a curvi.DataTarget or a "
            "log density with position="
        )
    if position is None:
        raise InputError("position is missing; a plain log density needs position= to start from")
    return Target(target, position)
