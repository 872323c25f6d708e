"""Results for other libraries, imported when a user asks for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from curvi._core import validation
from curvi._core.trees import precision_of
from curvi.diagnostics._evaluation import variance_of_draws
from curvi.paper.concentration import VarianceReport


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
