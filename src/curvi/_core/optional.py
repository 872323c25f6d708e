"""Optional libraries, imported when they are first used."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType

import jax

from curvi._core.errors import MissingDependencyError


def optional_import(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module of an optional library, or say how to install it.

    Raises
    ------
    MissingDependencyError
        Naming the library, what wanted it, and the extra that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.split(".", maxsplit=1)[0]
        raise MissingDependencyError(
            f"{purpose} needs {library}, which cannot be imported ({error}); install it with "
            f'pip install "curvi[{extra}]"'
        ) from error


@contextlib.contextmanager
def usual_promotion() -> Iterator[None]:
    """Let other libraries mix dtypes and ranks, whatever the user's own settings forbid.

    NumPyro and PyMC are written for JAX's defaults; under strict promotion even
    ``Normal(0, 10)`` fails inside them.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
