"""``curvi.VAE``: a variational auto-encoder that trains itself."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
import optax

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.trees import precision_of
from curvi.solvers import KFAC, LBFGS, Averaged, FirstOrder, HessianFree, Method
from curvi.vae._likelihoods import Gaussian
from curvi.vae._mlp import MLPObjective
from curvi.vae._networks import VAEParams, initial_params
from curvi.vae._train import Schedule, Trained, train
from curvi.vae._training import TrainsVAE
from curvi.vae._use import UsesVAE
from curvi.vae._variance import best_num_draws

_FEWEST_VALIDATION_ROWS = 10
_FIRST_SIGNAL = 0.1  # size of the first decoded images around their mean, in sds of the data

Model = TypeVar("Model", bound="VAE")


@cache
def _first_order(name: str) -> Method:
    """A baseline by name, always the same object.

    A transformation of optax equals nothing but itself: a new one would be compiled by every fit.
    """
    if name == "adam":
        return Averaged(FirstOrder(optax.adam(1e-3)))
    return FirstOrder(optax.adagrad(0.03))


class VAE(TrainsVAE, UsesVAE):
    r"""Variational auto-encoder with multilayer perceptrons, trained by curvature.

    The bound of section 3 of the paper,
    :math:`E_q[\log p(x \mid z)] - KL(q(z \mid x) \| N(0, I))`, is maximised over minibatches. The
    default method has no learning rate to choose.

    Parameters
    ----------
    latent : int
        Size of the code.
    hidden : sequence of int
        Hidden layers of the encoder; the decoder mirrors them.
    activation : str
        Nonlinearity of hidden layers: "tanh", "sigmoid", "softplus", "elu", "gelu", "silu".
    likelihood : {"bernoulli", "gaussian"}
        Grey levels in [0, 1] as probabilities, or real values.
    variance : {"pixel", "one"} or float
        Of a Gaussian likelihood: learned for every pixel, learned once, or fixed. A learned
        variance stays above 2e-6 of the data's, so pixels that never change do no harm.
    num_draws : int or "auto"
        M, draws of the code per row and step. "auto" measures after one pilot epoch which M makes
        the gradient least noisy for its work (:func:`~curvi.vae._variance.best_num_draws`);
        the pilot counts as one of ``max_epochs`` and its weights are the start of the rest.
    decoder_l2 : float
        Weight of the L2 penalty on the decoder, per row.
    init_scale : float, optional
        Sd of the first weights (0.01 or 0.001 in the paper, with zero biases). By default
        1/sqrt(inputs) of each layer, and output biases at the data's mean.
    batch_size : int, optional
        Rows per step: by default 100, and for "hf" a twentieth of the rows, 200 to 2000.
    max_epochs, time_budget : int, float
        Passes over the data and seconds, at most.
    validation_fraction : float
        Part of the rows held out; training stops after ``patience`` looks at their bound without
        a new best, and the best parameters are kept. 0 trains to the end.
    method : {"kfac", "hf", "lbfgs", "adam", "adagrad"} or a method of curvi
        How to go downhill. Under "kfac" the encoder reads principal coordinates of the images,
        at most the first 200: what it says about an image never depends on the other directions.
        ``KFAC(directions=None)`` keeps all of them, at the price of longer steps. The decoder
        explains all pixels either way.
    random_state : int, RandomState or None
        The same integer gives the same bits.
    verbose : int
        Draw a progress bar on a terminal.

    Attributes
    ----------
    params_ : VAEParams
        Weights.
    history_ : dict of arrays
        step, epoch, seconds, elbo, validation_elbo: one entry per look.
    elbo_ : float
        Best validation bound per row, or the last training bound.
    num_draws_ : int
        M of the training.
    n_iter_, outcome_, message_, result_
        Steps, how training ended, in one sentence, and everything else.

    Examples
    --------
    >>> import numpy as np
    >>> from curvi.vae._estimator import VAE
    >>> X = (np.random.default_rng(0).random((200, 16)) < 0.5).astype(np.float32)
    >>> model = VAE(latent=2, hidden=(8,), max_epochs=2, random_state=0).fit(X)
    >>> model.transform(X).shape, model.reconstruct(X[:3]).shape
    ((200, 2), (3, 16))
    """

    def __init__(
        self,
        latent: int = 20,
        hidden: Sequence[int] = (500,),
        *,
        activation: str = "tanh",
        likelihood: str = "bernoulli",
        variance: str | float = "pixel",
        num_draws: int | str = 1,
        decoder_l2: float = 1e-4,
        init_scale: float | None = None,
        batch_size: int | None = None,
        max_epochs: int = 50,
        time_budget: float | None = None,
        validation_fraction: float = 0.1,
        patience: int = 10,
        method: Any = "kfac",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.latent = latent
        self.hidden = hidden
        self.activation = activation
        self.likelihood = likelihood
        self.variance = variance
        self.num_draws = num_draws
        self.decoder_l2 = decoder_l2
        self.init_scale = init_scale
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.time_budget = time_budget
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.method = method
        self.random_state = random_state
        self.verbose = verbose

    def fit(self: Model, X: Any, y: Any = None) -> Model:
        """Train on rows; ``y`` is ignored.

        Raises
        ------
        InputError
            For rows that are not finite or out of range, fewer than two, or all equal.
        NumericalError
            If the bound turned non-finite again and again.
        """
        del y
        self._check_parameters()
        X = self._rows(X, reset=True)
        self._check_data(X)
        self.seed_ = self._seed()
        with precision_of(X.dtype):
            trained = self._train(X)
        self._publish(trained)
        return self

    def _train(self, X: np.ndarray) -> Trained:
        order = np.random.default_rng([self.seed_, 1]).permutation(len(X))
        held = round(self.validation_fraction * len(X))
        if held and (held < _FEWEST_VALIDATION_ROWS or len(X) - held < 2):
            held = 0  # a bound over a handful of rows would stop at random
        kept = X[order[held:]]
        self.objective_ = MLPObjective(
            likelihood=self._likelihood(kept),
            num_draws=1 if self.num_draws == "auto" else int(self.num_draws),
            decoder_l2=float(self.decoder_l2),
            activation=self.activation,
        )
        method, batch = self._method(len(kept))
        schedule = Schedule(
            batch_size=self.batch_size or batch,
            max_epochs=self.max_epochs,
            time_budget=self.time_budget,
            patience=self.patience,
            seed=self.seed_,
            progress=bool(self.verbose),
        )
        start = self._start(kept)
        if self.num_draws == "auto":
            start, schedule = self._pilot(start, kept, method, schedule)
        self.num_draws_ = self.objective_.num_draws
        return train(
            self.objective_,
            start,
            kept,
            method=method,
            schedule=schedule,
            validation=X[order[:held]] if held else None,
        )

    def _pilot(
        self, start: VAEParams, X: np.ndarray, method: Method, schedule: Schedule
    ) -> tuple[VAEParams, Schedule]:
        """One epoch with one draw, M from the noise at its end, and what is left of the budget."""
        began = time.perf_counter()
        one = replace(schedule, max_epochs=1)
        params = train(self.objective_, start, X, method=method, schedule=one).params
        draws = best_num_draws(
            self.objective_, params, X, batch_size=schedule.batch_size, seed=self.seed_
        )
        self.objective_ = replace(self.objective_, num_draws=draws)
        left = schedule.time_budget
        if left is not None:
            left = max(left - (time.perf_counter() - began), 0.0)
        epochs = max(1, schedule.max_epochs - 1)
        # Another seed: the noise of the pilot must not come again.
        seed = (schedule.seed + 1) % (2**31 - 1)
        return params, replace(schedule, max_epochs=epochs, time_budget=left, seed=seed)

    def _start(self, X: np.ndarray) -> VAEParams:
        """First weights; without ``init_scale`` the output biases explain the mean image."""
        learned = self.objective_.likelihood.variances
        params = initial_params(
            np.random.default_rng([self.seed_, 2]),
            inputs=X.shape[1],
            hidden=tuple(self.hidden),
            latent=self.latent,
            variances=X.shape[1] if learned is None else learned,
            scale=self.init_scale,
            dtype=X.dtype,
        )
        if self.init_scale is not None:
            return params
        last = params.decoder[-1]
        if isinstance(self.objective_.likelihood, Gaussian):
            # Random weights of unit size would paint noise many times the data's own spread.
            last = last * (_FIRST_SIGNAL * self.objective_.likelihood.scale)
        last = last.at[-1].set(jnp.asarray(self._mean_output(X), X.dtype))
        return params._replace(decoder=(*params.decoder[:-1], last))

    def _method(self, rows: int) -> tuple[Method, int]:
        """The method and its usual batch size."""
        small = min(100, rows)
        if isinstance(self.method, Method):
            return self.method, small
        if self.method == "kfac":
            return KFAC(), small
        if self.method == "hf":
            return HessianFree(), min(rows, max(200, min(2000, rows // 20)))
        if self.method == "lbfgs":
            return LBFGS(history=10), small
        return _first_order(self.method), small

    def _check_parameters(self) -> None:
        self._check_networks()
        validation.positive_integer(self.patience, "patience")
        if self.num_draws != "auto":
            validation.positive_integer(self.num_draws, "num_draws")
        if not isinstance(self.method, Method):
            validation.one_of(self.method, ("kfac", "hf", "lbfgs", "adam", "adagrad"), "method")
        if self.init_scale is not None:
            validation.positive_number(self.init_scale, "init_scale")
        if not 0 <= self.validation_fraction < 1:
            raise InputError(
                f"validation_fraction is {self.validation_fraction!r}; it must be in [0, 1)"
            )

    def _check_data(self, X: np.ndarray) -> None:
        if len(X) < 2:
            raise InputError("X has 1 row; an auto-encoder needs at least 2 different images")
        if np.all(X[0] == X):
            raise InputError("all rows of X are equal; there is nothing to encode")
        if self.latent > X.shape[1]:
            warnings.warn(
                f"latent is {self.latent} but X has {X.shape[1]} columns; codes that are not "
                "needed will stay at the prior",
                UserWarning,
                stacklevel=3,
            )
