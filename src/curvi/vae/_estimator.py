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
from curvi._core.trees import precision_of, require_same_shapes
from curvi.engine import opened
from curvi.likelihoods import GaussianPixels, Pixels
from curvi.plots import plot_images, plot_sheet, plot_training
from curvi.vae import _use as use
from curvi.vae._base import AutoEncoder, as_method, check_rows, kept, rows_per_step
from curvi.vae._mapped import all_rows, filled, has_gaps, in_memory, picked
from curvi.vae._model import Uses, checked_conditions
from curvi.vae._networks import MLPObjective, VAEParams, initial_params, with_output_bias
from curvi.vae._objective import Rows, split
from curvi.vae._training import Trained, num_held_out, train, with_measured_draws
from curvi.vae._variance import ReconstructionVariance, reconstruction_variance

Model = TypeVar("Model", bound="VAE")


class VAE(Uses, TransformerMixin, AutoEncoder):
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
        Nonlinearity of hidden layers: "tanh", "sigmoid", "softplus", "elu", "gelu", "silu", "relu".
    likelihood : {"bernoulli", "gaussian"}
        Grey levels in [0, 1] as probabilities, or real values.
    variance : {"pixel", "one"} or float
        Of a Gaussian likelihood: learned for every pixel, learned once, or fixed. A learned
        variance stays above 2e-6 of the data's, so pixels that never change do no harm.
    num_draws : int or "auto"
        M, draws of the code per row and step. "auto" measures after one pilot epoch which M makes
        the gradient least noisy for its work (:func:`~curvi.vae._variance.best_num_draws`);
        the pilot counts as one of ``max_epochs`` and its weights are the start of the rest.
    beta : float
        Weight of the KL term in training: above 1 codes are drawn to the prior (and
        disentangled, some say), below 1 images become sharper. ``elbo`` and ``score`` give the
        ELBO whatever beta is; ``elbo_`` and ``history_`` have the KL term weighted.
    importance_weighted : bool
        Maximise the importance-weighted bound of ``num_draws`` draws (Burda and others, 2016).
    decoder_l2 : float
        Weight of the L2 penalty on the decoder, per row.
    init_scale : float, optional
        Sd of the first weights (0.01 or 0.001 in the paper, with zero biases). By default
        1/sqrt(inputs) of each layer, and output biases at the data's mean.
    batch_size : int, optional
        Rows per step, at most all of them: by default 100, and for "hessian_free" 200, of which
        its samples hold several.
    max_epochs : int, optional
        Largest number of passes over the data; by default 50, or a thousand steps where those are
        more. A step counts as one batch: "hessian_free" reads several in each and passes over the
        data more often (``history_["epoch"]`` counts what was read).
    time_budget : float, optional
        Largest number of seconds of training. Compilation is not counted (``result_`` has it as
        ``compile_seconds``), nor are evaluations.
    validation_fraction : float or "auto"
        Fraction of the rows held out for early stopping, which keeps the parameters with the best
        ELBO on them; 0 trains to the end. "auto" is a tenth, but 0 below a hundred rows, where a
        tenth would be too few to stop on.
    patience : int
        Evaluations of the held-out ELBO without a new best after which training stops.
    method : {"kfac", "hessian_free", "lbfgs", "adam", "adagrad"}, a method of curvi or of optax
        The optimisation method. Under "kfac" the encoder reads principal coordinates of the
        images, at most the first 200: its code for an image never depends on the other directions.
        ``KFAC(directions=None)`` keeps all of them, at the price of longer steps. The decoder
        explains all pixels either way. "adam" has the rate 1e-3 and averages its weights, "adagrad"
        has the rate 0.03; ``curvi.Averaged(curvi.FirstOrder(optax.adam(2e-3)))`` has another.
    on_step : callable, optional
        Called with a :class:`~curvi.engine.StepInfo` for every step, for logging.
    random_state : int, RandomState or None
        The same integer gives the same bits.
    verbose : int
        Draw a progress bar on a terminal.

    Attributes
    ----------
    params_ : VAEParams
        Weights; float32, or float64 for float64 rows where ``jax_enable_x64`` is on.
    image_shape_ : tuple or None
        Shape of a row where rows were given as images, (rows, height, width) for example: images
        that the model makes have it too.
    history_ : dict of arrays
        step, epoch, seconds, elbo, validation_elbo: one entry per evaluation, the first before
        training, a few within the first epoch.
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

    _claims = AutoEncoder._claims | {
        "n_conditions_": "whole conditions", "fill_": "real d", "num_draws_": "whole draws",
        "result_.objective.num_draws": "positive",
    }  # fmt: skip
    params_: VAEParams
    objective_: MLPObjective

    def __init__(
        self,
        latent: int = 20,
        hidden: Sequence[int] = (500,),
        *,
        activation: str = "tanh",
        likelihood: str = "bernoulli",
        variance: str | float = "pixel",
        num_draws: int | str = 1,
        beta: float = 1.0,
        importance_weighted: bool = False,
        decoder_l2: float = 1e-4,
        init_scale: float | None = None,
        batch_size: int | None = None,
        max_epochs: int | None = None,
        time_budget: float | None = None,
        validation_fraction: float | str = "auto",
        patience: int = 10,
        method: Any = "kfac",
        on_step: Any = None,
        random_state: Any = None,
        verbose: bool | int = 0,
    ) -> None:
        self.latent, self.hidden, self.activation = latent, hidden, activation
        self.likelihood, self.variance = likelihood, variance
        self.num_draws, self.beta = num_draws, beta
        self.importance_weighted = importance_weighted
        self.decoder_l2, self.init_scale = decoder_l2, init_scale
        self.batch_size, self.max_epochs, self.time_budget = batch_size, max_epochs, time_budget
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.method = method
        self.on_step = on_step
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self: Model, X: Any, y: Any = None, *, condition: Any = None, warm_start: bool = False,
        mesh: Any = None, checkpoint: Any = None,
    ) -> Model:  # fmt: skip
        """Train on rows.

        Parameters
        ----------
        X : array, (rows, pixels) or (rows, ...), or RowBlocks
            Training rows; images of any shape are flattened. NaN is a missing entry: the bound is
            that of the observed ones, and the encoder reads column means in its place. A memory
            map of more than 256 MB, or ``curvi.io.rows("x.npy")``, stays on disk: a thread reads
            the next batch while one is used.
        y : ignored
        condition : array, (rows, conditions), optional
            Numbers on which both networks depend: the model is p(x | z, c) and q(z | x, c). Every
            method that reads rows then takes a condition too.
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
            For rows that are infinite or out of range, fewer than two, all equal, or without any
            observed entry.
        NumericalError
            If the ELBO turned non-finite again and again.
        Interrupted
            At Ctrl-C, after the attributes of what was trained until then are set.

        Warns
        -----
        NotConvergedWarning
            If training failed or diverged: its ELBO is far below that of the first weights, or of a
            model that ignores the rows. Or if ``time_budget`` ran out before ``max_epochs``.
        """
        with opened(locals()):
            self._check_options()
            first = self._earlier_params(X) if warm_start else None
            X = all_rows(X, lambda part: self._rows(part, reset=True, gaps=True))
            check_rows(some := in_memory(X), self.latent)
            conditions = condition
            if condition is not None:
                conditions = checked_conditions(condition, len(X), None, X.dtype)
            self.n_conditions_ = 0 if conditions is None else conditions.shape[1]
            self.fill_ = np.nanmean(some, axis=0, dtype=np.float64).astype(X.dtype)
            hidden, more = list(self.hidden), self.n_conditions_
            networks = (
                [X.shape[1] + more, *hidden, 2 * self.latent],
                [self.latent + more, *hidden[::-1], X.shape[1]],
            )
            draws = 1 if self.num_draws == "auto" else int(self.num_draws)
            self._require_memory(X, networks, draws)
            with precision_of(X.dtype):
                rows = self._with_filled(X, conditions)
                trained = kept(lambda: self._trained(rows, self._seed(), first))
            self.num_draws_ = trained.objective.num_draws
            self._publish(trained)
            return self

    def _with_filled(self, X: Any, conditions: np.ndarray | None) -> Rows:
        """What the encoder reads, without gaps, beside what is to be explained, with them."""
        return filled(X, self.fill_, conditions)

    def _check_options(self) -> None:
        super()._check_options()
        validation.positive_integer(self.patience, "patience")
        if not isinstance(self.num_draws, str) or self.num_draws != "auto":
            validation.positive_integer(self.num_draws, "num_draws")
        validation.positive_number(self.beta, "beta")
        if not isinstance(self.importance_weighted, bool | np.bool_):
            raise InputError(
                f"importance_weighted is {self.importance_weighted!r}; it must be True or False"
            )
        if self.importance_weighted and self.num_draws in (1, "auto"):
            raise InputError("importance_weighted=True needs num_draws, a number of two or more")
        as_method(self.method)
        if self.init_scale is not None:
            validation.positive_number(self.init_scale, "init_scale")
        share: Any = self.validation_fraction
        numeric = isinstance(share, int | float | np.number) and not isinstance(share, bool)
        if not isinstance(share, str) and not (numeric and 0 <= share < 1):
            raise InputError(f"validation_fraction is {share!r}; it must be 'auto' or in [0, 1)")
        if isinstance(share, str):
            validation.one_of(share, ("auto",), "validation_fraction")

    def _trained(self, data: Rows, seed: int, first: VAEParams | None) -> Trained:
        """Hold rows out, choose the first weights and the number of draws, and train."""
        order = np.random.default_rng([seed, 1]).permutation(len(data.x))
        held = num_held_out(self.validation_fraction, len(data.x))
        rows = picked(data, order[held:])
        some = in_memory(rows)
        objective = MLPObjective(
            likelihood=self._likelihood(some.x),
            num_draws=1 if self.num_draws == "auto" else int(self.num_draws),
            decoder_l2=float(self.decoder_l2),
            activation=self.activation,
            beta=float(self.beta),
            importance_weighted=bool(self.importance_weighted),
            conditional=data.condition is not None,
            missing=has_gaps(data.x),
        )
        params = self._first_params(objective.likelihood, some, seed)
        if first is not None:
            require_same_shapes(first, params, "params_", "the network that is asked for")
            params = first
        method = as_method(self.method)
        batch_size = rows_per_step(self.batch_size, method, len(rows.x))
        schedule = self._schedule(len(rows.x), batch_size, seed, self.patience, self.on_step)
        if self.num_draws == "auto":
            objective, params, schedule = with_measured_draws(
                objective, params, rows, method, schedule
            )
        held_out = picked(data, order[:held]) if held else None
        trained = train(
            objective, params, rows, method=method, schedule=schedule, validation=held_out
        )
        trivial = objective.likelihood.trivial_elbo(some.x)
        return trained.judged(trivial, abs(trivial) + rows.x.shape[1])

    def _first_params(
        self, likelihood: Pixels, rows: Any, seed: int, *, signal: float = 0.1
    ) -> VAEParams:
        """First weights; without ``init_scale`` images vary by ``signal`` sds around their mean."""
        learned, X = likelihood.variances, split(rows).features
        params = initial_params(
            np.random.default_rng([seed, 2]),
            inputs=X.shape[1],
            hidden=tuple(self.hidden),
            latent=self.latent,
            variances=X.shape[1] if learned is None else learned,
            conditions=getattr(self, "n_conditions_", 0),
            scale=self.init_scale,
            dtype=X.dtype,
        )
        if self.init_scale is not None:
            return params
        *hidden, last = params.decoder
        if isinstance(likelihood, GaussianPixels):
            # Random weights of unit size would decode to noise far above the data's own spread.
            last = np.asarray(last) * np.asarray(signal * likelihood.scale, last.dtype)
        bias = likelihood.outputs_for(X.mean(axis=0))
        return params._replace(decoder=with_output_bias((*hidden, last), bias))

    def _networks(self) -> Trained:
        check_is_fitted(self)
        return self.result_

    def _given(self, X: Any, condition: Any) -> tuple[Trained, Rows]:
        X = self._rows(X, gaps=True)
        rows, model = self._with_filled(X, self._conditions(condition, len(X))), self.result_
        if np.isnan(X).any() and not model.objective.missing:
            model = replace(model, objective=replace(model.objective, missing=True))
        return model, rows

    def _conditions(self, condition: Any, rows: int) -> np.ndarray | None:
        dtype = use.dtype_of(self.result_)
        return checked_conditions(condition, rows, self.n_conditions_, dtype)

    def _code_shape(self) -> tuple[int, ...]:
        return (self.latent,)

    def _row_size(self) -> int:
        return int(self.n_features_in_)

    _shaped = AutoEncoder._shaped  # not that of networks whose rows have no other shape

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

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
        images = self.inverse_transform(use.code_grid(grid))
        return images.reshape(grid, grid, *images.shape[1:])

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
        rebuilt = self.reconstruct(X).reshape(X.shape)
        return plot_images(
            {"original": X, "reconstruction": rebuilt},
            image_shape or use.picture_shape(X, self.image_shape_),
        )

    def plot_manifold(self, grid: int = 20, image_shape: tuple[int, int] | None = None) -> Any:
        """The code plane as a sheet of images; returns a matplotlib figure."""
        sheet = self.manifold(grid).reshape(grid, grid, -1)
        shape = image_shape or use.picture_shape(sheet[0], self.image_shape_)
        return plot_sheet(sheet, shape, quantiles=True)
