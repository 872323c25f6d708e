"""Results for other libraries, imported when a user asks for them."""

from __future__ import annotations

from typing import Any


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
