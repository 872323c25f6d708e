"""What the linear estimators share: parameters, validation, the order of a fit, its results."""

from __future__ import annotations

import abc
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from curvi._core import validation
from curvi._core.errors import InputError, Interrupted, Outcome
from curvi._core.memory import require_memory
from curvi._core.meshes import current_mesh, sharded
from curvi.engine import resumable
from curvi.families import Family, FullRank, LowRank, MeanField
from curvi.glm._design import Columns, Posterior, is_selected
from curvi.glm._fit import LARGEST_DENSE, GLMFit
from curvi.glm._output import Shown
from curvi.glm._rows import DTYPES, Block, Observations, Streaming, UserBlocks, canonical, in_chunks
from curvi.glm._sparse_rows import stored_by_density
from curvi.glm._stages import Options
from curvi.io._objects import SavedEstimator
from curvi.solvers import DSVI, HFSGVI, LBFGS, Method

_COPIES = 8  # of the factor of a full covariance: gradient, step, and the vectors of its solution
_LARGE = 1e8  # rows times squared columns, from which a start takes seconds

Model = TypeVar("Model", bound="BayesianLinearModel")
# scikit-learn reads parameters from the signature of the constructor, which stores them unchanged:
# that of a dataclass, whose fields subclasses inherit.
estimator = dataclass(kw_only=True, eq=False, repr=False)


class CoefficientDraws(NamedTuple):
    """Draws from the posterior in the user's units, the draws along the first axis."""

    coef: np.ndarray
    intercept: np.ndarray


