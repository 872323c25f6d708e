r"""One run of a stochastic method on the paper's logistic ELBO, recorded by its exact value.

The ELBO is that of Titsias and Lazaro-Gredilla, with every prior variance maximised:

.. math::

    L(\mu, \sigma) = \sum_i E\big[\log\sigma(y_i x_i^\top z)\big]
        + \tfrac12 \sum_j \log\frac{\sigma_j^2}{\sigma_j^2 + \mu_j^2}, \qquad
    z = \mu + \sigma \epsilon .

Stochastic methods see it through draws. What is recorded is the exact ELBO, with its
one-dimensional expectations by quadrature, and the clock stops while it is computed. The clock is
that of the processor, all threads together: what else runs on the machine does not move it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi._core.errors import Outcome
from curvi._core.trees import precision_of, stable_sum
from curvi.engine import Budget, Progress, Resources, run
from curvi.families import MeanField, Params
from curvi.glm import DenseDesign, GLMProblem, Rows, SampledGLMProblem, SparseDesign, neg_elbo
from curvi.likelihoods import Bernoulli
from curvi.solvers import Method


@dataclass(frozen=True)
class Setting:
    """A method with everything that it needs to be told.

    ``per_row`` gives every row draws of its own, as Algorithm 1 says; no draws at all stand for the
    exact expectation. ``width`` is the sd of the
    start relative to ``1 / sqrt(columns)``.
    """

    method: Method
    max_steps: int
    num_draws: int = 1
    per_row: bool = False
    batch_size: int | None = None
    width: float = 1.0

    def __str__(self) -> str:
        """Everything that is not usual, in a few words."""
        used: Any = self.method
        method = ", ".join(
            f"{one.name}={value!r}"
            for one in fields(used)
            if (value := getattr(used, one.name)) != one.default
        )
        draws = f"{self.num_draws} draw{'s' * (self.num_draws > 1)}"
        draws = draws if self.num_draws else "exact expectation"
        words = [f"{type(used).__name__}({method})", draws + " per row" * self.per_row]
        words += [f"batches of {self.batch_size}"] * (self.batch_size is not None)
        words += [f"width {self.width:g}"] * (self.width != 1.0)
        return ", ".join(words)

    def epochs(self, steps: np.ndarray, rows: int) -> np.ndarray:
        """Passes over the data for gradients; products with the Hessian are not counted."""
        return steps * (1.0 if self.batch_size is None else self.batch_size / rows)


@dataclass(frozen=True, eq=False)
class MethodRun:
    """What a run recorded: steps, processor seconds, the exact ELBO, and where it ended."""

    step: np.ndarray
    seconds: np.ndarray
    bound: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    outcome: Outcome

    @property
    def last(self) -> float:
        """The ELBO at the end; minus infinity if it is not finite."""
        return float(self.bound[-1]) if np.isfinite(self.bound[-1]) else -np.inf

    @property
    def diverged(self) -> bool:
        """Whether it ended below its start."""
        return self.last < self.bound[0]


def design(X: np.ndarray) -> np.ndarray:
    """The table with the paper's default feature 1 as its last column."""
    return np.column_stack([X, np.ones(len(X), X.dtype)])


def errors(mean: np.ndarray, X: np.ndarray, y: np.ndarray) -> int:
    """Misclassified rows; by symmetry integrating over q does not change the class."""
    if not np.isfinite(mean).all():
        return len(y)
    return int(np.sum(np.where(design(X) @ mean > 0, 1, -1) != y))


def run_setting(
    setting: Setting, X: np.ndarray, y: np.ndarray, *, seed: int, seconds: float
) -> MethodRun:
    """Run a stochastic method for a number of steps or processor seconds, whichever ends first.

    A first step that is not recorded compiles everything.
    """
    with precision_of(X.dtype):
        matrix = design(X)
        _run(replace(setting, max_steps=1), matrix, y, seed, float("inf"))
        return _run(setting, matrix, y, seed, seconds)


