"""``curvi.SemiSupervisedVAE``: a classifier that also learns from rows without labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.trees import precision_of
from curvi.solvers import Averaged, FirstOrder, Method
from curvi.vae._class_model import ClassObjective, ClassParams, MixedRows, initial_class_params
from curvi.vae._evaluate import in_blocks
from curvi.vae._train import Schedule, Trained, train
from curvi.vae._training import TrainsVAE

_DTYPES = (np.float64, np.float32)

Model = TypeVar("Model", bound="SemiSupervisedVAE")


class SemiSupervisedVAE(TrainsVAE, ClassifierMixin, BaseEstimator):
    """Classify with a generative model p(y) p(z) p(x | z, y) when few rows have labels.

    The class of an unlabelled row is summed out exactly, so that all rows shape the classifier
    q(y | x).

    Images are best turned into codes first, which is both faster and more accurate:
    ``make_pipeline(VAE(latent=50), SemiSupervisedVAE(likelihood="gaussian"))``, in the words of
    scikit-learn; Kingma and others (2014) call it M1 + M2.

    Parameters
    ----------
    latent, hidden, activation, likelihood, variance, decoder_l2
        The networks, as for :class:`~curvi.vae._estimator.VAE`.
    batch_size, max_epochs, time_budget, random_state, verbose
        Training, likewise; a step sees ``batch_size`` unlabelled and as many labelled rows.
    label_weight : float
        Weight of the classifier's own loss on labelled rows, against bounds in nats per row.
    method : a method of curvi, optional
        By default Adam with averaged weights: the sum over classes is not a plain stack of layers,
        so KFAC does not apply here.

    Attributes
    ----------
    classes_ : array
        Labels, in order.
    params_, history_, elbo_, n_iter_, outcome_, message_, result_
        As for :class:`~curvi.vae._estimator.VAE`; ``elbo_`` is the last training bound, less
        ``label_weight`` times the classifier's own loss.
    """

    def __init__(
        self,
        latent: int = 20,
        hidden: Sequence[int] = (300,),
        *,
        activation: str = "gelu",
        likelihood: str = "bernoulli",
        variance: str | float = "pixel",
        decoder_l2: float = 1e-4,
        label_weight: float = 10.0,
        batch_size: int = 50,
        max_epochs: int = 20,
        time_budget: float | None = None,
        method: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.latent = latent
        self.hidden = hidden
        self.activation = activation
        self.likelihood = likelihood
        self.variance = variance
        self.decoder_l2 = decoder_l2
        self.label_weight = label_weight
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.time_budget = time_budget
        self.method = method
        self.random_state = random_state
        self.verbose = verbose

    def fit(self: Model, X: Any, y: Any) -> Model:
        """Train on rows and labels; -1, "-1", None and NaN mean that there is none.

        Raises
        ------
        InputError
            For options or rows that cannot be used, or fewer than two classes.
        NumericalError
            If the bound turned non-finite again and again.
        """
        self._check_networks()
        validation.positive_number(self.label_weight, "label_weight")
        if self.method is not None and not isinstance(self.method, Method):
            raise InputError(f"method is {self.method!r}; give a method such as curvi.LBFGS()")
        X = self._rows(X, reset=True)
        labels = np.asarray(y)
        if labels.shape != (len(X),):
            raise InputError(f"y has shape {labels.shape}; it needs one label per row, ({len(X)},)")
        known = ~_missing(labels)
        self.classes_, encoded = _classes(labels[known])
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator = np.random.default_rng(seed)
        # Every row has a labelled partner; labelled rows take turns.
        partner = np.resize(generator.permutation(int(known.sum())), len(X))
        rows = MixedRows(X, X[known][partner], encoded[partner].astype(np.int32))
        with precision_of(X.dtype):
            trained = self._train(rows, generator, seed, int(known.sum()))
        self._publish(trained)
        return self

    def _train(
        self, rows: MixedRows, generator: np.random.Generator, seed: int, labels: int
    ) -> Trained:
        X = np.asarray(rows.x)
        likelihood = self._likelihood(X)
        self.objective_ = ClassObjective(
            likelihood,
            len(self.classes_),
            labels / len(X),
            float(self.label_weight),
            float(self.decoder_l2),
            self.activation,
        )
        learned = likelihood.variances
        params = initial_class_params(
            generator,
            inputs=X.shape[1],
            hidden=tuple(self.hidden),
            latent=self.latent,
            classes=len(self.classes_),
            variances=X.shape[1] if learned is None else learned,
            output_bias=self._mean_output(X).astype(X.dtype),
        )
        return train(
            self.objective_,
            params,
            rows,
            method=self.method or _default_method(),
            schedule=Schedule(
                batch_size=self.batch_size or 50,
                max_epochs=self.max_epochs,
                time_budget=self.time_budget,
                seed=seed,
                progress=bool(self.verbose),
            ),
        )

    def predict_proba(self, X: Any) -> np.ndarray:
        """q(y | x), one column per class."""
        check_is_fitted(self)
        X = self._rows(X).astype(self.params_.log_variance.dtype)
        with precision_of(X.dtype):
            return in_blocks(lambda _, x: _probabilities(self.objective_, self.params_, x), x=X)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def _rows(self, X: Any, *, reset: bool = False) -> np.ndarray:
        X = validate_data(self, X, dtype=_DTYPES, ensure_all_finite=False, reset=reset)
        validation.refuse_non_finite(X, "X", "pixels must be finite")
        if self.likelihood == "bernoulli" and ((X < 0) | (X > 1)).any():
            row, column = (int(i) for i in np.argwhere((X < 0) | (X > 1))[0])
            raise InputError(
                f"X[{row}, {column}] is {X[row, column]}; likelihood='bernoulli' needs values "
                "in [0, 1]: divide grey levels by their maximum, or use likelihood='gaussian'"
            )
        return X


@cache
def _default_method() -> Method:
    """The same object for every fit, so that a second one compiles nothing."""
    return Averaged(FirstOrder(optax.adam(2e-3)))


def _missing(labels: np.ndarray) -> np.ndarray:
    """Rows without a label; NumPy turns the -1 of a mixed list into a string."""
    if labels.dtype.kind in "US":
        return labels == np.asarray("-1", labels.dtype.kind)
    if labels.dtype.kind == "f":
        return np.isnan(labels) | (labels == -1)
    if labels.dtype.kind == "O":
        return np.asarray([_is_missing(label) for label in labels], bool)
    return labels == -1


def _is_missing(label: Any) -> bool:
    try:
        nan = isinstance(label, float | np.floating) and bool(np.isnan(label))
        return label is None or nan or bool(label == -1) or bool(label == "-1")
    except TypeError:  # a missing value of pandas has no truth
        return True


def _classes(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Classes in order, and the number of each row's class."""
    if labels.dtype.kind == "O":
        mixed = len({isinstance(label, str) for label in labels}) > 1
        if mixed or any(np.ndim(label) != 0 for label in labels):
            raise InputError("y has labels of several kinds; use numbers, or use strings")
        labels = np.asarray(labels.tolist())  # strings or numbers again
    classes, encoded = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError("y names fewer than two classes; -1 marks rows without a label")
    return classes, encoded


@partial(jax.jit, static_argnames=("objective",))
def _probabilities(objective: ClassObjective, params: ClassParams, x: Array) -> Array:
    return jnp.exp(objective.log_probabilities(params, x))
