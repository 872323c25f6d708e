"""Truncated conjugate gradients on the host: the iteration costs nothing to compile.

The same method as :func:`curvi.linalg.conjugate_gradient` (Steihaug's, in the metric of a
preconditioner M), for problems whose products take microseconds and whose compiled iteration
would take longer to build than to run. M never appears: a product returns H p and M^-1 H p,
and with M^-1 b known all the rest follows by recurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from curvi.linalg._cg_loop import CGOutcome

Product = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class HostSolution:
    """Where the iteration ended; ``length`` is that of the solution in the norm of M."""

    solution: np.ndarray
    direction: np.ndarray
    model_value: float
    length: float
    steps: int
    outcome: CGOutcome


def host_conjugate_gradient(
    product: Product,
    rhs: np.ndarray,
    natural: np.ndarray,
    *,
    eps: float,
    relative_tolerance: float,
    max_steps: int,
    radius: float = float("inf"),
) -> HostSolution:
    r"""Minimise x'Hx/2 - b'x within x'Mx <= radius^2.

    Parameters
    ----------
    product : callable
        p to (H p, M^-1 H p).
    rhs, natural : arrays
        b and M^-1 b.
    eps : float
        Rounding unit of the products: curvature below it, relative to the terms of its sum, is
        none.
    relative_tolerance : float
        Residual at which to stop, :math:`\sqrt{r^\top M^{-1} r}` over that of b, by recurrence.

    Raises
    ------
    Nothing: ``outcome`` says how it ended, with the codes of the compiled iteration.
    """
    run = _Iteration(rhs, natural, eps, radius)
    threshold = relative_tolerance * max(run.energy, 0.0) ** 0.5
    outcome = run.beginning()
    while outcome is None:
        outcome = run.step(*product(run.search))
        if outcome is None and max(run.energy, 0.0) ** 0.5 <= threshold:
            outcome = CGOutcome.CONVERGED
        elif outcome is None and run.steps >= max_steps:
            outcome = CGOutcome.MAX_STEPS
    length = max(run.length_sq, 0.0) ** 0.5
    return HostSolution(run.solution, run.search, run.model, length, run.steps, outcome)


class _Iteration:
    """The state: x, r = b - H x, z = M^-1 r, p, and the lengths x'Mx, x'Mp, p'Mp."""

    def __init__(self, rhs: np.ndarray, natural: np.ndarray, eps: float, radius: float) -> None:
        self.rhs, self.eps, self.radius = rhs, eps, radius
        self.solution, self.residual, self.natural = np.zeros_like(rhs), rhs, natural
        self.search = natural
        self.energy = float(rhs @ natural)
        self.length_sq, self.overlap, self.search_sq = 0.0, 0.0, self.energy
        self.model, self.steps = 0.0, 0

    def beginning(self) -> CGOutcome | None:
        """Why there is nothing to do, or None."""
        if not np.isfinite(self.energy):
            return CGOutcome.NON_FINITE
        if self.energy > 0:
            return None
        return CGOutcome.STALLED if self.rhs.any() else CGOutcome.CONVERGED

    def step(self, image: np.ndarray, natural_image: np.ndarray) -> CGOutcome | None:
        """Go along the search direction, whose products these are, and turn it."""
        curvature = float(self.search @ image)
        if not np.isfinite(curvature):
            return CGOutcome.NON_FINITE
        flat = curvature <= self.eps * float(np.abs(self.search) @ np.abs(image))
        alpha = 0.0 if flat else self.energy / curvature
        overlap = self.overlap + alpha * self.search_sq
        longer = self.length_sq + alpha * (self.overlap + overlap)
        if flat or longer >= self.radius**2:
            self._to_boundary(curvature)
            return CGOutcome.NEGATIVE_CURVATURE if flat else CGOutcome.BOUNDARY
        solution = self.solution + alpha * self.search
        residual = self.residual - alpha * image
        natural = self.natural - alpha * natural_image
        energy = float(residual @ natural)
        model = -0.5 * float(solution @ (self.rhs + residual))
        if not np.isfinite(energy + model):
            return CGOutcome.NON_FINITE
        beta = energy / self.energy
        self.solution, self.residual, self.natural = solution, residual, natural
        self.overlap = float(solution @ residual) + beta * overlap
        self.search_sq = energy + beta**2 * self.search_sq
        self.search = natural + beta * self.search
        self.energy, self.length_sq, self.model = energy, longer, model
        self.steps += 1
        return None

    def _to_boundary(self, curvature: float) -> None:
        """Add tau p, tau the positive root of p'Mp tau^2 + 2 x'Mp tau = radius^2 - x'Mx."""
        if not np.isfinite(self.radius):
            return
        gap = max(self.radius**2 - self.length_sq, 0.0)
        root = (self.overlap**2 + self.search_sq * gap) ** 0.5
        # Of the two forms of the root, the one without cancellation.
        late = self.overlap > 0
        tau = gap / (self.overlap + root) if late else (root - self.overlap) / self.search_sq
        slope = float(self.residual @ self.search)
        self.solution = self.solution + tau * self.search
        self.model += tau * (0.5 * tau * curvature - slope)
        self.length_sq = self.radius**2
