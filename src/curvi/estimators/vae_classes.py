"""``curvi.SemiSupervisedVAE``: a classifier that also learns from rows without labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from curvi.core import gate
from curvi.core.errors import InputError
from curvi.core.trees import precision_of
from curvi.methods import Averaged, FirstOrder, Method
from curvi.models.vae import Bernoulli, Gaussian, Schedule, train
from curvi.models.vae.classes import ClassObjective, ClassParams, MixedRows, initial_class_params
from curvi.models.vae.evaluate import in_blocks

_DTYPES = (np.float64, np.float32)
_MARGIN = 0.02

Model = TypeVar("Model", bound="SemiSupervisedVAE")


class SemiSupervisedVAE(ClassifierMixin, BaseEstimator):
    """Classify with a generative model p(y) p(z) p(x | z, y) when few rows have labels.

    The class of an unlabelled row is summed out exactly, so that all rows shape the classifier
    q(y | x).

    Parameters
    ----------
    latent, hidden, activation, likelihood, variance, decoder_l2
        The networks, as for :class:`~curvi.estimators.vae.VAE`.
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
    params_, history_, result_
        Weights, training bound, everything else.
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
        batch_size: int = 100,
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
        """Train on rows and labels; a label of -1 means that there is none."""
        gate.one_of(self.likelihood, ("bernoulli", "gaussian"), "likelihood")
        gate.positive_integer(self.latent, "latent")
        if self.method is not None and not isinstance(self.method, Method):
            raise InputError(f"method is {self.method!r}; give a method such as curvi.LBFGS()")
        X = self._rows(X, reset=True)
        labels = np.asarray(y)
        if labels.shape != (len(X),):
            raise InputError(f"y has shape {labels.shape}; it needs one label per row, ({len(X)},)")
        known = labels != -1
        self.classes_, encoded = np.unique(labels[known], return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError("y names fewer than two classes; -1 marks rows without a label")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator = np.random.default_rng(seed)
        # Every row has a labelled partner; labelled rows take turns.
        partner = np.resize(generator.permutation(int(known.sum())), len(X))
        rows = MixedRows(X, X[known][partner], encoded[partner].astype(np.int32))
        with precision_of(X.dtype):
            self._train(rows, generator, seed, int(known.sum()))
        return self

    def _train(
        self, rows: MixedRows, generator: np.random.Generator, seed: int, labels: int
    ) -> None:
        X = np.asarray(rows.x)
        mean, scale = X.mean(axis=0), float(np.sqrt(X.var(axis=0).mean()))
        if self.likelihood == "bernoulli":
            safe = np.clip(mean, _MARGIN, 1 - _MARGIN)
            mean = np.log(safe) - np.log1p(-safe)
        bernoulli = self.likelihood == "bernoulli"
        likelihood = Bernoulli() if bernoulli else Gaussian(self.variance, float(f"{scale:.3g}"))
        self.objective_ = ClassObjective(
            likelihood,
            len(self.classes_),
            labels / len(X),
            gate.positive_number(self.label_weight, "label_weight"),
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
            output_bias=mean.astype(X.dtype),
        )
        self.result_ = train(
            self.objective_,
            params,
            rows,
            method=self.method or Averaged(FirstOrder(optax.adam(2e-3))),
            schedule=Schedule(
                batch_size=self.batch_size,
                max_epochs=self.max_epochs,
                time_budget=self.time_budget,
                seed=seed,
                progress=bool(self.verbose),
            ),
        )
        self.params_, self.history_ = self.result_.params, self.result_.history

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
        gate.refuse_non_finite(X, "X", "pixels must be finite")
        if self.likelihood == "bernoulli" and ((X < 0) | (X > 1)).any():
            row, column = (int(i) for i in np.argwhere((X < 0) | (X > 1))[0])
            raise InputError(
                f"X[{row}, {column}] is {X[row, column]}; likelihood='bernoulli' needs values "
                "in [0, 1]: divide grey levels by their maximum, or use likelihood='gaussian'"
            )
        return X


@partial(jax.jit, static_argnames=("objective",))
def _probabilities(objective: ClassObjective, params: ClassParams, x: Array) -> Array:
    return jnp.exp(objective.log_probabilities(params, x))
