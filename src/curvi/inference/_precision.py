"""A float64 target is fitted in float64, also where JAX's default is float32."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from curvi._core.trees import precision_of
from curvi.targets import AbstractTarget

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_precision_of_target(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a function of a target inside JAX's local context for the precision of that target.

    A door that works in float64 (PyMC's default) makes such targets whatever JAX's setting is;
    a plain log density follows the setting, as the gate decides.
    """

    @functools.wraps(call)
    def inside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        given: Any = args[0] if args else kwargs.get("target")
        known = isinstance(given, AbstractTarget)
        with precision_of(given.dtype) if known else contextlib.nullcontext():
            return call(*args, **kwargs)

    return inside