@estimator
class BayesianLinearModel(Shown, SavedEstimator, BaseEstimator, abc.ABC):
    """Base of the linear estimators: everything but the likelihood."""

    _streaming = Streaming()
    _has_classes = False  # of attributes: regressors leave out the axis of blocks
    _response_units = (0.0, 1.0)  # shift and scale of the responses, to those that are fitted

    prior: str = "normal"
    prior_scale: float = 1.0
    covariance: str = "diagonal"
    method: str = "newton"
    fit_intercept: bool = True
    standardize: bool = True
    intercept_prior_scale: float | None = None
    rank: int = 10
    num_starts: int | None = None
    batch_size: int | None = None
    max_iter: int | None = None
    tol: float | None = None
    random_state: Any = None
    verbose: int = 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        """Whether a fit has ended; one that was refused may have set other attributes."""
        return hasattr(self, "result_")

    @abc.abstractmethod
    def _fit_rows(self, data: Observations, columns: Columns) -> GLMFit:
        """Fit validated rows of positive weight."""

    def _labels(self, y: np.ndarray) -> np.ndarray:
        """The classes that occur in y; regressors have none."""
        return np.zeros(0)

    def _learn(self, labels: np.ndarray) -> None:
        """Keep the classes of a classifier."""

    @sharded
    @resumable
    def fit(
        self: Model, X: Any, y: Any, sample_weight: Any = None, *, mesh: Any = None,
        checkpoint: Any = None,
    ) -> Model:  # fmt: skip
        """Fit the posterior.

        Parameters
        ----------
        X : array or sparse matrix, (rows, features)
            float32 is fitted in float32, everything else in float64. How it is stored does not
            matter: Newton steps take sparse or dense products by its share of non-zeros. A wide
            sparse table is never made dense.
        y : array, (rows,)
            Responses.
        sample_weight : array, (rows,), optional
            A weight of two is a row that occurs twice; rows of weight zero change nothing.
        mesh : jax.sharding.Mesh, optional
            Devices that share the rows (:func:`curvi.data_mesh`); of diagonal covariances.
        checkpoint : path or Checkpoint, optional
            A file from which the same call resumes (:class:`curvi.Checkpoint`).

        Returns
        -------
        self

        Raises
        ------
        KeyboardInterrupt
            At Ctrl-C, with the attributes of what was fitted until then; cross-validation stops.

        Warns
        -----
        ConvergenceWarning
            If the maximum of the bound was not reached; the message says what to do.
        """
        self._check_parameters()
        on_disk = isinstance(X, np.memmap)
        X, y, weight = self._check_rows(X, y, sample_weight)
        one_predictor = self._labels(y).shape[0] <= 2
        streamed = self._streams(X, on_disk) and one_predictor
        if one_predictor and not streamed and self._takes_dense_steps(X):
            X = stored_by_density(X, self._streaming.largest_copy)
        blocks = self._streaming.blocks(X, y, weight) if streamed else [Block(X, y, weight)]
        return self._fit_observations(Observations(blocks, self._labels, streamed=streamed))

    @resumable
    def fit_blocks(self: Model, blocks: Any, *, checkpoint: Any = None) -> Model:
        """Fit rows that come in blocks, beyond memory: exact sums, one block at a time.

        Parameters
        ----------
        blocks : callable or collection
            A function that returns a fresh iterator of blocks ``(X, y)`` or
            ``(X, y, sample_weight)``, or a collection of them: a fit passes over the rows once
            per step. How the rows are cut into blocks does not matter.
        checkpoint : path or Checkpoint, optional
            A file from which the same call resumes (:class:`curvi.Checkpoint`).

        Returns
        -------
        self

        Raises
        ------
        InputError
            For an iterator that can be read only once, blocks that do not fit together, more
            than two classes, or a method other than ``"newton"`` with ``"diagonal"`` covariance.
        """
        self._check_parameters()
        if self.method != "newton" or self.covariance != "diagonal":
            raise InputError("rows in blocks need method='newton' and covariance='diagonal'")
        data = Observations(UserBlocks(blocks), self._labels, streamed=True)
        self.n_features_in_ = data.columns.mean.shape[0]
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        return self._fit_observations(data)

    def _fit_observations(self: Model, data: Observations) -> Model:
        self._learn(data.labels)
        columns = Columns.of(
            data.columns,
            data.dtype,
            standardize=bool(self.standardize),
            intercept=bool(self.fit_intercept),
        )
        fitted = self._fit_rows(data, columns)
        self.result_ = fitted
        self._posterior = Posterior.of(columns, fitted.family, fitted.q)
        self._publish(data.dtype)
        if fitted.outcome is Outcome.INTERRUPTED:
            raise Interrupted(
                f"interrupted after {fitted.steps} steps; the estimator keeps what was fitted "
                "until then",
                fitted,
            )
        if not self.converged_:
            warnings.warn(self._failure(), ConvergenceWarning, stacklevel=3)
        return self

    def _takes_dense_steps(self, X: Any) -> bool:
        """Whether Newton steps form the whole Hessian, on the host."""
        plain = self.method == "newton" and self.covariance == "diagonal"
        return plain and X.shape[1] < LARGEST_DENSE // 2 and current_mesh() is None

    def _streams(self, X: Any, on_disk: bool) -> bool:
        """Whether a validated table is read in blocks where it is, instead of copied."""
        if not self._takes_dense_steps(X) or sparse.issparse(X):
            return False
        return on_disk or X.nbytes > self._streaming.largest_copy

    def sample(self, num_draws: int, seed: int = 0) -> CoefficientDraws:
        """Draw coefficients and intercepts from the posterior, in the user's units.

        Parameters
        ----------
        num_draws : int
            Number of draws.
        seed : int
            The same seed gives the same draws.

        Returns
        -------
        CoefficientDraws
            ``coef`` and ``intercept`` in the shapes of the fitted attributes, after an axis of
            draws.
        """
        check_is_fitted(self)
        validation.positive_integer(num_draws, "num_draws")
        size = 3 * 8.0 * num_draws * self._posterior.mean.size
        require_memory(size, f"sample({num_draws})", "draw fewer at a time")
        weights = self._posterior.sample(num_draws, validation.checked_seed(seed))
        return CoefficientDraws(self._slopes(weights), self._offsets(weights))

    def _check_parameters(self) -> None:
        validation.one_of(self.prior, ("normal", "ard"), "prior")
        validation.one_of(self.covariance, ("diagonal", "full", "low-rank"), "covariance")
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
        for name in ("num_starts", "batch_size", "max_iter"):
            if getattr(self, name) is not None:
                validation.positive_integer(getattr(self, name), name)
        if self.batch_size is not None and self.method == "newton":
            raise InputError(
                "batch_size needs a stochastic method; method='newton' uses all rows, "
                "choose method='hfsgvi', 'lbfgs' or 'dsvi'"
            )

    def _check_rows(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        """Validate a table: finite numbers, matching lengths; rows of weight zero are dropped."""
        for given, name in ((X, "X"), (y, "y"), (sample_weight, "sample_weight")):
            validation.refuse_masked(given, name)
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=DTYPES, y_numeric=False, multi_output=False
        )
        if sparse.issparse(X):
            if self.batch_size is not None:
                raise InputError("batch_size needs a dense X; leave it out for a sparse one")
            X = canonical(X)
        if self.batch_size is not None and self.batch_size > X.shape[0]:
            raise InputError(
                f"batch_size is {self.batch_size} but X has {X.shape[0]} rows; choose a smaller "
                "one, or leave it out to use all rows"
            )
        weight = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        used = weight > 0
        if not used.any():
            raise InputError("sample_weight is zero for every row; at least one must be positive")
        if not used.all():
            X, y, weight = X[used], y[used], weight[used]
        return X, y, weight

    def _family(self, columns: int, classes: int = 1) -> Family:
        """The structure of the covariance; a low rank stays below the number of columns."""
        if self.covariance == "full":
            size = 8.0 * _COPIES * classes * columns**2
            what = f"covariance='full' of {columns} coefficients"
            require_memory(size, what, "use covariance='diagonal' or 'low-rank'")
            return FullRank()
        rank = min(self.rank, columns - 1)
        return LowRank(rank) if self.covariance == "low-rank" and rank > 0 else MeanField()

    def _options(self, columns: Columns, total: float, curvature: float) -> Options:
        """``total`` weight of the rows; ``curvature`` bounds that of one row in its predictor."""
        large = total * columns.scale.size**2 > _LARGE
        starts = self.num_starts or (1 if self.prior == "normal" or large else 4)
        seed = int(validation.random_source(self.random_state).randint(2**31 - 1))
        return Options(
            method=self._engine(columns, total * curvature),
            num_starts=starts,
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

    def _publish(self, dtype: Any) -> None:
        """Set the public attributes, in the user's units and precision."""
        fitted, columns = self.result_, self._posterior.columns
        for name in ("relevance_", "selected_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        mean, sd = self._posterior.mean, np.sqrt(self._posterior.variance)
        with np.errstate(over="ignore", invalid="ignore"):  # reported by name
            self.coef_ = self._slopes(mean).astype(dtype)
            self.coef_sd_ = self._slopes(sd).astype(dtype)
            self.intercept_ = self._offsets(mean).astype(dtype)
        # The intercept is the predictor where all features are zero.
        origin = np.zeros((1, columns.scale.shape[0]))
        spread = self._posterior.predictor(origin)[1][0] * columns.intercept
        self.intercept_sd_ = self._of_blocks(self._response_units[1] * spread, -1).astype(dtype)
        self.elbo_, self.elbos_, self.elbo_se_ = fitted.elbo, fitted.elbos, fitted.elbo_se
        if self.prior == "ard":
            with np.errstate(over="ignore"):
                self.relevance_ = self.coef_sd_**2 + self.coef_**2
            features = columns.scale.shape[0]
            moments = mean[:, :features], self._posterior.variance[:, :features]
            self.selected_ = is_selected(*moments, columns.mean_square).reshape(self.coef_.shape)
        finite = np.isfinite(fitted.elbo) and not self._beyond_precision()
        self.n_iter_, self.converged_ = fitted.steps, bool(fitted.converged and finite)

    def _beyond_precision(self) -> list[str]:
        """Names of the attributes that are too large or too small in the user's units."""
        names = ["coef_", "coef_sd_", "relevance_", "intercept_", "intercept_sd_"]
        lost = [n for n in names if not np.all(np.isfinite(getattr(self, n, 0.0)))]
        if self.prior == "ard" and np.any(self.selected_ & (self.relevance_ == 0)):
            lost.append("relevance_")
        return lost

    def _failure(self) -> str:
        if self.result_.converged and (names := self._beyond_precision()):
            return (
                f"{type(self).__name__}: {names[0]} is too large or too small for its precision "
                "in the units of X, although the fit has converged; rescale the columns"
            )
        sentence = self.result_.message.replace("max_steps or time_budget", "max_iter")
        return f"{type(self).__name__}: {sentence.replace('tolerance', 'tol')}"

    def _slopes(self, weights: np.ndarray) -> np.ndarray:
        """Slopes in the user's units and shape, from (..., blocks, columns) in fitted units."""
        slopes = self._posterior.columns.slopes(weights)
        return self._of_blocks(self._response_units[1] * slopes, -2)

    def _offsets(self, weights: np.ndarray) -> Any:
        """Intercepts in the user's units and shape."""
        shift, scale = self._response_units
        return self._of_blocks(shift + scale * self._posterior.columns.offsets(weights), -1)

    def _of_blocks(self, values: np.ndarray, axis: int) -> Any:
        """All blocks of a classifier; the only one of a regressor."""
        return values if self._has_classes else values.take(0, axis)

    def _predictor(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of the linear predictors of new rows (rows, blocks), in float64."""
        check_is_fitted(self)
        validation.refuse_masked(X, "X")
        X = validate_data(self, X, accept_sparse="csr", dtype=DTYPES, reset=False)
        table = canonical(X) if sparse.issparse(X) else X
        mean, sd = in_chunks(self._posterior.predictor, table)
        shift, scale = self._response_units
        return shift + scale * mean, scale * sd
