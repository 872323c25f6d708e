"""The policy that decides where the steps of a run are taken: on the host, or compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from curvi._core import validation
from curvi._core.compilation import Cost
from curvi.solvers import Method, Problem

MODES = ("auto", "eager", "compiled")


@dataclass(frozen=True)
class Execution:
    """Eager or compiled, by the size of the problem and never by a clock.

    A compiled loop takes seconds to build and runs at full speed. Steps on the host build one
    small function and cost some tenths of a millisecond each, so small problems are faster there.
    The choice depends on the program alone, so that the same seed gives the same bits.

    Parameters
    ----------
    mode : {"auto", "eager", "compiled"}
        "auto" steps on the host where the whole run is cheap there.
    most_numbers, most_operations : float
        What a task may compute on the host: numbers, and operations one after another.
    most_parameters : int
        Longest vector that the host works on.
    """

    mode: str = "auto"
    most_numbers: float = 4e9
    most_operations: float = 1e7
    most_parameters: int = 5000

    def __post_init__(self) -> None:
        """Validate the mode."""
        validation.one_of(self.mode, MODES, "execution")

    def is_cheap(self, cost: Cost | None, products: float) -> bool:
        """Whether a task of so many products is a matter of seconds."""
        return (
            cost is not None
            and cost.numbers * products <= self.most_numbers
            and cost.operations * products <= self.most_operations
        )

    def is_eager(self, cost: Cost | None, size: int, products: float) -> bool:
        """Whether a task of so many products on vectors of this size runs on the host."""
        if self.mode != "auto":
            return self.mode == "eager"
        fits = size <= self.most_parameters and jax.default_backend() == "cpu"
        return fits and self.is_cheap(cost, products)

    def runs_eagerly(
        self, problem: Problem, method: Method, params: Any, resources: Any, *,
        products_of_a_fit: float = 100.0,
    ) -> bool:  # fmt: skip
        """Whether a run of this method takes its steps on the host.

        ``products_of_a_fit``: products by which the work of a fit is judged.
        """
        if method.host_only:
            return True
        if self.mode != "auto":
            return self.mode == "eager"
        if not method.has_host_steps(problem):
            return False
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        return self.is_eager(problem.cost(params, resources), size, products_of_a_fit)
