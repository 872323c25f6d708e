"""What a fit gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core import validation
from curvi._core.errors import Outcome
from curvi._core.memory import require_matrix
from curvi._core.trees import coordinate_names, flat_numbers, precision_of
from curvi.diagnostics import _linear_response as response
from curvi.diagnostics import _verdict as verdict
from curvi.diagnostics._correction import Attempt, Correction, importance_moments
from curvi.diagnostics._evaluation import (
    GRADES,
    ImportanceWeights,
    Moments,
    evaluate,
    raw_relative_ess,
    smoothed_weights,
)
from curvi.diagnostics._evidence import Evidence, evidence_of
from curvi.diagnostics._exports import Exports, Portable
from curvi.diagnostics._modes import Mode, modes_sentence
from curvi.diagnostics._moments import (
    UserMoments,
    UserSpace,
    positions,
    require_positions,
    sd_of,
    user_columns,
    user_moments,
    user_space,
)
from curvi.diagnostics._monte_carlo import Replicates, replicate_spread, replicates
from curvi.diagnostics._pictures import Shown
from curvi.diagnostics._stored import StoredResult, stored_draws
from curvi.diagnostics._summary import EARLY, summary_of
from curvi.diagnostics._tails import tail_orders, tail_sentence
from curvi.diagnostics._verdict import Summary
from curvi.engine import Execution, Resources, VariationalProblem
from curvi.families import Family, Params
from curvi.objective import Draws
from curvi.solvers import Method
from curvi.targets import AbstractTarget, StoredTarget


@dataclass(frozen=True, eq=False, repr=False)
class FitResult(Shown, Exports, StoredResult, Portable):
    """A fitted variational posterior, and whether to trust it.

    Attributes
    ----------
    target, family, method : AbstractTarget, Family, Method
        What was inferred, the family of q, and the method that fitted it.
    params : Params
        Variational parameters in the flat, unconstrained space.
    outcome, message : Outcome, str
        How the fit ended, as a code and in one sentence.
    elbo, elbo_se : float
        Evidence lower bound on fresh draws, and its standard error.
    trace : dict of arrays
        One entry per step: step, seconds (without compilation), elbo (on that step's sample),
        grad_norm, gain, cg_steps, accepted, finite, negative_curvature.
    draws : Draws
        The kind and number of draws.
    steps, seconds : int, float
        Steps taken, and wall-clock time of the whole call, compilation included.
    batch_size : int or None
        Rows per step; None where every step used all of them.
    execution : Execution
        The policy that decided whether steps ran on the host or compiled.
    key_data : array
        Data of the random key from which the draws of the diagnostics follow.
    noise : array or None
        The fixed draws on which the ELBO was maximised; None where they were fresh.
    replicates : Replicates or None
        The optimum on other sets of draws, where the fit has computed it.
    log_ratio : array or None
        log p - log q at independent draws of q.
    start_elbos : array or None
        The ELBO that every start reached, NaN where it failed.
    modes : tuple of Mode
        The optima that several starts have reached, best first; empty where one start was run.
    mc_tolerance : float or None
        Monte-Carlo error that was accepted.
    correction : Correction or None
        Weighted draws from which mean, sd, covariance and sample come where q alone is not right.
    rungs : tuple of Attempt
        What ``family="auto"`` has tried, in order, and what each attempt cost.
    interrupted : bool
        Whether Ctrl-C cut the fit short; the message says what was left undone.

    Notes
    -----
    A result is data and survives :meth:`save`, ``copy``, ``joblib`` and, where the functions of its
    target are importable, ``pickle``. Diagnostics are computed when they are first read.
    """

    target: AbstractTarget = field(repr=False)
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
    batch_size: int | None = field(default=None, repr=False)
    execution: Execution = field(default_factory=Execution, repr=False)
    key_data: np.ndarray = field(
        default_factory=lambda: np.asarray(jax.random.key_data(jax.random.key(0))), repr=False
    )
    noise: Float[Array, "draws noise"] | None = field(default=None, repr=False)
    replicates: Replicates | None = field(default=None, repr=False)
    log_ratio: np.ndarray | None = field(default=None, repr=False)
    start_elbos: np.ndarray | None = field(default=None, repr=False)
    modes: tuple[Mode, ...] = field(default=(), repr=False)
    mc_tolerance: float | None = field(default=verdict.LARGEST_MC_ERROR, repr=False)
    correction: Correction | None = field(default=None, repr=False)
    rungs: tuple[Attempt, ...] = field(default=(), repr=False)
    interrupted: bool = field(default=False, repr=False)

    @property
    def converged(self) -> bool:
        """Whether the method's stopping rule was met and the ELBO is finite on fresh draws."""
        return self.outcome is Outcome.CONVERGED

    @cached_property
    def _space(self) -> UserSpace:
        return user_space(self.target, self.family)

    @cached_property
    def _moments(self) -> UserMoments:
        if self.correction is not None:
            with precision_of(self.target.dtype):
                return self.correction.moments(self._space, self._orders)
        return user_moments(self.target, self.family, self.params)

    @property
    def mean(self) -> PyTree:
        """Posterior mean, in the structure and space of the user's position."""
        return self._moments.mean

    @property
    def sd(self) -> PyTree:
        """Posterior standard deviations, in the structure and space of the user's position."""
        return self._moments.sd

    @cached_property
    def mc_error(self) -> float | None:
        """Monte-Carlo error of the mean in posterior sds, the largest over coordinates.

        None after a fit on fresh draws or minibatches, which has no optimum on fixed draws, and
        where too few of the other sets of draws could be solved; then ``warnings`` says so. Where
        the answer is corrected, the error of the correction.
        """
        if self.correction is not None:
            return self.correction.error
        if self._replicates is None:
            return None
        with precision_of(self.target.dtype):
            error = self._replicates.error(np.asarray(sd_of(self.family, self.params)))
        return None if error is None else float(error.max())

    @cached_property
    def _replicates(self) -> Replicates | None:
        """Those of the fit, or computed now; None without fixed draws and all rows."""
        if self.correction is not None or self.method.host_only:
            return None
        if self.replicates is not None or self.noise is None or self.batch_size is not None:
            return self.replicates
        resources = Resources(self._key, self.target.rows, self.noise)
        with precision_of(self.target.dtype):
            solved = self._problem, self.method, self.params
            return replicates(*solved, resources, execution=self.execution)

    @cached_property
    def _problem(self) -> VariationalProblem:
        return VariationalProblem(
            self.target.density, self.family, self.draws, self.target.dimension, self.batch_size
        )

    @cached_property
    def _log_ratio(self) -> np.ndarray:
        if self.log_ratio is not None:
            return self.log_ratio
        with precision_of(self.target.dtype):
            return evaluate(self.target, self.family, self.params, self._key).log_ratio

    @cached_property
    def _weights(self) -> ImportanceWeights:
        return smoothed_weights(self._log_ratio)

    @cached_property
    def _evidence(self) -> Evidence:
        return evidence_of(self, self._log_ratio)

    @property
    def log_evidence(self) -> float:
        """Log of the integral of the density; NaN where draws of the answer have not converged."""
        return self._evidence.log

    @property
    def log_evidence_se(self) -> float:
        """Its standard error; a lower bound of that where ``khat`` is above 0.7."""
        return self._evidence.se

    @property
    def _key(self) -> PRNGKeyArray:
        return jax.random.wrap_key_data(jnp.asarray(self.key_data))

    @property
    def khat(self) -> float:
        """Pareto k of the importance ratios p / q; above 0.7, q misses part of the target."""
        return self._weights.khat

    @property
    def relative_ess(self) -> float:
        """Effective sample size per draw of q, weighted to represent the target: 1 is perfect."""
        return self._weights.relative_ess

    @property
    def misfit(self) -> bool:
        """Whether q misses the target: k > 0.7 and relative ESS < 0.9, or relative ESS < 0.25."""
        if self.correction is not None:
            return not self.correction.trusted
        ratios = self.log_ratio
        if ratios is not None and raw_relative_ess(ratios) >= GRADES.enough_ess:
            return False
        return self._weights.misfit

    def importance(self) -> Moments:
        """Mean and sd corrected by Pareto-smoothed importance weights; reliable while k < 0.7."""
        return importance_moments(self)

    def covariance(self, *, linear_response: bool = False) -> Float[Array, "dimension dimension"]:
        """Dense covariance of the unconstrained coordinates, in flattening order.

        That of q, or of its correction; with ``linear_response`` the linear-response covariance,
        which has the correlations and sds that q is missing and is exact for a Gaussian target.

        Raises
        ------
        NumericalError
            For linear response where the Hessian of the negative ELBO is not positive definite;
            the message names the flat directions.
        MemoryBudgetError
            If a matrix of that size would not fit into the memory budget.
        """
        require_matrix(self.target.dimension, self.target.dtype)
        with precision_of(self.target.dtype):
            if not linear_response and self.correction is not None:
                return jnp.asarray(self.correction.covariance(), self.target.dtype)
            if not linear_response:
                return self.family.covariance(self.params)
            return response.coordinate_covariance(self._optimum)

    def linear_response(self, fn: Callable[[PyTree], PyTree] | None = None) -> PyTree:
        """Linear-response sd of functions of the parameters, without a dense matrix.

        Parameters
        ----------
        fn : callable, optional
            Takes a position in the user's space and returns a number, an array or a pytree, in
            JAX. By default the position itself: one sd for every parameter.

        Returns
        -------
        pytree
            Standard deviations, in the structure of what ``fn`` returns.

        Raises
        ------
        NumericalError
            Where the Hessian of the negative ELBO is not positive definite, or ``fn`` moves in
            steps, as ``argmax`` does: it has no gradient to respond with.
        """
        with precision_of(self.target.dtype):
            return response.response_sd(self._optimum, fn)

    @cached_property
    def _optimum(self) -> response.Optimum:
        found = self.target, self._problem, self.params, self.noise, self._key
        return response.Optimum.of(*found, self.execution)

    def sample(self, num_draws: int, seed: int = 0) -> PyTree:
        """``num_draws`` draws in the user's space, along a new first axis of every leaf.

        They come from q, or from the correction where there is one.
        """
        validation.positive_integer(num_draws, "num_draws")
        if isinstance(self.target, StoredTarget) and self.target.constrained:
            return stored_draws(self, num_draws, validation.checked_seed(seed))
        with precision_of(self.target.dtype):
            require_positions(self._space, self.target, num_draws)
            if self.correction is not None:
                return self.correction.sample(self._space, num_draws, seed)
            flat = self.family.sample(self.params, validation.random_key(seed), num_draws)
            return positions(self._space, flat)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What not to trust although the fit converged: one sentence each, none if all is well."""
        return verdict.cautions(
            mc_error=None if self._early else self.mc_error,
            mc_tolerance=self.mc_tolerance or verdict.LARGEST_MC_ERROR,
            unsolved=self._unsolved if self.converged and not self._early else "",
            alarms=(*self.alarms, self._tails),
            starts=None if self._early else self.start_elbos,
            corrected=self.correction is not None,
        )

    @cached_property
    def alarms(self) -> tuple[str, ...]:
        """What a fit warns of at once: not finite, a misfit, several modes, moments in doubt.

        A fit that has not converged says so instead of all but the first.
        """
        found = [verdict.not_finite_sentence(self.mean, self.sd)]
        if self.converged:
            doubtful = self.log_ratio is None or raw_relative_ess(self.log_ratio) < GRADES.close_ess
            tails = (self._tails if doubtful else "") or self._moments.doubt
            cliff = verdict.cliff_sentence(
                self.trace["elbo"], self.elbo, self.log_ratio, self.noise
            )
            found += [verdict.misfit_sentence(self), cliff, self._left_out, tails, self._unresolved]
        return tuple(sentence for sentence in found if sentence)

    @property
    def _unresolved(self) -> str:
        """What the precision of the target cannot resolve, by q: draws may all be one number."""
        with precision_of(self.target.dtype):
            sd = np.asarray(sd_of(self.family, self.params))
            mean = self.target.density.unravel.on_host(np.asarray(self.params.mean))
        return verdict.resolution_sentence(mean, sd, self.target.dtype)

    @property
    def _left_out(self) -> str:
        """Which modes the answer leaves out."""
        answer = self.correction
        whole = answer is not None and answer.trusted and answer.joins
        return "" if whole else modes_sentence(self.modes)

    @cached_property
    def _orders(self) -> np.ndarray:
        with precision_of(self.target.dtype):
            return tail_orders(self.target, self.family, self.params, self._space, self._key)

    @cached_property
    def _tails(self) -> str:
        """What has no mean or sd under the target, or one that is not known."""
        names = coordinate_names(self.mean)
        return tail_sentence(self._orders, names, self._moments.errors) if self.converged else ""

    @property
    def _early(self) -> bool:
        """Whether this is no optimum, or Ctrl-C came before its Monte-Carlo error was known."""
        ended = self.outcome in (Outcome.CONVERGED, Outcome.IMPRECISE)
        return not ended or (self.interrupted and self.replicates is None)

    @property
    def _unsolved(self) -> str:
        return "" if self._replicates is None else self._replicates.unsolved

    def summary(self, names: list[str] | None = None) -> Summary:
        """The verdict, the facts behind it, and a table of parameters, labelled by ``names``.

        The table has means, sds, linear-response sds (up to 100 parameters), and the Monte-Carlo
        error of each mean in posterior sds (at an optimum on fixed draws). Above 40 parameters it
        shows the first and last 20; ``summary().frame`` has all as a DataFrame.

        Raises
        ------
        InputError
            If ``names`` does not hold one name for every number in ``mean``.
        """
        errors, unsolved = (None, EARLY) if self._early else (self._errors, self._unsolved)
        return summary_of(self, names, errors=errors, unsolved=unsolved)

    @cached_property
    def _errors(self) -> np.ndarray | None:
        """Monte-Carlo error of every mean in the user's space, in posterior sds."""
        means = None if self._replicates is None else self._replicates.means
        if means is None:
            return None
        with precision_of(self.target.dtype):
            columns = user_columns(self._space)(np.asarray(means, self.target.dtype))
        return replicate_spread(columns, flat_numbers(self.sd))