def _run(
    setting: Setting, matrix: np.ndarray, y: np.ndarray, seed: int, budget: float, *,
    largest_log: float = 700.0,
) -> MethodRun:  # fmt: skip
    dtype, columns = matrix.dtype, matrix.shape[1]
    family = MeanField()
    rows = Rows(
        _sparse(matrix) if setting.per_row else DenseDesign(jnp.asarray(matrix)),
        jnp.asarray(y, dtype),
        jnp.ones(len(y), dtype),
        jnp.ones(columns, dtype),
        jnp.ones((), dtype),
    )
    kind = SampledGLMProblem if setting.num_draws else _Integrated
    problem = kind(
        Bernoulli(), family, True, max(setting.num_draws, 1), setting.batch_size, setting.per_row
    )
    exact = GLMProblem(Bernoulli(), family, True)
    resources = Resources(jax.random.key(seed), rows, noise=None)
    width = jnp.full(columns, setting.width * columns**-0.5, dtype)
    params = exact.from_mean(family.init(jnp.zeros(columns, dtype), width))
    evaluations = _Evaluations(
        evaluation_steps(setting.max_steps),
        lambda theta: -float(neg_elbo(exact, theta, rows)),
        params,
        budget,
    )
    limits = Budget(0.0, setting.max_steps, hooks=(evaluations,))
    ended = run(problem, setting.method, params, resources, limits).whole()  # or no other begins
    table = evaluations.table
    q = exact.to_mean(ended.params)
    step, elapsed, bound_column = (np.asarray(column) for column in zip(*table, strict=True))
    return MethodRun(
        step=step,
        seconds=elapsed,
        bound=bound_column,
        mean=np.asarray(q.mean, np.float64),
        sd=np.exp(np.minimum(np.asarray(q.scale_params, np.float64), largest_log)),
        outcome=ended.outcome,
    )


class _Integrated(SampledGLMProblem):
    """What the stochastic methods see, with expectations by quadrature in the place of draws."""

    def _energy(self, params: Params, sample: Any) -> Float[Array, ""]:
        rows = sample.rows
        moments = self._predictor(self.to_mean(params), rows)
        (value,) = self.likelihood.expected(*moments, rows.y, orders=(0,))
        return -stable_sum(rows.weight * value)


def _sparse(matrix: np.ndarray) -> SparseDesign:
    """The entries that are not zero, so that draws per row are made for no others."""
    rows, columns = np.nonzero(matrix)
    features = matrix.shape[1]
    return SparseDesign(
        values=jnp.asarray(matrix[rows, columns]),
        rows=jnp.asarray(rows, jnp.int32),
        columns=jnp.asarray(columns, jnp.int32),
        centre=jnp.zeros(features, matrix.dtype),
        inverse_scale=jnp.ones(features, matrix.dtype),
        num_rows=matrix.shape[0],
        intercept=False,
    )


class _Evaluations:
    """Evaluates the exact bound after certain steps, and ends a run that is over its budget."""

    def __init__(
        self,
        steps: list[int],
        bound: Callable[[Any], float],
        params: Any,
        budget: float,
    ) -> None:
        self.steps, self.bound, self.budget = steps, bound, budget
        self.table = [(0, 0.0, bound(params))]
        self.seconds, self.since = 0.0, time.process_time()

    def next_call(self, step: int) -> int | None:
        """The next of the steps."""
        return next((one for one in self.steps if one > step), None)

    def __call__(self, progress: Progress) -> Outcome | None:
        """Add a row to the table."""
        self.seconds += time.process_time() - self.since
        bound = self.bound(progress.params(0))
        self.table.append((progress.step, self.seconds, bound))
        late = self.seconds > self.budget or not np.isfinite(bound)
        self.since = time.process_time()
        return Outcome.BUDGET if late and not progress.ended else None


def evaluation_steps(max_steps: int, *, per_decade: int = 8) -> list[int]:
    """The steps after which the ELBO is evaluated: all of the first few, then ever fewer.

    ``per_decade``: evaluations between a number of steps and ten times it.
    """
    decades = np.log10(max_steps)
    spaced = np.logspace(0, decades, int(np.ceil(decades * per_decade)) + 1)
    return sorted({*range(1, min(max_steps, 5) + 1), *map(round, spaced), max_steps})


def steps_to(run: MethodRun, goal: float) -> int | None:
    """The first evaluated step from which on the ELBO stays above the goal; None if it diverged."""
    good = run.bound >= goal
    if not good[-1] or run.diverged:
        return None
    bad = np.flatnonzero(~good)
    return int(run.step[bad[-1] + 1 if bad.size else 0])
