"""Results for other libraries, and what is left of one where pickle cannot carry its functions."""

from __future__ import annotations

import functools
import os
import sys
import types
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import PyTree

from curvi._core import validation
from curvi._core.errors import Outcome
from curvi._core.trees import ArrayState, precision_of
from curvi.diagnostics._evaluation import variance_of_draws
from curvi.families import Family, Params
from curvi.objective import Draws
from curvi.paper.concentration import VarianceReport
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


class Exports:
    """The methods of a result that hand it to another library."""

    def to_arviz(self: Any, num_draws: int = 1000, *, seed: int = 0) -> Any:
        """Draws and the verdict for ArviZ 0.x or 1.x: see :func:`curvi.interop.to_arviz`."""
        from curvi.interop import to_arviz

        return to_arviz(self, num_draws, seed=seed)

    def to_blackjax(self: Any, num_chains: int = 4, *, seed: int = 0) -> Any:
        """What BlackJAX's NUTS starts from: see :func:`curvi.interop.to_blackjax`."""
        from curvi.interop import to_blackjax

        return to_blackjax(self, num_chains, seed=seed)

    def report(
        self: Any,
        path: str | os.PathLike[str],
        *,
        names: list[str] | None = None,
        title: str | None = None,
        observed: Any = None,
        replicated: Any = None,
    ) -> Path:
        """Write a page for a browser that stands alone, and its numbers as JSON beside it.

        The verdict in plain words, estimates with intervals and the probability of their
        direction, checks, convergence, and how to repeat the fit. With ``observed`` and
        ``replicated`` also whether the model describes the data.

        Parameters
        ----------
        path : path
            The page, as in ``report.html``; an earlier report of that name is replaced.
        names : list of str, optional
            One name for every number in ``mean``.
        title : str, optional
            Title of the page.
        observed : array, (rows,), optional
            The responses that were fitted.
        replicated : array, (draws, rows), optional
            Responses drawn from the posterior predictive distribution.

        Returns
        -------
        Path
            The page.

        Raises
        ------
        InputError
            If names or shapes do not fit, or the file is there and is no report.
        OSError
            If a file cannot be written.
        """
        from curvi.diagnostics._report import FitPage
        from curvi.report import write_report

        return write_report(FitPage(self, names, (observed, replicated)).report(title), path)

    def draw_report(
        self: Any, num_draws: int = 256, *, lipschitz: float = float("inf"), seed: int = 0
    ) -> VarianceReport:
        """Variance, over single independent draws, of the log density and of its gradient.

        Measured with ``num_draws`` draws, beside the inequalities of Theorem 2 where ``lipschitz``
        is given, a proved constant of the log density in the noise
        (:mod:`curvi.paper.concentration`).
        """
        validation.positive_integer(num_draws, "num_draws")
        with precision_of(self.target.dtype):
            return variance_of_draws(
                self.target, self.family, self.params, max(2, num_draws), lipschitz, seed
            )
