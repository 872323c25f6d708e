"""How a run ends, and what curvi raises: outcome codes, exceptions, warnings.

Each message says what is wrong, where, and what to do.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import signal
import sys
import warnings
from functools import cache
from types import ModuleType, TracebackType
from typing import Any

from curvi._core.text import printable


class CurviError(Exception):
    """Anything that curvi raises on purpose.

    Its text may repeat names from files or models; control characters in them are escaped.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


class InputError(CurviError, ValueError):
    """The input failed validation, before any computation."""


class MissingDependencyError(CurviError, ImportError):
    """An optional library is needed for this call; the message names the extra to install."""


class MemoryBudgetError(CurviError, MemoryError):
    """An array would take more than the memory budget; nothing was allocated."""


class _Carrier(BaseException):
    """An exception or warning with a result, which must not keep it from leaving a process."""

    def __init__(self, message: str = "", result: Any = None) -> None:
        super().__init__(message)
        self.result = result

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the result, or what is left of one that pickle cannot carry."""
        others = {name: value for name, value in vars(self).items() if name != "result"}
        return type(self), (str(self), portable(self.result)), others


class NumericalError(_Carrier, CurviError, ArithmeticError):
    """A computation failed numerically.

    Parameters
    ----------
    message : str
        What failed, where, and what to do.
    result : object, optional
        Whatever had been computed when it failed, so that nothing is lost. It is kept as the
        attribute of the same name, also through ``pickle`` and ``copy``. Of a fit with a lambda or
        a local function, which pickle cannot carry, the data are kept.
    """


class Interrupted(_Carrier, KeyboardInterrupt):
    """Ctrl-C, with what had been computed before it.

    It is a ``KeyboardInterrupt``: ``except Exception`` lets it pass, so that loops and
    cross-validation stop.

    Parameters
    ----------
    message : str
        What was interrupted, and where the rest is kept.
    result : object, optional
        Whatever had been computed, kept as the attribute of the same name.
    """

    def __init__(self, message: str = "", result: Any = None) -> None:
        super().__init__(message, result)
        _exit_with_130()


@cache
def _exit_with_130() -> None:
    """Let a script that Ctrl-C has ended say so by its code.

    Python itself does that for ``KeyboardInterrupt``, but not for exceptions derived from it.
    """
    before = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        before(kind, error, traceback)
        if isinstance(error, KeyboardInterrupt):
            sys.exit(128 + signal.SIGINT)

    sys.excepthook = hook


class Terminated(_Carrier, SystemExit):
    """SIGTERM, after the checkpoint of the call was written; the process ends with code 143.

    Parameters
    ----------
    message : str
        Where the checkpoint is.
    result : object, optional
        Whatever had been computed, kept as the attribute of the same name.
    """

    def __init__(self, message: str = "", result: Any = None) -> None:
        super().__init__(message, result)
        self.code = 128 + signal.SIGTERM


class NotConvergedWarning(_Carrier, UserWarning):
    """A run ended without convergence, or was interrupted, and its result was returned.

    Parameters
    ----------
    message : str
        How the run ended, and what to do.
    result : object, optional
        The result that is returned, kept as the attribute of the same name: it is not lost
        where warnings are errors.
    """


class MisfitWarning(_Carrier, UserWarning):
    """A run converged, but the fitted distribution does not match the target.

    Parameters
    ----------
    message : str
        What does not match, and what to do.
    result : object, optional
        The result that is returned, kept as the attribute of the same name.
    """


class Outcome(enum.IntEnum):
    """How a run ended; ``outcome.sentence`` says what it means and what to do."""

    RUNNING = 0
    CONVERGED = 1
    BUDGET = 2
    STALLED = 3
    NON_FINITE = 4
    DIVERGED = 5
    INTERRUPTED = 6
    IMPRECISE = 7

    def __str__(self) -> str:
        """The word, such as CONVERGED."""
        return self.name

    def __format__(self, spec: str) -> str:
        """The word; the number where the format asks for one, as ``d`` does."""
        return format(int(self) if spec[-1:] in ("d", "n") else self.name, spec)

    @property
    def sentence(self) -> str:
        """What the code means, and what to do about it."""
        return _SENTENCES[self]

    @property
    def is_failure(self) -> bool:
        """Whether this is a numerical failure, as opposed to an end that the user asked for."""
        return self in (Outcome.STALLED, Outcome.NON_FINITE, Outcome.DIVERGED)


_SENTENCES = {
    Outcome.RUNNING: "The run has not ended.",
    Outcome.CONVERGED: (
        "Converged: the gain left is below the tolerance (on fresh samples: its standard error)."
    ),
    Outcome.BUDGET: (
        "The budget of steps or time ran out before convergence was established; "
        "raise max_steps or time_budget, or loosen tolerance."
    ),
    Outcome.STALLED: (
        "No acceptable step was found although the gradient is not small; check the log density "
        "for discontinuities, try float64, another start or another family."
    ),
    Outcome.NON_FINITE: (
        "The objective turned non-finite again and again; the last finite state is returned. "
        "Check the log density for overflow, log of zero or unbounded support."
    ),
    Outcome.DIVERGED: (
        "The objective ended far worse than it started; the method is not suited to this problem "
        "as configured. Try method=TrustRegion(), larger batches or more draws."
    ),
    Outcome.INTERRUPTED: (
        "Interrupted by the user; the last state is returned. Start again from its mean with "
        "position=, or use it as it is."
    ),
    Outcome.IMPRECISE: (
        "Converged on its draws, but they are too few: their Monte-Carlo error is above the "
        "tolerance. Pass a larger num_draws, or choose a family with fewer parameters."
    ),
}


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


def warn_user(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn with the line of the caller outside curvi, however deep inside the call is.

    A warning that is given as an object keeps its own category and what it carries.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    shown = printable(message, keep="\n") if isinstance(message, str) else message
    warnings.warn(shown, category, stacklevel=level)


def portable(result: Any) -> Any:
    """A result, or what is left of it where pickle cannot carry it."""
    return result.portable() if hasattr(result, "portable") else result


def keep_result(error: BaseException, result: Any) -> None:
    """Attach what there is to an exception out of the user's code, whose type stays its own."""
    with contextlib.suppress(AttributeError):  # an exception with __slots__ takes nothing
        if not hasattr(error, "curvi_result"):
            error.add_note("curvi: what had been computed is kept as .curvi_result of this error")
        if hasattr(result, "carried"):  # a worker process must be able to send the error home
            object.__setattr__(result, "carried", True)
        error.curvi_result = result  # type: ignore[attr-defined]


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in (__name__.partition(".")[0], "contextlib")
