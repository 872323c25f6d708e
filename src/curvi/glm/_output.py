"""What a fitted regression shows of itself: a report, a figure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

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
