"""What a model of another library can get wrong without a word from JAX."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.experimental import checkify

from curvi._core.errors import InputError, warn_user
from curvi._core.programs import CachedValues, Program
from curvi._core.trees import leaf_names
from curvi._core.validation import refuse_masked, refuse_overflow

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def shapes_of(position: dict[str, Any]) -> Shapes:
    """Names and shapes of the free variables."""
    return tuple((name, np.shape(value)) for name, value in sorted(position.items()))


def check_position(position: Any, expected: Shapes) -> None:
    """Raise InputError for a position of other variables: a model would draw those it misses."""
    shapes = shapes_of(position) if isinstance(position, dict) else ()
    if shapes != expected:
        listed = ", ".join(f"{name} {shape}" for name, shape in expected)
        given = ", ".join(f"{name} {shape}" for name, shape in shapes) or type(position).__name__
        raise InputError(
            f"the position has {given}, but the unconstrained variables of the model are {listed}; "
            "give those, or build the target from the other model"
        )


def check_arguments(tree: Any, name: str) -> None:
    """Raise InputError for arrays of NumPy among a model's arguments that JAX would misread."""
    try:
        named = zip(leaf_names(tree, name), jax.tree.leaves(tree), strict=True)
    except (TypeError, ValueError):  # a dict whose keys have no order: the model may take it
        return
    for leaf_name, leaf in named:
        if isinstance(leaf, np.ndarray | np.generic):
            refuse_masked(leaf, leaf_name)
            refuse_overflow(np.asarray(leaf), leaf_name)


def check_observed(name: str, site: dict[str, Any], values: np.ndarray) -> None:
    """Raise InputError for an observed number that the distribution of its site cannot give.

    A support with bounds that the model computes is not known before a fit; its data must be
    numbers, and integers if it is discrete. What is masked may be anything.
    """
    from numpyro import distributions as dist

    family = site["fn"]
    while isinstance(family, dist.Independent | dist.ExpandedDistribution):
        family = family.base_dist
    if isinstance(family, dist.MaskedDistribution):
        return
    support = getattr(site["fn"].support, "base_constraint", site["fn"].support)
    inside = ~np.isnan(values)
    if support.is_discrete:
        inside &= values == np.round(values)
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(support))
    if support.event_dim == 0 and not traced:
        inside &= np.asarray(support(values))
    if not inside.all():
        index = tuple(int(i) for i in np.argwhere(~inside)[0])
        entry = f"entry [{', '.join(map(str, index))}]" if index else "the value"
        kind = type(family).__name__.removesuffix("Probs").removesuffix("Logits")
        raise InputError(
            f"observed site {name!r}: {entry} is {values[index]}, outside the support of {kind}; "
            "correct or drop it, or use another distribution"
        )


def run_checked(function: Callable[..., Any], library: ModuleType) -> Any:
    """The value of a compiled function, with a warning for an index outside its array.

    JAX takes the nearest element in its place, in silence. An index that the library itself made
    is its own affair, and what the checker cannot look into is run without it.
    """
    value, outside = _checked_by(library)(function)
    if str(outside):
        warn_user(
            f"the model reads beyond the end of an array ({outside}), and "
            "JAX takes the nearest element; compare its indices and the sizes of its plates with "
            "the shapes of its arrays",
            UserWarning,
        )
    return value


@cache
def _checked_by(library: ModuleType) -> CachedValues:
    """Values of functions, and what they read outside of their arrays, in words."""

    def checked(program: Program) -> tuple[Any, str]:
        try:
            error, value = jax.jit(checkify.checkify(program, errors=checkify.index_checks))()
        except (NotImplementedError, TypeError, ValueError, KeyError, AssertionError):
            return jax.jit(program)(), ""
        outside = error.get_exception()
        known = outside is None or _made_by(library, outside)
        return value, "" if known else first_line(error.get())

    return CachedValues(checked)


def _made_by(library: ModuleType, error: Any) -> bool:
    """Whether the call came from the library: from the innermost frame that is not JAX's."""
    frames = traceback.walk_tb(error.traceback_info.as_python_traceback())
    files = [Path(frame.f_code.co_filename) for frame, _ in frames]
    homes = [Path(str(module.__file__)).parent for module in (jax, library)]
    outer = [file for file in files if homes[0] not in file.parents]
    return bool(outer) and homes[1] in outer[-1].parents


def first_line(text: object) -> str:
    """The first line of a message; JAX adds a page about its tracers."""
    return next(iter(str(text).splitlines()), "")[:300].rstrip(" .")
