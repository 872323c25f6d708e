r"""``curvi.SemiSupervisedVAE``: a classifier that also learns from rows without labels.

The generative model has a class, p(y) p(z) p(x | z, y). For a labelled row the ELBO is

.. math:: L(x, y) = E_{q(z \mid x, y)}[\log p(x \mid z, y)] - KL(q(z \mid x, y) \| p(z)) + \log p(y)

and for an unlabelled one :math:`U(x) = \sum_y q(y \mid x) L(x, y) + H(q(y \mid x))`, the class
being summed out exactly. The classifier also learns from labels directly (Kingma and others, 2014).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.trees import precision_of
from curvi.engine import resumable
from curvi.solvers import Averaged, FirstOrder, Method
from curvi.vae import _networks as networks
from curvi.vae._base import AutoEncoder
from curvi.vae._likelihoods import Likelihood, trivial_elbo
from curvi.vae._objective import kl_divergence, l2_penalty, reparameterise
from curvi.vae._training import Trained, train
from curvi.vae._use import by_blocks

Model = TypeVar("Model", bound="SemiSupervisedVAE")


class ClassParams(NamedTuple):
    """Networks as tuples of matrices, last rows being biases."""

    classifier: networks.Network
    encoder: networks.Network
    decoder: networks.Network
    log_variance: Array


class MixedRows(NamedTuple):
    """A row without its label, and a labelled partner."""

    x: Any
    labelled_x: Any
    label: Any


@dataclass(frozen=True)
class ClassObjective:
    """``objective(params, MixedRows, key)``: the negative ELBO per row, labels included.

    Parameters
    ----------
    likelihood : Bernoulli or Gaussian
        Of pixels.
    classes : int
        Number of classes.
    labelled_fraction : float
        Part of the rows that have labels.
    label_weight : float
        Weight of the classifier's own loss on labelled rows.
    decoder_l2 : float
        L2 penalty on the decoder.
    activation : str
        Nonlinearity of hidden layers.
    """

    likelihood: Likelihood
    classes: int
    labelled_fraction: float
    label_weight: float
    decoder_l2: float = 0.0
    activation: str = "tanh"

    def first_params(
        self, generator: np.random.Generator, X: np.ndarray, hidden: tuple[int, ...], latent: int
    ) -> ClassParams:
        """Fan-in weights and zero biases; the output biases explain the mean of the rows."""
        network = partial(networks.initial_network, generator, dtype=X.dtype)
        inputs, learned = X.shape[1], self.likelihood.variances
        decoder = network([latent + self.classes, *reversed(hidden), inputs])
        return ClassParams(
            network([inputs, *hidden, self.classes]),
            network([inputs + self.classes, *hidden, 2 * latent]),
            networks.with_output_bias(decoder, self.likelihood.outputs_for(X.mean(axis=0))),
            jnp.zeros((1, inputs if learned is None else learned), X.dtype),
        )

    def log_probabilities(self, params: ClassParams, x: Array) -> Float[Array, "rows classes"]:
        """Log q(y | x)."""
        return jax.nn.log_softmax(
            networks.run_network(params.classifier, x, self.activation), axis=-1
        )

    def penalty(self, params: ClassParams) -> Array:
        """The L2 term, which is no part of the ELBO."""
        return l2_penalty(self.decoder_l2, networks.decoder_weights(params))

    def elbos(
        self, params: ClassParams, x: Array, one_hot: Array, noise: Array
    ) -> Float[Array, " rows"]:
        """L(x, y) of rows with their classes, one row of noise each; one class may serve all."""
        first, one_hot = params.encoder[0], jnp.broadcast_to(one_hot, (len(x), self.classes))
        # Apart, so that the product with x is shared where classes vary and x does not.
        sums = x @ first[: x.shape[1]] + networks.affine(first[x.shape[1] :], one_hot)
        hidden = networks.ACTIVATIONS[self.activation](sums)
        heads = networks.run_network(params.encoder[1:], hidden, self.activation)
        mean, log_variance = networks.code_from(heads)
        codes = reparameterise(mean, log_variance, noise[None])
        fit = self.likelihood.log_prob(self.outputs(params, codes, one_hot), x)
        return fit - kl_divergence(mean, log_variance) - math.log(self.classes)

    def all_elbos(
        self, params: ClassParams, x: Array, noise: Float[Array, "rows classes latent"]
    ) -> Float[Array, "rows classes"]:
        """L(x, y) of rows for every class."""
        each = jnp.eye(self.classes, dtype=x.dtype)[:, None]
        over_classes = jax.vmap(self.elbos, in_axes=(None, None, 0, 1), out_axes=1)
        return over_classes(params, x, each, noise)

    def outputs(self, params: ClassParams, codes: Array, one_hot: Array) -> Any:
        """Outputs of the decoder."""
        inputs = jnp.concatenate([codes, one_hot], axis=1)
        mean = networks.run_network(params.decoder, inputs, self.activation)
        if self.likelihood.variances == 0:
            return mean
        return mean, jnp.broadcast_to(params.log_variance, mean.shape)

    def __call__(self, params: ClassParams, batch: MixedRows, key: PRNGKeyArray) -> Array:
        """Negative ELBO of both kinds of rows, plus the classifier's loss and the penalty."""
        first, second = jax.random.split(key)
        labelled = jnp.eye(self.classes, dtype=batch.x.dtype)[batch.label]
        rows, latent = len(batch.x), params.encoder[-1].shape[1] // 2
        noise = jax.random.normal(first, (rows, latent), batch.x.dtype)
        known = jnp.mean(self.elbos(params, batch.labelled_x, labelled, noise))
        log_q = self.log_probabilities(params, batch.labelled_x)
        classified = -jnp.mean(jnp.sum(labelled * log_q, axis=1))
        noise = jax.random.normal(second, (rows, self.classes, latent), batch.x.dtype)
        each = self.all_elbos(params, batch.x, noise)
        log_q = self.log_probabilities(params, batch.x)
        unknown = jnp.mean(jnp.sum(jnp.exp(log_q) * (each - log_q), axis=1))
        share = self.labelled_fraction
        elbo = share * known + (1 - share) * unknown
        return self.label_weight * classified - elbo + self.penalty(params)


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
    batch_size, max_epochs, time_budget
        Training, as for :class:`~curvi.VAE`; a step uses ``batch_size`` unlabelled and as many
        labelled rows.
    method : Method, optional
        Adam with averaged weights by default: the sum over classes is not a plain stack of layers,
        so KFAC does not apply here.
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

    @resumable
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
        KeyboardInterrupt
            At Ctrl-C, after the attributes of what was trained until then are set.

        Warns
        -----
        NotConvergedWarning
            If training failed, diverged or ran out of time, as for :class:`~curvi.VAE`.
        """
        self._check_options()
        validation.positive_number(self.label_weight, "label_weight")
        if self.method is not None and not isinstance(self.method, Method):
            raise InputError(f"method is {self.method!r}; give a method such as curvi.LBFGS()")
        X = self._rows(X, reset=True)
        validation.refuse_masked(y, "y")
        labels = column_or_1d(np.asarray(y), warn=True)
        if len(labels) != len(X):
            raise InputError(f"y has {len(labels)} labels but X has {len(X)} rows; give one each")
        known = ~np.asarray([_is_missing(label) for label in labels.tolist()], bool)
        self.classes_, encoded = _classes(labels[known])
        classes, sizes = len(self.classes_), [X.shape[1], *self.hidden]
        decoder = [self.latent + classes, *sizes[::-1]]
        encoder = [sizes[0] + classes, *sizes[1:], 2 * self.latent]
        self._require_memory(X, [[*sizes, classes], encoder, decoder], classes)
        with precision_of(X.dtype):
            trained = self._trained(X, known, encoded, self._seed())
        self._publish(trained)
        return self

    def _trained(self, X: np.ndarray, known: np.ndarray, encoded: np.ndarray, seed: int) -> Trained:
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
        )
        params = objective.first_params(generator, X, tuple(self.hidden), self.latent)
        schedule = self._schedule(len(X), min(self.batch_size or 50, len(X)), seed)
        method = self.method or _default_method()
        trained = train(objective, params, rows, method=method, schedule=schedule)
        trivial = trivial_elbo(X, objective.likelihood)
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
def _probabilities(objective: ClassObjective, params: ClassParams, key: Array, x: Array) -> Array:
    del key
    return jnp.exp(objective.log_probabilities(params, x))
