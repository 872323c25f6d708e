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
from curvi._core.errors import InputError, Interrupted, MisfitWarning, Outcome, warn_user
from curvi._core.memory import require_memory
from curvi._core.meshes import current_mesh
from curvi.engine import opened
from curvi.glm._choices import Choices
from curvi.glm._design import Columns, is_selected
from curvi.glm._fit import LIMITS
from curvi.glm._narrowness import TOO_NARROW
from curvi.glm._output import Shown, StoredRegression, feature_names
from curvi.glm._posterior import Posterior
from curvi.glm._rows import DTYPES, Block, Observations, Streaming, UserBlocks, canonical, in_chunks
from curvi.glm._sparse_rows import stored_by_density
from curvi.glm._starts import GLMFit

Model = TypeVar("Model", bound="BayesianLinearModel")
# scikit-learn reads parameters from the signature of the constructor, which stores them unchanged:
# that of a dataclass, whose fields subclasses inherit.
estimator = dataclass(kw_only=True, eq=False, repr=False)


class CoefficientDraws(NamedTuple):
    """Draws from the posterior in the user's units, the draws along the first axis."""

    coef: np.ndarray
    intercept: np.ndarray


@estimator
class BayesianLinearModel(Choices, Shown, StoredRegression, BaseEstimator, abc.ABC):
    """Base of the linear estimators: everything but the likelihood."""

    _streaming = Streaming()
    _has_classes = False  # of attributes: regressors leave out the axis of blocks
    _kind = "regression"  # in reports, as the next two
    _effects = "changes of the expected response"
    _scored = "Variance"

    prior: str = "normal"
    prior_scale: float = 1.0
    covariance: str = "auto"
    method: str = "newton"
    fit_intercept: bool = True
    standardize: bool = True
    intercept_prior_scale: float | None = None
    rank: int = 10
    num_starts: int | None = None
    num_draws: int | None = None
    batch_size: int | None = None
    max_iter: int | None = None
    tol: float | None = None
    random_state: Any = None
    verbose: bool | int = 0

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
        Interrupted
            At Ctrl-C, with the attributes of what was fitted until then; cross-validation stops.

        Warns
        -----
        ConvergenceWarning
            If the maximum of the bound was not reached; the message says what to do.
        MisfitWarning
            If sds are too small because the covariance, chosen or given, leaves correlations out.
        """
        with opened(locals()):
            self._check_parameters()
            on_disk = isinstance(X, np.memmap)
            X, y, weight = self._check_rows(X, y, sample_weight)
            one_predictor = self._labels(y).shape[0] <= 2
            streamed = self._streams(X, on_disk) and one_predictor
            if one_predictor and not streamed and self._takes_dense_steps(X):
                X = stored_by_density(X, self._streaming.largest_copy)
            blocks = self._streaming.blocks(X, y, weight) if streamed else [Block(X, y, weight)]
            return self._fit_observations(Observations(blocks, self._labels, streamed=streamed))

    def fit_blocks(self: Model, blocks: Any, *, checkpoint: Any = None) -> Model:
        """Fit rows that come in blocks, beyond memory: exact sums, one block at a time.

        Parameters
        ----------
        blocks : callable or collection
            A function that returns a fresh iterator of blocks ``(X, y)`` or
            ``(X, y, sample_weight)``, or a collection of them: a fit passes over the rows once
            per step. How the rows are cut into blocks does not matter; columns of DataFrames are
            taken by their names.
        checkpoint : path or Checkpoint, optional
            A file from which the same call resumes (:class:`curvi.Checkpoint`).

        Returns
        -------
        self

        Raises
        ------
        InputError
            For an iterator that can be read only once, blocks that do not fit together, rows that
            change from one pass to the next, more than two classes, a method other than
            ``"newton"``, or a low-rank covariance.
        """
        with opened(locals(), "fit_blocks"):
            self._check_parameters()
            if self.method != "newton" or self.covariance == "low-rank":
                raise InputError("rows in blocks need method='newton' and no low-rank covariance")
            given = UserBlocks(blocks)
            data = Observations(given, self._labels, streamed=True)
            self.n_features_in_ = data.columns.mean.shape[0]
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
            if given.names and all(isinstance(name, str) for name in given.names):
                self.feature_names_in_ = np.array(given.names, dtype=object)
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
        # Under a relevance prior each coefficient is identified by its own prior.
        centred = fitted.q.mean.ndim > 1 and self.prior == "normal"
        self._posterior = Posterior.of(columns, fitted.family, fitted.q, centred=centred)
        self._publish(data.dtype)
        if fitted.outcome is Outcome.INTERRUPTED:
            raise Interrupted(
                f"interrupted after {fitted.steps} steps; the estimator keeps what was fitted "
                "until then",
                fitted,
            )
        if not self.converged_:
            warnings.warn(self._failure(), ConvergenceWarning, stacklevel=3)
        elif self.prior == "normal" and (narrow := self._narrow()):
            advice = "fit again with covariance='full', or ignore this where sds do not matter"
            warn_user(MisfitWarning(f"{type(self).__name__}: {narrow}; {advice}", self))
        elif several := self._several():
            warn_user(MisfitWarning(f"{type(self).__name__}: {several}", self))
        return self

    def _optima(self) -> list[tuple[float, Posterior, float]]:
        """Weight, posterior and noise variance of every optimum, the best first."""
        fitted, columns = self.result_, self._posterior.columns
        others = [
            (one.weight, Posterior.of(columns, fitted.family, one.q), one.noise)
            for one in fitted.others
        ]
        return [(1 - sum(weight for weight, *_ in others), self._posterior, fitted.noise), *others]

    def _several(self) -> str:
        """What other optima mean for the coefficients, or nothing."""
        if not (others := self.result_.others):
            return ""
        optima, features = self._optima(), self.n_features_in_
        chosen = [is_selected(p.mean, p.variance)[:, :features].any(axis=0) for _, p, _ in optima]
        common, together = np.sum(np.all(chosen, axis=0)), np.sum(np.any(chosen, axis=0))
        apart = np.log(optima[0][0] / others[-1].weight)
        return (
            f"the rows leave open which features matter: {len(optima)} optima within {apart:.1f} "
            f"nats select {together} features, of which all share {common}; predictions average "
            "over the optima, but coef_ and selected_ are those of the best, whose weight is "
            f"{optima[0][0]:.2f}: do not rely on its selection without more rows, or use "
            "prior='normal'"
        )

    def _narrow(self, names: list[str] | None = None) -> str:
        """Which sds are too small by a factor worth mentioning, or nothing."""
        ratios = self.result_.sd_ratios
        if ratios is None:
            return ""
        ratio = ratios.max(axis=0)[: self.n_features_in_]
        worst, many = int(np.argmax(ratio)), int(np.sum(ratio > TOO_NARROW))
        if not many:
            return ""
        return (
            f"features are correlated, and the {self.covariance_} covariance leaves that out: the "
            f"sds of at least {many} of {len(ratio)} features are too small, that of "
            f"{(names or feature_names(self))[worst]} by a factor of {ratio[worst]:.1f}"
        )

    def _takes_dense_steps(self, X: Any) -> bool:
        """Whether Newton steps form the whole Hessian, on the host."""
        plain = self.method == "newton" and self.covariance != "low-rank"
        return plain and X.shape[1] < LIMITS.largest_dense // 2 and current_mesh() is None

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
        seed, optima = validation.checked_seed(seed), self._optima()
        weights = self._posterior.sample(num_draws, seed)
        if len(optima) > 1:
            shares = [weight for weight, *_ in optima]
            chosen = np.random.default_rng([seed, 0]).choice(len(optima), num_draws, p=shares)
            for k, (_, posterior, _) in enumerate(optima[1:], start=1):
                weights[chosen == k] = posterior.sample(int(np.sum(chosen == k)), [seed, k])
        return CoefficientDraws(self._slopes(weights), self._offsets(weights))

    def _check_rows(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        """Validate a table: finite numbers, matching lengths; rows of weight zero are dropped."""
        for given, name in ((X, "X"), (y, "y"), (sample_weight, "sample_weight")):
            validation.refuse_unreal(given, name)
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

    def _publish(self, dtype: Any) -> None:
        """Set the public attributes, in the user's units and precision."""
        fitted, columns = self.result_, self._posterior.columns
        for name in ("relevance_", "selected_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        mean, sd = self._posterior.shown_mean, np.sqrt(self._posterior.variance)
        with np.errstate(over="ignore", invalid="ignore"):  # reported by name
            self.coef_ = self._slopes(mean).astype(dtype)
            self.coef_sd_ = self._slopes(sd).astype(dtype)
            self.intercept_ = self._offsets(mean).astype(dtype)
        # The intercept is the predictor where all features are zero.
        spread = self._posterior.at_origin() * columns.intercept
        self.intercept_sd_ = self._of_blocks(self._response_units[1] * spread, -1).astype(dtype)
        self.elbo_, self.elbos_, self.elbo_se_ = fitted.elbo, fitted.elbos, fitted.elbo_se
        if self.prior == "ard":
            with np.errstate(over="ignore"):
                self.relevance_ = self.coef_sd_**2 + self.coef_**2
            features = columns.scale.shape[0]
            moments = mean[:, :features], self._posterior.variance[:, :features]
            self.selected_ = is_selected(*moments).reshape(self.coef_.shape)
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

    def _predictors(self, X: Any, *, jointly: bool = False) -> list[tuple[Any, ...]]:
        """Weight and noise sd of every optimum, mean and sd of its linear predictors of new rows.

        The last two are (rows, blocks), in float64; ``jointly`` with the correlations of the
        predictors of each row.
        """
        check_is_fitted(self)
        validation.refuse_unreal(X, "X")
        X = validate_data(self, X, accept_sparse="csr", dtype=DTYPES, reset=False)
        table = canonical(X) if sparse.issparse(X) else X
        shift, scale = self._response_units
        found = []
        for weight, posterior, noise in self._optima():
            moments: Any = posterior.joint_predictor if jointly else posterior.predictor
            mean, sd, *rest = in_chunks(moments, table)
            found.append((weight, scale * np.sqrt(noise), shift + scale * mean, scale * sd, *rest))
        return found
