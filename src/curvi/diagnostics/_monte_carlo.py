r"""The Monte-Carlo error of an optimum found on fixed draws.

The optimum :math:`\hat\theta` on one set of draws is a random variable. To first order

.. math:: \hat\theta - \theta^* = -H^{-1} g, \qquad
    \mathrm{Cov}(\hat\theta) = H^{-1}\,\mathrm{Cov}(g)\,H^{-1},

with g the gradient on those draws. For independent draws Cov(g) is the covariance of single
draws over M; for draws that are centred, whitened, paired or low-discrepancy points that
formula reports far too much, because most of the variance of single draws cancels in their
average. So the gradient is taken on several sets of draws, each randomised anew, of the same kind
and the same number, and each gives one Newton step from the optimum. The spread of the
end points is the Monte-Carlo error, whatever the kind of draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi._core.errors import Interrupted, Outcome
from curvi._core.run import Phase
from curvi.engine import Budget, Execution, Resources, RunResult, VariationalProblem, run
from curvi.objective import Stream, fixed_draws
from curvi.solvers import Method, TrustRegion


@dataclass(frozen=True)
class ReplicatePolicy:
    """Independent sets of draws: how many, how far from each optimum to the next."""

    fewest_solved: int = 8
    enough_to_pool: int = 10
    # sets of draws; the few where a step is expensive
    most_sets: int = 16
    few_sets: int = 8
    cheap: float = 1e7  # numbers that one pass over draws and rows touches
    most_steps: int = 12  # at most, from the optimum on one set of draws to that on another
    # nats per parameter: steps that gain less are short enough for one to be exact
    linear_gain: float = 1e-3
    still: float = 1e-3  # natural norm of a gradient, about the distance to the optimum in sds
    escape_steps: int = 3  # in which negative curvature is sought: each solves its system loosely
    most_escape_steps: int = 30  # in which a radius that was too large for the way down has shrunk
    nudge: float = 1e-3  # size of a move of the draws that breaks their symmetry


REPLICATES = ReplicatePolicy()


@dataclass(frozen=True, eq=False)
class Replicates:
    """Optimal means on independently randomised sets of draws.

    Parameters
    ----------
    rows : array
        One row per set of draws and one column per flat coordinate; a row that could not be solved
        is NaN.
    out_of_time : bool
        Whether a budget of time ended before all sets of draws were tried.
    """

    rows: np.ndarray
    out_of_time: bool = False

    @cached_property
    def _solved(self) -> np.ndarray:
        return self.rows[np.isfinite(self.rows).all(axis=1)]

    @property
    def means(self) -> np.ndarray | None:
        """The rows that are finite, or None where fewer than 8 are."""
        return self._solved if len(self._solved) >= REPLICATES.fewest_solved else None

    @property
    def unsolved(self) -> str:
        """How many could not be solved, in words; empty where that is at most a quarter."""
        failed, count = len(self.rows) - len(self._solved), len(self.rows)
        if self.means is not None and 4 * failed <= count:
            return ""
        if self.out_of_time:
            return f"the time budget left room for only {count} of the replicates"
        return f"{failed} of {count} replicates could not be solved"

    def error(self, sd: np.ndarray) -> np.ndarray | None:
        """Monte-Carlo error of the mean of every coordinate, in posterior sds."""
        return None if self.means is None else replicate_spread(self.means, sd)


def replicates(
    problem: VariationalProblem,
    method: Method,
    params: Any,
    resources: Resources,
    *,
    execution: Execution,
    budget: Budget | None = None,
    num_steps: int = REPLICATES.most_steps,
    policy: ReplicatePolicy = REPLICATES,
) -> Replicates:
    """Where the optimum would be on other draws of the same kind and number.

    The steps are those of :class:`~curvi.TrustRegion` in the code that a fit has compiled already:
    only the values of the draws differ. The optimum itself is one more replicate. A budget of time
    that ends leaves the rest out; Ctrl-C raises ``Interrupted`` with those that are done.
    """
    count = _number_of_sets(problem, policy=policy)
    rows = np.full((1 + count, params.mean.size), np.nan)
    rows[0] = np.asarray(params.mean)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    limits = _few_steps(num_steps, policy.linear_gain * max(size, 10), budget)
    for index in range(count):
        done = rows[: 1 + index]
        if limits.left() <= 0:
            return Replicates(done, out_of_time=True)
        with Phase("replicates") as phase:
            other = resources._replace(
                noise=draws_of(problem, resources.key, Stream.REPLICATES, index)
            )
            ended = _run(problem, method, params, other, limits, execution)
        if phase.left:
            raise Interrupted("interrupted among replicates", Replicates(done))
        if _is_optimum(ended, policy=policy):
            rows[1 + index] = np.asarray(ended.params.mean)
        elif limits.left() <= 0:
            return Replicates(done, out_of_time=True)
    return Replicates(rows)


def _run(
    problem: VariationalProblem,
    method: Method,
    params: Any,
    resources: Resources,
    limits: Budget,
    execution: Execution,
) -> RunResult:
    """A run whose interruption is the caller's affair."""
    newton = _newton(method, problem)
    return run(problem, newton, params, resources, limits, execution=execution).whole()


