"""``curvi.VAE``: a variational auto-encoder that trains itself, as a scikit-learn transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.memory import require_memory
from curvi._core.meshes import sharded
from curvi._core.trees import precision_of, require_same_shapes
from curvi.engine import resumable
from curvi.plots import plot_images, plot_sheet, plot_training
from curvi.solvers import Method
from curvi.vae import _use as use
from curvi.vae._base import AutoEncoder, kept
from curvi.vae._methods import METHODS, method_named
from curvi.vae._networks import MLPObjective, VAEParams, initial_params, with_output_bias
from curvi.vae._objective import Gaussian, Likelihood, trivial_elbo
from curvi.vae._training import Trained, num_held_out, train, with_measured_draws
from curvi.vae._variance import ReconstructionVariance, reconstruction_variance

_FIRST_SIGNAL = 0.1  # size of the first decoded images around their mean, in sds of the data

Model = TypeVar("Model", bound="VAE")


class VAE(TransformerMixin, AutoEncoder):
    r"""Variational auto-encoder with multilayer perceptrons, trained by curvature.

    The ELBO of section 3 of the paper,
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
        Rows per step, at most all of them: by default 100, and for "hessian_free" 500, of which
        its samples hold several.
    max_epochs, time_budget : int, float
        Largest number of passes over the data, and of seconds.
    validation_fraction : float or "auto"
        Fraction of the rows held out for early stopping, which keeps the parameters with the best
        ELBO on them; 0 trains to the end. "auto" is a tenth, but 0 below a hundred rows, where a
        tenth would be too few to stop on.
    patience : int
        Evaluations of the held-out ELBO without a new best after which training stops.
    method : {"kfac", "hessian_free", "lbfgs", "adam", "adagrad"} or a method of curvi
        The optimisation method. Under "kfac" the encoder reads principal coordinates of the
        images, at most the first 200: its code for an image never depends on the other directions.
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
        step, epoch, seconds, elbo, validation_elbo: one entry per evaluation.
    elbo_ : float
        Best ELBO per row on held-out rows or, without them, the last one in training; that of the
        first weights where there was no time for a step.
    num_draws_ : int
        M, as used in training.
    n_iter_, outcome_, message_, result_
        The number of steps, how training ended (a code and a sentence), and everything else.

    Examples
    --------
    >>> import numpy as np
    >>> from curvi import VAE
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
        validation_fraction: float | str = "auto",
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

    @sharded
    @resumable
    def fit(
        self: Model, X: Any, y: Any = None, *, warm_start: bool = False, mesh: Any = None,
        checkpoint: Any = None,
    ) -> Model:  # fmt: skip
        """Train on rows.

        Parameters
        ----------
        X : array, (rows, pixels)
            Training rows.
        y : ignored
        warm_start : bool
            Start from the weights of the last fit, or of a file.
        mesh : jax.sharding.Mesh, optional
            Devices that share every batch (:func:`curvi.data_mesh`); each holds all rows.
        checkpoint : path or Checkpoint, optional
            A file from which the same call resumes.

        Returns
        -------
        VAE
            Itself.

        Raises
        ------
        InputError
            For rows that are not finite or out of range, fewer than two, or all equal.
        NumericalError
            If the ELBO turned non-finite again and again.
        KeyboardInterrupt
            At Ctrl-C, after the attributes of what was trained until then are set.

        Warns
        -----
        NotConvergedWarning
            If training failed or diverged: its ELBO is far below that of the first weights, or of a
            model that ignores the rows. Or if ``time_budget`` ran out before ``max_epochs``.
        """
        self._check_options()
        first = self._earlier_params(X) if warm_start else None
        X = self._rows(X, reset=True)
        self._check_data(X)
        sizes = [X.shape[1], *self.hidden]
        networks = [*sizes, 2 * self.latent], [self.latent, *sizes[::-1]]
        self._require_memory(X, networks, 1 if self.num_draws == "auto" else int(self.num_draws))
        with precision_of(X.dtype):
            trained = kept(lambda: self._trained(X, self._seed(), first))
        self.num_draws_ = trained.objective.num_draws
        self._publish(trained)
        return self

    def _check_options(self) -> None:
        super()._check_options()
        validation.positive_integer(self.patience, "patience")
        if not isinstance(self.num_draws, str) or self.num_draws != "auto":
            validation.positive_integer(self.num_draws, "num_draws")
        if not isinstance(self.method, Method):
            validation.one_of(self.method, tuple(METHODS), "method")
        if self.init_scale is not None:
            validation.positive_number(self.init_scale, "init_scale")
        share: Any = self.validation_fraction
        numeric = isinstance(share, int | float | np.number) and not isinstance(share, bool)
        if not isinstance(share, str) and not (numeric and 0 <= share < 1):
            raise InputError(f"validation_fraction is {share!r}; it must be 'auto' or in [0, 1)")
        if isinstance(share, str):
            validation.one_of(share, ("auto",), "validation_fraction")

    def _trained(self, X: np.ndarray, seed: int, first: VAEParams | None) -> Trained:
        """Hold rows out, choose the first weights and the number of draws, and train."""
        order = np.random.default_rng([seed, 1]).permutation(len(X))
        held = num_held_out(self.validation_fraction, len(X))
        rows = X[order[held:]]
        objective = MLPObjective(
            likelihood=self._likelihood(rows),
            num_draws=1 if self.num_draws == "auto" else int(self.num_draws),
            decoder_l2=float(self.decoder_l2),
            activation=self.activation,
        )
        params = self._first_params(objective.likelihood, rows, seed)
        if first is not None:
            require_same_shapes(first, params, "params_", "the network that is asked for")
            params = first
        method = self.method if isinstance(self.method, Method) else method_named(self.method)
        size = self.batch_size or min(method.usual_batch_size, len(rows))
        schedule = self._schedule(size, seed, self.patience)
        if self.num_draws == "auto":
            objective, params, schedule = with_measured_draws(
                objective, params, rows, method, schedule
            )
        validation_rows = X[order[:held]] if held else None
        trained = train(
            objective, params, rows, method=method, schedule=schedule, validation=validation_rows
        )
        trivial = trivial_elbo(rows, objective.likelihood)
        return trained.judged(trivial, abs(trivial) + X.shape[1])

    def _first_params(self, likelihood: Likelihood, X: np.ndarray, seed: int) -> VAEParams:
        """First weights; without ``init_scale`` the output biases explain the mean image."""
        learned = likelihood.variances
        params = initial_params(
            np.random.default_rng([seed, 2]),
            inputs=X.shape[1],
            hidden=tuple(self.hidden),
            latent=self.latent,
            variances=X.shape[1] if learned is None else learned,
            scale=self.init_scale,
            dtype=X.dtype,
        )
        if self.init_scale is not None:
            return params
        *hidden, last = params.decoder
        if isinstance(likelihood, Gaussian):
            # Random weights of unit size would decode to noise far above the data's own spread.
            last = last * (_FIRST_SIGNAL * likelihood.scale)
        bias = likelihood.outputs_for(X.mean(axis=0))
        return params._replace(decoder=with_output_bias((*hidden, last), bias))

    def transform(self, X: Any) -> np.ndarray:
        """Posterior means of the codes, (rows, latent)."""
        X = self._rows(X)
        return use.code_means(self.result_, X)

    def inverse_transform(self, Z: Any) -> np.ndarray:
        """Mean images E[x | z] of codes, (rows, pixels)."""
        check_is_fitted(self)
        Z = np.asarray(Z, use.dtype_of(self.result_))
        if Z.ndim != 2 or Z.shape[1] != self.latent:
            raise InputError(f"Z has shape {Z.shape}; codes have shape (rows, {self.latent})")
        validation.refuse_non_finite(Z, "Z", "codes must be finite")
        return use.mean_images(self.result_, Z)

    def reconstruct(self, X: Any) -> np.ndarray:
        """Rows through the bottleneck and back: the mean image of the mean code."""
        return self.inverse_transform(self.transform(X))

    def draw_report(self, X: Any, num_draws: int = 200) -> ReconstructionVariance:
        """Variance of the reconstruction term due to one draw of the code: bound and measurement.

        Theorem 2 with the constant of Lemma 4, carried through the decoder, beside the variance
        over ``num_draws`` draws. A Gaussian likelihood has no bound.
        """
        validation.positive_integer(num_draws, "num_draws")
        X = self._rows(X)
        size = float(num_draws) * (8 + X.itemsize * len(X))
        require_memory(size, f"draw_report() on {num_draws} draws", "lower num_draws")
        return reconstruction_variance(
            self.objective_, self.params_, X, num_draws=max(2, num_draws), seed=self.result_.seed
        )

    def denoise(self, X: Any, num_draws: int = 20) -> np.ndarray:
        """Posterior mean images E[E[x | z] | observed], averaged over draws of the code.

        The rows may carry noise that the training rows did not have, as long as they are in range.
        """
        X = self._rows(X)
        return use.denoised(self.result_, X, num_draws=num_draws)

    def impute(self, X: Any, missing: Any = None, num_sweeps: int = 100) -> np.ndarray:
        """Fill missing entries given the others.

        A Markov chain draws a code given the current image and replaces what is missing by the
        code's mean image; the result is the average over its second half.

        Parameters
        ----------
        X : array, (rows, pixels)
            Values at missing entries are ignored and may be NaN.
        missing : boolean array of the same shape, optional
            By default the NaN entries of X.
        num_sweeps : int
            Length of the chain, at least 2.

        Returns
        -------
        array, (rows, pixels)
            ``X`` with its missing entries filled.
        """
        check_is_fitted(self)
        validation.refuse_masked(X, "X")
        X = np.array(X, use.dtype_of(self.result_), ndmin=2)
        missing = np.isnan(X) if missing is None else np.asarray(missing)
        if missing.dtype != bool or missing.shape != X.shape:
            raise InputError(
                f"missing has dtype {missing.dtype} and shape {missing.shape}; it must be boolean "
                f"of the shape of X, {X.shape}"
            )
        if validation.positive_integer(num_sweeps, "num_sweeps") < 2:
            raise InputError("num_sweeps is 1; impute() needs at least 2")
        X[missing] = 0.5
        return use.imputed(self.result_, self._rows(X), missing, num_sweeps=num_sweeps)

    def sample(self, num_draws: int, seed: int = 0, *, noise: bool = False) -> np.ndarray:
        """Images of codes drawn from the prior; with ``noise`` pixels are drawn too."""
        check_is_fitted(self)
        validation.positive_integer(num_draws, "num_draws")
        require_memory(
            8.0 * num_draws * (2 * self.latent + self.n_features_in_),
            f"sample({num_draws})",
            "draw fewer at a time",
        )
        rng = np.random.default_rng(validation.checked_seed(seed))
        codes = rng.standard_normal((num_draws, self.latent))
        if noise:
            codes = codes.astype(use.dtype_of(self.result_))
            return use.drawn_images(replace(self.result_, seed=seed), codes)
        return self.inverse_transform(codes)

    def manifold(self, grid: int = 20) -> np.ndarray:
        """Mean images on a grid x grid net of the code plane, (grid, grid, pixels).

        Both coordinates are normal quantiles of equally spaced points in the unit interval, so
        that every cell has the same prior probability. Needs ``latent=2``.
        """
        check_is_fitted(self)
        if self.latent != 2:
            raise InputError(f"latent is {self.latent}; manifold() needs a model with latent=2")
        size = 8.0 * validation.positive_integer(grid, "grid") ** 2 * (6 + self.n_features_in_)
        require_memory(size, f"a net of {grid} x {grid} images", "choose a smaller grid")
        return self.inverse_transform(use.code_grid(grid)).reshape(grid, grid, -1)

    def elbo(self, X: Any, num_draws: int = 10) -> np.ndarray:
        """The evidence lower bound of every row, in nats."""
        X = self._rows(X)
        return use.elbos(self.result_, X, num_draws=num_draws)

    def log_likelihood(self, X: Any, num_draws: int = 1000) -> np.ndarray:
        """Importance-weighted estimate of log p(x) of every row: above the bound on average."""
        X = self._rows(X)
        return use.log_likelihoods(self.result_, X, num_draws=num_draws)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean bound per row: higher is better."""
        return float(np.mean(self.elbo(X)))

    def plot_history(self) -> Any:
        """The bound against time and epochs; returns a matplotlib figure."""
        check_is_fitted(self)
        name = self.method if isinstance(self.method, str) else type(self.method).__name__
        return plot_training({name: self.history_})

    def plot_reconstructions(
        self, X: Any, image_shape: tuple[int, int] | None = None, count: int = 10
    ) -> Any:
        """Originals above their reconstructions; returns a matplotlib figure."""
        X = self._rows(X)[: validation.positive_integer(count, "count")]
        return plot_images(
            {"original": X, "reconstruction": self.reconstruct(X)},
            image_shape or use.square_shape(X),
        )

    def plot_manifold(self, grid: int = 20, image_shape: tuple[int, int] | None = None) -> Any:
        """The code plane as a sheet of images; returns a matplotlib figure."""
        sheet = self.manifold(grid)
        return plot_sheet(sheet, image_shape or use.square_shape(sheet[0]))
