"""Results for other libraries, imported when a user asks for them."""

from __future__ import annotations

from typing import Any

from curvi._core import validation
from curvi._core.trees import precision_of
from curvi.concentration import VarianceReport
from curvi.diagnostics._evaluation import variance_of_draws


class Exports:
    """The methods of a result that hand it to another library."""

    def to_arviz(self: Any, num_draws: int = 1000, *, seed: int = 0) -> Any:
        """Draws and the verdict for ArviZ 0.x or 1.x: see :func:`curvi.interop.to_arviz`."""
        from curvi.interop._arviz import to_arviz

        return to_arviz(self, num_draws, seed=seed)

    def to_blackjax(self: Any, num_chains: int = 4, *, seed: int = 0) -> Any:
        """What BlackJAX's NUTS starts from: see :func:`curvi.interop.to_blackjax`."""
        from curvi.interop._blackjax import to_blackjax

        return to_blackjax(self, num_chains, seed=seed)

    def draw_report(
        self: Any, num_draws: int = 256, *, lipschitz: float = float("inf"), seed: int = 0
    ) -> VarianceReport:
        """Variance, over single independent draws, of the log density and of its gradient.

        Measured with ``num_draws`` draws, beside the inequalities of Theorem 2 where ``lipschitz``
        is given, a proved constant of the log density in the noise (:mod:`curvi.concentration`).
        """
        validation.positive_integer(num_draws, "num_draws")
        with precision_of(self.target.dtype):
            return variance_of_draws(
                self.target, self.family, self.params, max(2, num_draws), lipschitz, seed
            )
