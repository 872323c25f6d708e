"""Bayesian logistic regression: binary by exact integrals, multiclass by a softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from curvi._core.errors import InputError
from curvi.glm._base import BayesianLinearModel
from curvi.glm._design import Columns
from curvi.glm._fit import fit_glm
from curvi.glm._rows import Observations, StreamedRows
from curvi.glm._softmax import fit_softmax
from curvi.glm._starts import GLMFit
from curvi.likelihoods import Bernoulli, expected_softmax


class BayesianLogisticRegression(ClassifierMixin, BayesianLinearModel):
    r"""Logistic regression with a Gaussian posterior over its coefficients.

    The evidence lower bound is maximised exactly: the expected log likelihood of a row is a
    one-dimensional integral, solved by quadrature, and steps are Newton's. With more than two
    classes the model is a softmax, and the integral over the logits of a row is averaged over
    normalised draws (``elbo_se_`` is its error).

    Parameters
    ----------
    prior : {"normal", "ard"}
        ``"normal"``: N(0, prior_scale^2). ``"ard"``: every coefficient has a prior variance of
        its own, chosen to maximise the ELBO (automatic relevance determination): irrelevant
        features are switched off.
    prior_scale : float
        Prior sd of coefficients, in standardised units if ``standardize``.
    covariance : {"auto", "full", "diagonal", "low-rank"}
        Structure of the posterior covariance. ``"auto"`` is full up to 800 coefficients under a
        normal prior with Newton steps, and diagonal otherwise. Full means jointly over all classes;
        with ``prior="ard"`` or a stochastic method, and for every other structure, classes are
        independent of each other. Sds are then too small where features are correlated; a fit looks
        for that, ``"auto"`` warns of it, and :meth:`report` says by how much.
    method : {"newton", "hfsgvi", "lbfgs", "dsvi"}
        Exact Newton steps, or one of the paper's stochastic methods, whose result is judged by
        the exact ELBO.
    fit_intercept, standardize : bool
        Add an intercept; centre and scale features inside (results are in your units).
    intercept_prior_scale : float, optional
        Prior sd of the intercept; ``prior_scale`` by default. With ``prior="ard"`` this is the
        least one: a larger one is chosen where that raises the ELBO, and the intercept is never
        switched off.
    rank : int
        Rank of a low-rank covariance; at most the number of coefficients less one.
    num_starts : int, optional
        Number of starts, of which the one with the highest ELBO is kept. By default 1, or with
        ``prior="ard"``, whose ELBO has many maxima, as many as are cheap: up to 30 within 1e11
        multiplications, whatever the machine. Where rows outnumber coefficients it is 1e10, and
        four that agree are enough. Stochastic methods make 4 at most.
    num_draws, batch_size : int, optional
        Draws of q (10 by default; the paper's Algorithm 1 takes 1) and rows per step of the
        stochastic methods.
    max_iter, tol : int, float, optional
        Largest number of steps, and the remaining gain in nats at which they end.
    random_state : int, RandomState or None
        Randomness of further starts and of stochastic methods.
    verbose : int
        Show a progress bar on a terminal.

    Attributes
    ----------
    coef_, coef_sd_ : arrays, (1, features) or (classes, features)
        Posterior means and sds. With more than two classes they sum to zero over the classes: each
        is the difference from the mean of all classes, since rows say nothing about a number that
        is added to all of them. Under a relevance prior, which does, they are as they are fitted,
        and those of a feature that is switched off are both zero, nearly: the posterior takes it
        as irrelevant for certain, and its sd does not say how sure that is.
    intercept_, intercept_sd_ : arrays, (1,) or (classes,)
        Posterior means and sds of the intercepts, which sum to zero likewise.
    covariance_ : str
        The structure of the covariance that was fitted.
    classes_ : array
        Labels, in order.
    relevance_, selected_ : arrays
        With ``prior="ard"``: prior variances ``coef_sd_^2 + coef_^2``, and which features
        matter: without one of them the ELBO would be lower by more than a nat, which takes a mean
        of about two sds. Others may be on, too, and have their small part in predictions.
    elbo_, elbo_se_, elbos_ : float, float, array
        The ELBO, its Monte-Carlo standard error (zero for two classes), and the ELBO of every
        start.
    n_iter_, converged_, result_
        The number of steps, whether they converged, and everything else about the fit.

    Notes
    -----
    Starts under a relevance prior may end in several optima, of which a fit warns. ``coef_`` and
    all other attributes are those of the best. Probabilities and draws are averages over
    all optima with at least a hundredth of the weight of the best, in proportion to ``exp(elbo)``;
    ``result_.others`` has the moments and weights of the others.

    Examples
    --------
    >>> import numpy as np
    >>> from curvi.glm import BayesianLogisticRegression
    >>> X = np.array([[-2.0], [-1.0], [-0.5], [0.5], [1.0], [2.0]])
    >>> model = BayesianLogisticRegression().fit(X, [0, 0, 1, 0, 1, 1])
    >>> model.converged_, model.predict([[3.0]])
    (True, array([1]))
    """

    _has_classes = True
    _kind = "logistic regression"
    _effects = "changes of the log odds"

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        scores = self.decision_function(X)
        index = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[index]

    def decision_function(self, X: Any) -> np.ndarray:
        """Log odds of the second class, or with more classes the log probability of each.

        Both are of the probabilities of :meth:`predict_proba`, which integrate over the
        posterior.
        """
        log_proba = self.predict_log_proba(X)
        if self.classes_.shape[0] > 2:
            return log_proba
        return log_proba[:, 1] - log_proba[:, 0]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        proba = self._integrated(X)
        return np.log(np.maximum(proba, np.finfo(np.float64).tiny)).astype(self.coef_.dtype)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, integrated over the posterior of the coefficients."""
        return self._integrated(X).astype(self.coef_.dtype)

    def _integrated(self, X: Any) -> np.ndarray:
        """Probabilities in float64, averaged over the optima."""
        parts = self._predictors(X, jointly=True)
        return np.sum([weight * _probabilities(*part) for weight, _, *part in parts], axis=0)

    def _labels(self, y: np.ndarray) -> np.ndarray:
        try:
            check_classification_targets(y)
            return np.unique(y)
        except TypeError as error:  # they cannot be put in order
            kinds = ", ".join(sorted({type(label).__name__ for label in y.tolist()}))
            raise InputError(
                f"y has labels of several kinds ({kinds}); use numbers, or use strings"
            ) from error

    def _learn(self, labels: np.ndarray) -> None:
        if labels.shape[0] < 2:
            raise InputError(
                f"y has one class only ({labels[0]!r}); a classifier needs at least two"
            )
        self.classes_ = labels

    def _encode(self, y: np.ndarray, dtype: Any) -> np.ndarray:
        index = np.minimum(np.searchsorted(self.classes_, y), self.classes_.shape[0] - 1)
        unknown = np.flatnonzero(self.classes_[index] != y)
        if unknown.size:
            raise InputError(
                f"y[{unknown[0]}] is {y[unknown[0]]!r}, which did not occur in the first pass; "
                "every pass must give the same rows"
            )
        if self.classes_.shape[0] > 2:
            return index.astype(np.int32)
        return np.where(index == 1, 1.0, -1.0).astype(dtype)

    def _fit_rows(self, data: Observations, columns: Columns) -> GLMFit:
        classes = self.classes_.shape[0]
        precision = self._precision(columns, data.dtype)
        rows = data.rows(columns, precision, 1.0, lambda y: self._encode(y, data.dtype))
        family, relevance = self._family(columns.count, classes), self.prior == "ard"
        intercept, options = columns.intercept, self._options(columns, data.columns.total, 0.25)
        if classes > 2:
            if isinstance(rows, StreamedRows):
                raise InputError(
                    f"y has {classes} classes; rows in blocks are fitted for two classes only"
                )
            return fit_softmax(
                family, rows, classes, relevance=relevance, intercept=intercept, options=options
            )
        return fit_glm(
            Bernoulli(), family, rows, relevance=relevance, intercept=intercept, options=options
        )


def _probabilities(
    mean: np.ndarray, sd: np.ndarray, correlation: np.ndarray, *, wide: float = 1e100
) -> np.ndarray:
    """Of each class, from the predictors of every row.

    ``wide``: beyond, the sigmoid and the softmax of a predictor are steps.
    """
    # Wide predictors only compare with each other: in smaller units they can be squared.
    size = np.maximum(np.abs(mean), sd).max(axis=1, keepdims=True)
    shrink = wide / np.maximum(size, wide)
    mean, sd = shrink * mean, shrink * sd
    if mean.shape[1] == 1:
        m, v, labels = mean[:, 0], sd[:, 0] ** 2, Bernoulli()
        return np.column_stack([labels.expected_mean(sign * m, v) for sign in (-1.0, 1.0)])
    return expected_softmax(mean, sd[:, :, None] * correlation * sd[:, None, :])
