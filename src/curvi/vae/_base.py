"""What the estimators share: validation before training, attributes after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from curvi._core import validation
from curvi._core.errors import (
    InputError,
    Interrupted,
    NotConvergedWarning,
    NumericalError,
    Outcome,
    warn_user,
)
from curvi.vae._networks import ACTIVATIONS
from curvi.vae._objective import Likelihood, likelihood_for
from curvi.vae._training import Schedule, Trained
from curvi.vae._use import dtype_of


class AutoEncoder(BaseEstimator):
    """What both estimators share: validation before training, attributes after it."""

    latent: int
    hidden: Sequence[int]
    activation: str
    likelihood: str
    variance: str | float
    decoder_l2: float
    batch_size: int | None
    max_epochs: int
    time_budget: float | None
    random_state: Any
    verbose: int
    result_: Trained

    def _check_options(self) -> None:
        """Validate networks and schedule."""
        for name in ("latent", "max_epochs"):
            validation.positive_integer(getattr(self, name), name)
        hidden: Any = self.hidden
        if isinstance(hidden, str) or not isinstance(hidden, Sequence) or not hidden:
            raise InputError(f"hidden is {hidden!r}; give a sequence of sizes, as in (500,)")
        for size in hidden:
            validation.positive_integer(size, "a size in hidden")
        validation.one_of(self.activation, tuple(ACTIVATIONS), "activation")
        validation.one_of(self.likelihood, ("bernoulli", "gaussian"), "likelihood")
        if self.time_budget is not None:
            validation.positive_number(self.time_budget, "time_budget")
        if self.batch_size is not None:
            validation.positive_integer(self.batch_size, "batch_size")
        if self.decoder_l2 != 0:
            validation.positive_number(self.decoder_l2, "decoder_l2")

    def _rows(self, X: Any, *, reset: bool = False) -> np.ndarray:
        """Validate rows: finite, of the right width, in range for the likelihood."""
        if not reset:
            check_is_fitted(self)
        X = validate_data(
            self, X, dtype=(np.float64, np.float32), ensure_all_finite=False, reset=reset
        )
        need = "pixels must be finite, not NaN or infinity; VAE.impute fills missing ones"
        validation.refuse_non_finite(X, "X", need)
        if self.likelihood == "bernoulli" and (outside := (X < 0) | (X > 1)).any():
            row, column = (int(i) for i in np.argwhere(outside)[0])
            raise InputError(
                f"X[{row}, {column}] is {X[row, column]}; likelihood='bernoulli' needs values "
                "in [0, 1]: divide grey levels by their maximum, or use likelihood='gaussian'"
            )
        return X if reset else X.astype(dtype_of(self.result_))

    def _likelihood(self, X: np.ndarray) -> Likelihood:
        return likelihood_for(X, self.likelihood, self.variance)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _schedule(self, batch_size: int, seed: int, patience: int = 10) -> Schedule:
        budget, progress = self.time_budget, bool(self.verbose)
        return Schedule(batch_size, self.max_epochs, budget, patience, seed, progress)

    def _publish(self, trained: Trained) -> None:
        """Attributes of a run; a failed one warns, or raises if it left nothing to use.

        An interrupted one raises, so that cross-validation stops.
        """
        self.result_, self.params_, self.objective_ = trained, trained.params, trained.objective
        self.history_, self.n_iter_, self.elbo_ = trained.history, trained.steps, trained.elbo
        self.outcome_, self.message_ = trained.outcome, trained.outcome.sentence
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained.params)):
            raise NumericalError("the weights are not finite after training", trained)
        if trained.outcome is Outcome.INTERRUPTED:
            raise Interrupted(
                f"interrupted after {trained.steps} steps; the estimator keeps what was trained "
                "until then",
                trained,
            )
        if trained.outcome.is_failure:
            if not np.isfinite(trained.history["validation_elbo"]).any():
                raise NumericalError(self.message_, trained)
            warn_user(NotConvergedWarning(self.message_, trained))
