"""What the parameters of a linear estimator mean for a fit: family, method, prior, starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.memory import require_memory
from curvi._core.meshes import current_mesh
from curvi.families import Family, FullRank, LowRank, MeanField
from curvi.glm._design import Columns
from curvi.glm._fit import LIMITS
from curvi.glm._stages import Options
from curvi.solvers import DSVI, HFSGVI, LBFGS, Method


class Choices:
    """Parameters of an estimator, validated and translated."""

    prior: str
    prior_scale: float
    covariance: str
    covariance_: str
    method: str
    fit_intercept: bool
    standardize: bool
    intercept_prior_scale: float | None
    rank: int
    num_starts: int | None
    num_draws: int | None
    batch_size: int | None
    max_iter: int | None
    tol: float | None
    random_state: Any
    verbose: bool | int

    def _check_parameters(self) -> None:
        validation.one_of(self.prior, ("normal", "ard"), "prior")
        validation.one_of(self.covariance, ("auto", "diagonal", "full", "low-rank"), "covariance")
        validation.one_of(self.method, ("newton", "hfsgvi", "lbfgs", "dsvi"), "method")
        validation.positive_number(self.prior_scale, "prior_scale")
        validation.positive_integer(self.rank, "rank")
        validation.boolean(self.fit_intercept, "fit_intercept")
        validation.boolean(self.standardize, "standardize")
        validation.verbosity(self.verbose)
        validation.random_source(self.random_state)
        for name in ("intercept_prior_scale", "tol"):
            if getattr(self, name) is not None:
                validation.positive_number(getattr(self, name), name)
        for name in ("num_starts", "num_draws", "batch_size", "max_iter"):
            if getattr(self, name) is not None:
                validation.positive_integer(getattr(self, name), name)
        for name, uses in (("batch_size", "all rows"), ("num_draws", "no draws")):
            if getattr(self, name) is not None and self.method == "newton":
                raise InputError(
                    f"{name} needs a stochastic method; method='newton' uses {uses}, "
                    "choose method='hfsgvi', 'lbfgs' or 'dsvi'"
                )

    def _structure(self, coefficients: int) -> str:
        """The covariance that was asked for, or full up to some hundreds of coefficients.

        The paper's stochastic methods, the relevance prior and rows over a mesh have a diagonal
        one.
        """
        if self.covariance != "auto":
            return self.covariance
        plain = self.prior == "normal" and self.method == "newton" and current_mesh() is None
        return "full" if plain and coefficients <= LIMITS.largest_dense // 2 else "diagonal"

    def _family(self, columns: int, classes: int = 1, *, copies: int = 8) -> Family:
        """The structure of the covariance; a low rank stays below the number of columns.

        ``copies``: of the factor of a full covariance: gradient, step, and the vectors of
        its solution.
        """
        coefficients = columns * max(classes - 1, 1)
        self.covariance_ = self._structure(coefficients)
        if self.covariance_ == "full":
            size = 8.0 * copies * coefficients**2
            what = f"covariance='full' of {columns} coefficients"
            require_memory(size, what, "use covariance='diagonal' or 'low-rank'")
            return FullRank()
        rank = min(self.rank, columns - 1)
        return LowRank(rank) if self.covariance_ == "low-rank" and rank > 0 else MeanField()

    def _options(self, columns: Columns, total: float, curvature: float) -> Options:
        """``total`` weight of the rows; ``curvature`` bounds that of one row in its predictor."""
        most = 1 if self.prior == "normal" else 30 if self.method == "newton" else 4
        # Where coefficients outnumber the rows, several supports fit them as a rule.
        determined = total > columns.count
        seed = int(validation.random_source(self.random_state).randint(2**31 - 1))
        return Options(
            method=self._engine(columns, total * curvature),
            num_starts=self.num_starts or most,
            most_work=np.inf if self.num_starts else 1e10 if determined else 1e11,
            enough=4 if determined and self.num_starts is None else None,
            num_draws=self.num_draws or Options.num_draws,
            batch_size=self.batch_size,
            tolerance=self.tol,
            max_steps=self.max_iter,
            seed=seed,
            progress=bool(self.verbose),
        )

    def _engine(self, columns: Columns, curvature: float) -> Method | None:
        if self.method == "newton":
            return None
        if self.method == "dsvi":
            # The largest eigenvalue of a weighted X'X is at most its trace.
            largest = curvature * (columns.mean_square.sum() + columns.intercept)
            return DSVI(learning_rate=float(f"{1 / (largest + self.prior_scale**-2):.1g}"))
        if self.method == "lbfgs":
            return LBFGS()
        if self.prior == "normal":
            return HFSGVI()
        # The relevance bound is not concave, and full steps on its exact curvature may explode.
        return HFSGVI(curvature="plug_in")

    def _precision(self, columns: Columns, dtype: Any) -> np.ndarray:
        precision = np.full(columns.count, self._inverse_square("prior_scale", dtype), dtype)
        if columns.intercept and self.intercept_prior_scale is not None:
            precision[-1] = self._inverse_square("intercept_prior_scale", dtype)
        return precision

    def _inverse_square(self, name: str, dtype: Any) -> np.floating:
        """``scale**-2`` of a prior, which must be an ordinary number in the precision of a fit."""
        scale, numbers = float(getattr(self, name)), np.finfo(dtype)
        limit = float(numbers.tiny) ** 0.5
        if not limit < scale < 1 / limit:
            raise InputError(
                f"{name} is {scale}, whose square is too small or too large for {numbers.dtype}; "
                f"choose it between {limit:.0e} and {1 / limit:.0e}"
            )
        return numbers.dtype.type(scale**-2.0)
