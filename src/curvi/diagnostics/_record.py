"""What is left of a result whose functions pickle cannot carry."""

from __future__ import annotations

import functools
import sys
import types
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from jaxtyping import PyTree

from curvi._core.errors import Outcome
from curvi._core.trees import ArrayState
from curvi.families import Family, Params
from curvi.objective import Draws
from curvi.solvers import Method
from curvi.targets import AbstractTarget


@dataclass(frozen=True, eq=False)
class FitRecord(ArrayState):
    """The data of a fit without its target, which held a lambda or a local function.

    An exception that leaves a worker process carries it in place of the
    :class:`~curvi.FitResult`: pickle cannot carry such functions, and would lose the exception.
    Define them at the top level of a module to get the whole result.

    Attributes
    ----------
    family, method, params, outcome, message, elbo, elbo_se
        As those of a :class:`~curvi.FitResult`.
    trace, draws, steps, seconds, interrupted
        Likewise.
    mean, sd : pytree
        Posterior moments in the user's space.
    """

    family: Family
    method: Method
    params: Params = field(repr=False)
    outcome: Outcome
    message: str
    elbo: float
    elbo_se: float
    trace: dict[str, np.ndarray] = field(repr=False)
    draws: Draws
    steps: int
    seconds: float
    interrupted: bool
    mean: PyTree
    sd: PyTree

    @property
    def converged(self) -> bool:
        """Whether the fit converged."""
        return self.outcome is Outcome.CONVERGED


class Portable(ArrayState):
    """A result of a fit that an exception can carry out of a process."""

    target: AbstractTarget
    carried: ClassVar[bool] = False  # set on a result that a user's own exception carries

    def portable(self) -> Any:
        """The result itself where pickle can carry its functions, and else its data."""
        options: Any = fields(self.target)  # type: ignore[arg-type]
        if all(importable(getattr(self.target, entry.name)) for entry in options):
            return self
        return FitRecord(**{entry.name: getattr(self, entry.name) for entry in fields(FitRecord)})

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the data alone where the exception would otherwise be lost."""
        whole = self.portable() if self.carried else self
        return super().__reduce_ex__(protocol) if whole is self else (_itself, (whole,))


def _itself(record: FitRecord) -> FitRecord:
    return record


def importable(fn: Any) -> bool:
    """Whether pickle finds a function by its name; of a partial or a method, what it is made of."""
    if isinstance(fn, functools.partial):
        return all(importable(part) for part in (fn.func, *fn.args, *fn.keywords.values()))
    if isinstance(fn, types.MethodType):
        return importable(type(fn.__self__))
    if not isinstance(fn, types.FunctionType | type):
        return True
    home = sys.modules.get(fn.__module__)
    try:
        return functools.reduce(getattr, fn.__qualname__.split("."), home) is fn
    except AttributeError:
        return False
