"""What a fitted regression shows of itself, and what a file must say of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from curvi._core.errors import InputError
from curvi.glm._posterior import Posterior
from curvi.glm._starts import GLMFit
from curvi.io import SavedEstimator, require_claims, require_like
from curvi.plots import plot_coefficients


class Shown:
    """Methods of a fitted regression that make pages and figures."""

    def report(
        self: Any,
        path: str | os.PathLike[str],
        X: Any = None,
        y: Any = None,
        *,
        title: str | None = None,
    ) -> Path:
        """Write a page for a browser that stands alone, and its numbers as JSON beside it.

        The verdict in plain words (whether a covariance that is not full has made intervals too
        narrow among it), coefficients with intervals and the probability of their
        direction, convergence, and how to repeat the fit. With the rows also how well the model
        describes them.

        Parameters
        ----------
        path : path
            The page, as in ``report.html``; an earlier report of that name is replaced.
        X, y : arrays, optional
            Rows to compare predictions with, those of the fit as a rule.
        title : str, optional
            Title of the page.

        Returns
        -------
        Path
            The page.

        Raises
        ------
        InputError
            If X comes without y, or the file is there and is no report.
        """
        from curvi.glm._report import RegressionPage
        from curvi.report import write_report

        check_is_fitted(self)
        return write_report(RegressionPage(self, X, y).report(title), path)

    def plot_coefficients(self: Any) -> Any:
        """Draw the estimated coefficients as stems; returns a matplotlib figure."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        labels = [str(label) for label in getattr(self, "classes_", [])]
        return plot_coefficients(
            np.atleast_2d(self.coef_),
            names=None if names is None else [str(name) for name in names],
            labels=labels if len(labels) > 2 else None,
        )


def feature_names(model: Any) -> list[str]:
    """Names of the columns of a fit, or x0, x1, ..."""
    found = getattr(model, "feature_names_in_", None)
    return (
        [f"x{i}" for i in range(model.n_features_in_)] if found is None else list(map(str, found))
    )


class StoredRegression(SavedEstimator):
    """A regression whose sizes fit each other after loading, too."""

    result_: GLMFit
    classes_: np.ndarray
    _posterior: Posterior
    _response_units: tuple[float, float] = (0.0, 1.0)  # shift and scale to those that are fitted

    _claims = {  # noqa: RUF012  of no instance
        "n_features_in_": "whole d", "_posterior.columns.centre": "real d",
        "_posterior.columns.scale": "positive d", "_posterior.columns.mean_square": "spread d",
        "_posterior.mean": "real blocks p", "_posterior.diagonal": "spread blocks p",
        "_posterior.factor": "real? blocks p rank", "coef_": "real ...", "coef_sd_": "spread ...",
        "intercept_": "real ...", "intercept_sd_": "spread ...", "relevance_": "spread? ...",
        "selected_": "flag? ...", "classes_": "texts? classes", "feature_names_in_": "texts? d",
        "elbo_": "number", "elbos_": "number starts", "elbo_se_": "number",
        "n_iter_": "whole iterations", "converged_": "switch", "_response_units": "real units",
        "covariance_": "text", "result_.trace": "trace steps step elbo",
    }  # fmt: skip

    def _check_stored(self: Any) -> None:
        """Refuse what a file says of sizes that do not fit each other."""
        if not hasattr(self, "n_features_in_"):
            return
        posterior = self._posterior
        if not self._response_units[1] > 0:
            raise InputError("its _response_units have a scale that is not positive")
        if self._has_classes:
            require_claims(self, {"classes_": "texts classes"})
            if len(posterior.mean) != (len(self.classes_) if len(self.classes_) > 2 else 1):
                raise InputError("its classes_ do not fit its _posterior")
        if posterior.mean.shape[1] != posterior.columns.count:
            raise InputError("its _posterior.mean does not have one entry for each of its columns")
        relevances = ("relevance_", "selected_") if self.prior == "ard" else ()
        for names, shape in (
            (("coef_", "coef_sd_", *relevances), self._slopes(posterior.mean).shape),
            (("intercept_", "intercept_sd_"), self._offsets(posterior.mean).shape),
        ):
            for name in names:
                if np.shape(vars(self).get(name)) != shape:
                    raise InputError(f"its {name} does not have the shape {shape} of _posterior")
        self._check_others(self.result_)

    def _check_others(self: Any, fitted: GLMFit) -> None:
        """Refuse other optima that are not like the one that was kept."""
        posterior = self._posterior
        shares = [one.weight for one in fitted.others]
        if not all(share > 0 for share in shares) or not sum(shares) < 1:
            raise InputError("its result_.others have weights that are no shares")
        for one in fitted.others:
            require_like(one.q, fitted.q, "result_.others")
            noise = "positive" if np.isfinite(fitted.noise) else "number"  # a softmax has none
            require_claims(one, {"q.mean": "real ...", "noise": noise, "elbo": "number"})
            other = Posterior.of(posterior.columns, fitted.family, one.q)
            if other.mean.shape != posterior.mean.shape or not np.isfinite(other.variance).all():
                raise InputError("its result_.others do not fit its _posterior")
