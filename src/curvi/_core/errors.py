"""The exceptions of curvi: each message says what is wrong, where, and what to do."""

from __future__ import annotations

import sys
import warnings
from typing import Any


class CurviError(Exception):
    """Anything that curvi raises on purpose."""


class InputError(CurviError, ValueError):
    """The input failed validation, before any computation."""


class MissingDependencyError(CurviError, ImportError):
    """An optional library is needed for this call; the message names the extra to install."""


class NumericalError(CurviError, ArithmeticError):
    """A computation failed numerically.

    Parameters
    ----------
    message : str
        What failed, where, and what to do.
    result : object, optional
        Whatever had been computed when it failed, so that nothing is lost. It is kept as the
        attribute of the same name, also through ``pickle`` and ``copy``.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class NotConvergedWarning(UserWarning):
    """A run ended without convergence, and its result was returned all the same."""


class MisfitWarning(UserWarning):
    """A run converged, but the fitted distribution does not match the target."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn with the line of the caller outside curvi, however deep inside the call is."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]
