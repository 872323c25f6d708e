"""TrustRegion on the host, for small problems: one compiled function, the rest is NumPy.

A compiled loop takes seconds to build, whatever its length. Where one look at the bound takes
milliseconds at most, the same steps cost less when the host takes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi._core.errors import Outcome
from curvi.engine import _loop as loop
from curvi.engine._problems import Resources, VariationalProblem
from curvi.linalg import CGOutcome
from curvi.linalg._host_cg import HostSolution, host_conjugate_gradient
from curvi.objective._look import Look, Looker, cut, joined
from curvi.solvers import Info, Method, TrustRegion
from curvi.solvers._method import GOOD, POOR
from curvi.solvers._trust_region import ACCEPT, TIGHTEST

# A look repeats what a compiled loop keeps between products. That is worth while as long as it
# takes some milliseconds at most.
_MOST_NUMBERS = 4e7
_MOST_OPERATIONS = 1e5
_MOST_PARAMETERS = 5000


def suits(problem: VariationalProblem, method: Method, params: Any, resources: Resources) -> bool:
    """Whether the host should take the steps: fixed draws, few parameters, a cheap density."""
    if not (isinstance(method, TrustRegion) and problem.fixed and resources.noise is not None):
        return False
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    if size > _MOST_PARAMETERS or jax.default_backend() != "cpu":
        return False
    cost = problem.cost(params, resources)
    return (
        cost is not None and cost.numbers <= _MOST_NUMBERS and cost.operations <= _MOST_OPERATIONS
    )


def looker(problem: VariationalProblem, params: Any, resources: Resources) -> Looker:
    """The problem as the host sees it."""
    noise: Any = resources.noise
    return Looker(problem.density, problem.family, params, noise, resources.rows)


@dataclass(eq=False)
class Descent:
    """A run of steps: where it stands, and a row of the trace for each of them."""

    look: Looker
    vector: np.ndarray
    cg_steps: int
    radius: float
    eps: float
    tiny: float  # the smallest radius
    outcome: Outcome = Outcome.RUNNING
    moves: int = 0
    refused: int = 0
    broken: int = 0
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    seen: Look | None = None

    @property
    def params(self) -> Any:
        """Where it stands, as parameters of the family."""
        return jax.tree.map(jnp.asarray, cut(self.vector, self.look.like))

    def step(self, tolerance: float) -> None:
        """One Newton step in the trust region, as :class:`TrustRegion` takes it on fixed draws."""
        here = self.look(self.vector) if self.seen is None else self.seen
        self.seen = here
        if not _finite(here):
            self._record(here, None, accepted=False, finite=False)
            self.outcome = Outcome.NON_FINITE
            return
        norm = max(float(here.gradient @ here.natural), 0.0) ** 0.5
        solved = self._solve(here, norm)
        gain = -solved.model_value
        rounding = self.eps * max(abs(here.value), 1.0)
        trial = joined(cut(self.vector + solved.solution, self.look.like))
        there = self.look(trial)
        finite = _finite(there) and bool(np.isfinite(gain)) and bool(np.isfinite(trial).all())
        ratio = (here.value - there.value + 10 * rounding) / (gain + 10 * rounding)
        inside = solved.outcome in (CGOutcome.CONVERGED, CGOutcome.STALLED)
        # A step whose promise drowns in rounding because the radius is tiny is no step.
        audible = inside or gain > rounding
        accepted = finite and ratio > ACCEPT and audible
        enough = max(tolerance, rounding)
        if (accepted and inside and gain < enough) or (not audible and 0.5 * norm**2 < enough):
            self.outcome = Outcome.CONVERGED
        self._record(here, solved, accepted=accepted, finite=finite, norm=norm)
        self.radius = _next_radius(
            self.radius, solved.length, ratio, trusted=finite and gain > 0, tiny=self.tiny
        )
        if accepted:
            self.vector, self.seen = trial, there
        self._count(accepted=accepted, finite=finite)

    def _solve(self, here: Look, norm: float) -> HostSolution:
        def product(tangent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            seen = self.look(self.vector, tangent)
            return seen.product, seen.natural_product

        return host_conjugate_gradient(
            product,
            -here.gradient,
            -here.natural,
            eps=self.eps,
            relative_tolerance=min(max(norm, TIGHTEST), 0.1),
            max_steps=self.cg_steps,
            radius=self.radius,
        )

    def _count(self, *, accepted: bool, finite: bool) -> None:
        self.moves += accepted
        self.refused = 0 if accepted else self.refused + 1
        self.broken = 0 if accepted else self.broken + (not finite)
        if self.refused >= loop.PATIENCE and self.outcome is Outcome.RUNNING:
            mostly = 2 * self.broken >= self.refused
            self.outcome = Outcome.NON_FINITE if mostly else Outcome.STALLED

    def _record(
        self,
        here: Look,
        solved: HostSolution | None,
        *,
        accepted: bool,
        finite: bool,
        norm: float = float("nan"),
    ) -> None:
        negative = solved is not None and solved.outcome is CGOutcome.NEGATIVE_CURVATURE
        gain, steps = (float("nan"), 0) if solved is None else (-solved.model_value, solved.steps)
        row = (here.value, norm, gain, steps, accepted, finite, negative, self.outcome.value)
        self.rows.append(row)


def begin(
    problem: VariationalProblem, method: TrustRegion, params: Any, resources: Resources
) -> Descent:
    """A descent from the parameters, with a radius of about one posterior sd per coordinate."""
    vector = joined(params)
    limits = jnp.finfo(problem.density.dtype)
    return Descent(
        look=looker(problem, params, resources),
        vector=vector,
        cg_steps=method.cg_steps,
        radius=float(len(vector)) ** 0.5,
        eps=float(limits.eps),
        tiny=float(limits.tiny) ** 0.5,
    )


def run(
    problem: VariationalProblem,
    method: TrustRegion,
    params: Any,
    resources: Resources,
    *,
    tolerance: float,
    max_steps: int,
    time_budget: float | None = None,
    observer: Callable[[loop.Progress], None] | None = None,
) -> loop.LoopResult:
    """Step until the run converges, gives up or has spent its budget; as :func:`loop.run`."""
    began = time.perf_counter()
    descent = begin(problem, method, params, resources)
    seconds: list[float] = []
    try:
        descent.seen = descent.look(descent.vector)  # compiles; the clock of the trace starts after
        compiled = time.perf_counter()
        while descent.outcome is Outcome.RUNNING:
            descent.step(tolerance)
            seconds.append(time.perf_counter() - compiled)
            late = time_budget is not None and time.perf_counter() - began >= time_budget
            if descent.outcome is Outcome.RUNNING and (len(descent.rows) >= max_steps or late):
                descent.outcome = Outcome.BUDGET
            if observer is not None:
                value = float(descent.rows[-1][0])
                observer(loop.Progress(len(descent.rows), max_steps, value, seconds[-1]))
    except KeyboardInterrupt:
        descent.outcome = Outcome.INTERRUPTED
    trace = _table(descent, seconds)
    elapsed = time.perf_counter() - began
    steps = len(trace["step"])
    return loop.LoopResult(descent.params, descent.outcome, steps, trace, elapsed)


def _table(descent: Descent, seconds: list[float]) -> dict[str, np.ndarray]:
    rows = descent.rows[: len(seconds)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(Info._fields)
    real = np.dtype(descent.look.density.dtype)
    kinds = (real, real, real, np.int32, np.bool_, np.bool_, np.bool_, np.int32)
    table = {
        name: np.asarray(column, kind)
        for name, column, kind in zip(Info._fields, columns, kinds, strict=True)
    }
    return {"step": np.arange(len(rows)), "seconds": np.asarray(seconds, float), **table}


def _finite(look: Look) -> bool:
    return bool(np.isfinite(look.value) and np.isfinite(look.gradient).all())


def _next_radius(
    radius: float, length: float, ratio: float, *, trusted: bool, tiny: float
) -> float:
    """Shrink after a bad step; grow after a good one that reached the boundary."""
    length = length if np.isfinite(length) else radius
    shrunk = 0.25 * min(length, radius)
    if not trusted or not ratio > POOR:
        radius = shrunk
    elif ratio > GOOD and length > 0.9 * radius:
        radius = 3 * radius
    return float(np.clip(radius, tiny, 1 / tiny))