def _newton(method: Method, problem: VariationalProblem) -> Method:
    """The method of the fit where it takes Newton steps, so that its compiled code serves again."""
    return method if method.takes_newton_steps(problem) else TrustRegion()


def _few_steps(steps: int, tolerance: float, budget: Budget | None) -> Budget:
    """So many steps within the time that is left."""
    if budget is None:
        return Budget(tolerance, steps)
    return replace(budget, tolerance=tolerance, max_steps=steps, hooks=())


def _is_optimum(ended: RunResult, *, policy: ReplicatePolicy = REPLICATES) -> bool:
    """Without a single move only a gradient of nearly nothing says that the optimum is the same."""
    moved = ended.trace["accepted"].any()
    still = ended.steps > 0 and ended.trace["grad_norm"][-1] < policy.still
    return ended.outcome is Outcome.CONVERGED and bool(moved or still)


def descend_from_saddle(
    problem: VariationalProblem,
    method: Method,
    params: Any,
    resources: Resources,
    *,
    execution: Execution,
    budget: Budget,
    policy: ReplicatePolicy = REPLICATES,
) -> Any | None:
    """Parameters below a saddle point, or None where the curvature is positive.

    At an exact saddle the gradient is zero and a Newton step goes nowhere. On draws that are moved
    a little it is not zero in any direction, while the curvature is nearly the same: a few steps
    then meet the direction of negative curvature and go down along it.
    """
    loose = replace(problem, plan=replace(problem.plan, kind="iid"))
    draws = draws_of(problem, resources.key) if resources.noise is None else resources.noise
    nudge = np.asarray(draws_of(loose, resources.key, Stream.REPLICATES, policy.most_sets))
    moved = np.asarray(draws) + np.asarray(policy.nudge, nudge.dtype) * nudge
    other = resources._replace(noise=jnp.asarray(moved))
    for steps in (policy.escape_steps, policy.most_escape_steps):
        limits = _few_steps(steps, 0.0, budget)
        ended = _run(problem, method, params, other, limits, execution)
        if not ended.trace["negative_curvature"].any():
            return None
        if ended.trace["accepted"].any():
            return ended.params
    return None


def _number_of_sets(problem: VariationalProblem, *, policy: ReplicatePolicy = REPLICATES) -> int:
    num_rows = max(problem.density.num_rows, 1)
    touched = problem.plan.num_draws * problem.dimension * num_rows
    return policy.most_sets if touched <= policy.cheap else policy.few_sets


def draws_of(problem: VariationalProblem, key: Any, *stream: int) -> jax.Array:
    """Fixed draws by the problem's plan, from a stream of the key."""
    width = problem.family.num_noise(problem.dimension)
    base, dtype = problem.family.base, problem.density.dtype
    return fixed_draws(key, problem.plan, width, base, dtype, stream=stream)


def replicate_spread(
    replicates: np.ndarray, sd: np.ndarray, *, policy: ReplicatePolicy = REPLICATES
) -> np.ndarray:
    r"""Standard deviation between the rows in units of ``sd``, one number per column.

    With n rows a sample variance has a relative error of :math:`\sqrt{2/(n-1)}`, and the largest
    of many is far too large. They are therefore shrunk towards their average as far as their
    scatter is explained by that error (the linear Bayes rule, its constants by moments): with
    v the relative variance of the true variances, the weight of a coordinate's own
    estimate is :math:`v / (v + (1 + v)\,2/(n-1))`. Below ten coordinates v cannot be told, and
    nothing is shrunk.
    """
    freedom = len(replicates) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.var(replicates, axis=0, ddof=1) / np.asarray(sd, np.float64) ** 2
    if not np.isfinite(variance).all():
        return np.sqrt(variance)
    average = variance.mean()
    if variance.size < policy.enough_to_pool or average == 0:
        return np.sqrt(variance)
    scatter = np.var(variance, ddof=1) / average**2
    true = max((scatter + 1) / (1 + 2 / freedom) - 1, 0.0)
    own = true / (true + (1 + true) * 2 / freedom)
    return np.sqrt(average + own * (variance - average))
