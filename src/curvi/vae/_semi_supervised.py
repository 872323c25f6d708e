"""``curvi.SemiSupervisedVAE``: a classifier that also learns from rows without labels."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.memory import require_memory
from curvi._core.trees import precision_of
from curvi.engine import opened
from curvi.solvers import Averaged, FirstOrder, Method
from curvi.vae._base import AutoEncoder, as_method
from curvi.vae._class_objective import ClassObjective, ClassParams, MixedRows
from curvi.vae._training import Trained, train
from curvi.vae._use import by_blocks, dtype_of

Model = TypeVar("Model", bound="SemiSupervisedVAE")


class SemiSupervisedVAE(ClassifierMixin, AutoEncoder):
    """Classify with a generative model p(y) p(z) p(x | z, y) when few rows have labels.

    The class of an unlabelled row is summed out exactly, so that all rows shape the classifier
    q(y | x).

    Images are best turned into codes first, which is both faster and more accurate:
    ``make_pipeline(VAE(latent=50), SemiSupervisedVAE(likelihood="gaussian"))`` in
    scikit-learn's terms; Kingma and others (2014) call it M1 + M2.

    Parameters
    ----------
    latent, hidden, activation, likelihood, variance, decoder_l2
        The networks, as for :class:`~curvi.VAE`.
    label_weight : float
        Weight of the classifier's own loss on labelled rows, relative to ELBOs in nats per row.
    beta : float
        Weight of the KL term, as for :class:`~curvi.VAE`.
    batch_size, max_epochs, time_budget
        Training, as for :class:`~curvi.VAE`; a step uses ``batch_size`` unlabelled and as many
        labelled rows.
    method : {"adam", "adagrad", "lbfgs"}, a method of curvi or of optax, optional
        Adam with rate 2e-3 and averaged weights by default: the sum over classes is not a plain
        stack of layers, so KFAC does not apply here.
    on_step : callable, optional
        Called with a :class:`~curvi.engine.StepInfo` for every step.
    random_state, verbose
        As for :class:`~curvi.VAE`.

    Attributes
    ----------
    classes_ : array
        Labels, in order.
    params_, history_, elbo_, n_iter_, outcome_, message_, result_
        As for :class:`~curvi.VAE`; ``elbo_`` is the last ELBO in training, less
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
        beta: float = 1.0,
        batch_size: int = 50,
        max_epochs: int = 20,
        time_budget: float | None = None,
        method: Any = None,
        on_step: Any = None,
        random_state: Any = None,
        verbose: bool | int = 0,
    ) -> None:
        self.latent = latent
        self.hidden = hidden
        self.activation = activation
        self.likelihood = likelihood
        self.variance = variance
        self.decoder_l2 = decoder_l2
        self.label_weight = label_weight
        self.beta = beta
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.time_budget = time_budget
        self.method = method
        self.on_step = on_step
        self.random_state = random_state
        self.verbose = verbose

    _claims = AutoEncoder._claims | {"classes_": "texts n", "result_.objective.classes": "whole n"}
    classes_: np.ndarray
    params_: ClassParams
    objective_: ClassObjective

    def fit(self: Model, X: Any, y: Any, *, checkpoint: Any = None) -> Model:
        """Train on rows and labels.

        Parameters
        ----------
        X : array, (rows, pixels)
            Training rows.
        y : array, (rows,)
            Labels; -1, "-1", None and NaN mark rows without one.
        checkpoint : path or Checkpoint, optional
            A file from which the same call resumes (:class:`curvi.Checkpoint`).

        Returns
        -------
        SemiSupervisedVAE
            Itself.

        Raises
        ------
        InputError
            For options or rows that cannot be used, or fewer than two classes.
        NumericalError
            If the ELBO turned non-finite again and again.
        Interrupted
            At Ctrl-C, after the attributes of what was trained until then are set.

        Warns
        -----
        NotConvergedWarning
            If training failed, diverged or ran out of time, as for :class:`~curvi.VAE`.
        """
        with opened(locals()):
            self._check_options()
            validation.positive_number(self.label_weight, "label_weight")
            validation.positive_number(self.beta, "beta")
            method = self._chosen_method()
            X = self._rows(X, reset=True)
            validation.refuse_unreal(y, "y")
            labels = column_or_1d(np.asarray(y), warn=True)
            if len(labels) != len(X):
                raise InputError(
                    f"y has {len(labels)} labels but X has {len(X)} rows; give one each"
                )
            known = ~np.asarray([_is_missing(label) for label in labels.tolist()], bool)
            self.classes_, encoded = _classes(labels[known])
            classes, sizes = len(self.classes_), [X.shape[1], *self.hidden]
            decoder = [self.latent + classes, *sizes[::-1]]
            encoder = [sizes[0] + classes, *sizes[1:], 2 * self.latent]
            self._require_memory(X, [[*sizes, classes], encoder, decoder], classes)
            with precision_of(X.dtype):
                trained = self._trained(X, known, encoded, method)
            self._publish(trained)
            return self

    def _chosen_method(self) -> Method:
        """Those by name need no layers."""
        if self.method is None:
            return _default_method()
        if isinstance(self.method, str):
            validation.one_of(self.method, ("adam", "adagrad", "lbfgs"), "method")
        return as_method(self.method)

    def _trained(
        self, X: np.ndarray, known: np.ndarray, encoded: np.ndarray, method: Method
    ) -> Trained:
        seed = self._seed()
        generator = np.random.default_rng(seed)
        # Every row has a labelled partner; labelled rows take turns.
        partner = np.resize(generator.permutation(len(encoded)), len(X))
        rows = MixedRows(X, X[known][partner], encoded[partner].astype(np.int32))
        objective = ClassObjective(
            self._likelihood(X),
            len(self.classes_),
            len(encoded) / len(X),
            float(self.label_weight),
            float(self.decoder_l2),
            self.activation,
            float(self.beta),
        )
        params = objective.first_params(generator, X, tuple(self.hidden), self.latent)
        schedule = self._schedule(
            len(X), min(self.batch_size or 50, len(X)), seed, on_step=self.on_step
        )
        trained = train(objective, params, rows, method=method, schedule=schedule)
        trivial = objective.likelihood.trivial_elbo(X)
        trivial -= (1 + objective.label_weight) * math.log(objective.classes)
        return trained.judged(trivial, abs(trivial) + X.shape[1])

    def predict_proba(self, X: Any) -> np.ndarray:
        """q(y | x), one column per class."""
        X = self._rows(X)
        return _probabilities(self.result_, X)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def encode(self, X: Any, y: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Means and sds of q(z | x, y), each (rows, latent).

        ``y`` are labels, or one for all rows; by default the most probable ones.
        """
        X = self._rows(X)
        found: tuple[np.ndarray, np.ndarray] = _codes(self.result_, X, self._one_hot(X, y))
        return found

    def reconstruct(self, X: Any, y: Any = None) -> np.ndarray:
        """Mean images of the mean codes; with another ``y``, the same style as another class."""
        X = self._rows(X)
        classes = self._one_hot(X, y)
        return self._shaped(_images(self.result_, _codes(self.result_, X, classes)[0], classes))

    def sample(self, num_draws: int, y: Any, seed: int | None = None) -> np.ndarray:
        """Mean images of codes drawn from the prior, of the class or classes ``y``.

        The same seed gives the same images; by default each call draws others.
        """
        check_is_fitted(self)
        validation.positive_integer(num_draws, "num_draws")
        size = 8.0 * num_draws * (2 * self.latent + self.n_features_in_)
        require_memory(size, f"sample({num_draws})", "draw fewer at a time")
        rng = np.random.default_rng(None if seed is None else validation.checked_seed(seed))
        codes = rng.standard_normal((num_draws, self.latent)).astype(dtype_of(self.result_))
        return self._shaped(_images(self.result_, codes, self._one_hot(codes, y)))

    def _one_hot(self, rows: np.ndarray, y: Any) -> np.ndarray:
        """Classes as rows of zeros and a one."""
        if y is None:
            chosen = _probabilities(self.result_, rows).argmax(axis=1)
            return np.eye(len(self.classes_), dtype=rows.dtype)[chosen]
        labels = np.broadcast_to(np.asarray(y), (len(rows),)) if np.ndim(y) == 0 else np.asarray(y)
        known = labels[:, None] == self.classes_[None] if labels.ndim == 1 else np.zeros((0, 1))
        if len(known) != len(rows) or not known.any(axis=1).all():
            raise InputError(
                f"y must be one of the classes {self.classes_.tolist()}, or one for each of "
                f"{len(rows)} rows"
            )
        return known.astype(rows.dtype)


@cache
def _default_method() -> Method:
    """The same object for every fit, so that a second one compiles nothing."""
    return Averaged(FirstOrder(optax.adam(2e-3), check_updates=False))


def _is_missing(label: Any) -> bool:
    """Whether a label is left out; NumPy turns the -1 of a list with strings into a string."""
    with contextlib.suppress(TypeError):  # a missing value of pandas has no truth value
        not_a_number = isinstance(label, float) and math.isnan(label)
        return not_a_number or label in (None, -1, "-1", b"-1")
    return True


def _classes(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Classes in order, and the number of each row's class."""
    if labels.dtype.kind == "O":
        mixed = len({isinstance(label, str) for label in labels}) > 1
        if mixed or any(np.ndim(label) != 0 for label in labels):
            raise InputError("y has labels of several kinds; use numbers, or use strings")
        labels = np.asarray(labels.tolist())  # strings or numbers again
    try:
        classes, encoded = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputError(
            f"y has labels without an order ({error}); use numbers, or use strings"
        ) from error
    if len(classes) < 2:
        count = "1 class" if len(classes) else "no class"
        raise InputError(f"y names {count}; give labels of two or more, and -1 where there is none")
    check_classification_targets(classes)
    return classes, encoded


@by_blocks()
def _codes(
    objective: ClassObjective, params: ClassParams, key: Array, x: Array, one_hot: Array
) -> tuple[Array, Array]:
    del key
    mean, log_variance = objective.code(params, x, one_hot)
    return mean, jnp.exp(0.5 * log_variance)


@by_blocks()
def _images(
    objective: ClassObjective, params: ClassParams, key: Array, codes: Array, one_hot: Array
) -> Array:
    del key
    return objective.likelihood.mean(objective.outputs(params, codes, one_hot))


@by_blocks()
def _probabilities(objective: ClassObjective, params: ClassParams, key: Array, x: Array) -> Array:
    del key
    return jnp.exp(objective.log_probabilities(params, x))
