"""``curvi.DeepMarkovModel``: sequences explained by latent states with learned dynamics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator

from curvi._core import validation
from curvi._core.errors import (
    InputError,
    NotConvergedWarning,
    NumericalError,
    Outcome,
    warn_user,
)
from curvi.engine import opened
from curvi.solvers import Method
from curvi.vae._markov import MarkovObjective, initial_weights
from curvi.vae._markov_page import Reported
from curvi.vae._markov_training import (
    as_sequences,
    cut_lengths,
    method_named,
    padded,
    sequence_bounds,
    train_sequences,
)
from curvi.vae._markov_use import StoredWeights, emitted, posterior, rolled
from curvi.vae._training import Schedule, Trained


class DeepMarkovModel(Reported, StoredWeights, BaseEstimator):
    r"""A nonlinear state-space model with a structured recognition network.

    .. math::

        z_t \sim N\big(\mu(z_{t-1}), \Sigma(z_{t-1})\big), \qquad x_t \sim p(x_t \mid z_t), \qquad
        q(z \mid x) = \prod_t q(z_t \mid z_{t-1}, x_{t:T})

    with a gated transition, an emission network of two hidden layers, and gated recurrent units
    that read each sequence from its end. Trained by the bound of the paper, reparameterised step by
    step.

    Parameters
    ----------
    latent : int
        Coordinates of z_t.
    hidden : int
        Units of every hidden layer.
    likelihood : {"bernoulli", "gaussian"}
        Of an observation: binary (or in [0, 1]), or real with a learned sd per coordinate.
    num_draws : int
        M, draws of every sequence of latent states in a step.
    annealing : int
        Epochs until the divergence counts in full. With few of them most coordinates of z stay
        unused: small sets of sequences want hundreds.
    dropout : float
        Share that a step leaves out of the observations that the recognition model reads, of its
        units, and of those of the emission.
    l2 : float
        Weight of the penalty ``l2 / 2`` times the squares of all matrices, beside nats per step.
    method : {"adam", "kfac", "hessian_free"} or Method
        What takes the steps; ``"adam"`` and ``"kfac"`` average their weights.
    learning_rate : float
        Of ``"adam"``.
    batch_size, max_epochs, patience : int
        Sequences per step; epochs at most; evaluations without a better validation bound before
        training stops.
    time_budget : float, optional
        Seconds, compilation included.
    random_state : int
        All randomness follows from it.
    verbose : int
        Whether to draw a progress bar on a terminal.

    Attributes
    ----------
    params_ : dict
        Weights: the best by the validation bound, or the last ones.
    elbo_ : float
        Validation bound, or that of training sequences, in nats per step.
    history_ : dict of arrays
        step, epoch, seconds, elbo and validation_elbo of every evaluation.

    Examples
    --------
    >>> DeepMarkovModel(latent=2, hidden=4)
    DeepMarkovModel(latent=2, hidden=4, likelihood='bernoulli')
    """

    params_: Any
    objective_: MarkovObjective
    result_: Trained

    def __init__(
        self,
        latent: int = 32,
        hidden: int = 64,
        likelihood: str = "bernoulli",
        *,
        num_draws: int = 1,
        annealing: int = 20,
        dropout: float = 0.0,
        l2: float = 0.0,
        method: Any = "adam",
        learning_rate: float = 3e-3,
        batch_size: int = 20,
        max_epochs: int = 100,
        patience: int = 10,
        time_budget: float | None = None,
        random_state: int = 0,
        verbose: bool | int = 0,
    ) -> None:
        self.latent, self.hidden, self.likelihood = latent, hidden, likelihood
        self.num_draws, self.annealing, self.dropout = num_draws, annealing, dropout
        self.l2, self.method = l2, method
        self.learning_rate, self.batch_size = learning_rate, batch_size
        self.max_epochs, self.patience, self.time_budget = max_epochs, patience, time_budget
        self.random_state, self.verbose = random_state, verbose

    def __repr__(self) -> str:
        sizes = f"latent={self.latent}, hidden={self.hidden}"
        return f"DeepMarkovModel({sizes}, likelihood={self.likelihood!r})"

    def _check_options(self) -> Method:
        for name in ("latent", "hidden", "num_draws", "batch_size", "max_epochs", "patience"):
            validation.positive_integer(getattr(self, name), name)
        validation.one_of(self.likelihood, ("bernoulli", "gaussian"), "likelihood")
        validation.positive_number(self.learning_rate, "learning_rate")
        if self.annealing != 0:
            validation.positive_integer(self.annealing, "annealing")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}; it is a share of units, below 1")
        if self.l2 != 0:
            validation.positive_number(self.l2, "l2")
        if self.time_budget is not None:
            validation.positive_number(self.time_budget, "time_budget")
        validation.checked_seed(self.random_state, "random_state")
        if isinstance(self.method, Method):
            return self.method
        validation.one_of(self.method, ("adam", "kfac", "hessian_free"), "method")
        return method_named(self.method, float(self.learning_rate))

    def _sequences(self, sequences: Any, lengths: Any, width: int | None) -> list[np.ndarray]:
        found = as_sequences(sequences, lengths, width)
        for index, sequence in enumerate(found):
            validation.refuse_non_finite(
                sequence, f"sequences[{index}]", "every step must be known; impute() fills gaps"
            )
            if self.likelihood == "bernoulli" and ((sequence < 0) | (sequence > 1)).any():
                raise InputError(
                    f"sequences[{index}] has values outside [0, 1]; likelihood='bernoulli' needs "
                    "binary observations, or use likelihood='gaussian'"
                )
        return found

    def fit(
        self, sequences: Any, *, lengths: Any = None, validation_sequences: Any = None,
        start: Any = None, mesh: Any = None, checkpoint: Any = None,
    ) -> DeepMarkovModel:  # fmt: skip
        """Train on sequences of different lengths.

        Parameters
        ----------
        sequences : list of arrays of shape (steps, width), or array (rows, length, width)
            Observations; a padded array needs ``lengths``.
        lengths : sequence of int, optional
            Steps of each sequence of a padded array.
        validation_sequences : list of arrays, optional
            Held-out sequences for early stopping.
        start : dict, optional
            ``params_`` of an earlier fit, to go on from.
        mesh : jax.sharding.Mesh, optional
            Devices that share every batch (:func:`curvi.data_mesh`); each holds all sequences.
        checkpoint : path or Checkpoint, optional
            A file from which the same call resumes.

        Returns
        -------
        DeepMarkovModel
            The same object.

        Raises
        ------
        InputError
            For sequences or options that cannot be used.
        NumericalError
            If the weights are not finite after training.

        Warns
        -----
        NotConvergedWarning
            If training diverged or was interrupted.
        """
        with opened(locals()):
            method = self._check_options()
            found = self._sequences(sequences, lengths, None)
            self.width_ = found[0].shape[1]
            batch = padded(found, np.float32)
            held_out = None
            if validation_sequences is not None:
                held_out = padded(
                    self._sequences(validation_sequences, None, self.width_), np.float32
                )
            objective = MarkovObjective(
                self.likelihood,
                self.num_draws,
                float(self.dropout),
                float(self.l2),
                cut_lengths(batch.length, self.batch_size, method),
            )
            weights = self._initial(found) if start is None else start
            params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), weights)
            schedule = Schedule(
                self.batch_size, self.max_epochs, self.time_budget, self.patience,
                int(self.random_state), bool(self.verbose),
            )  # fmt: skip
            trained = train_sequences(
                objective, params, batch, method=method, schedule=schedule,
                annealing=0 if start is not None else self.annealing, validation_batch=held_out,
            )  # fmt: skip
            self._publish(trained)
            return self

    def _initial(self, sequences: list[np.ndarray]) -> Any:
        steps = np.concatenate(sequences)
        mean = steps.mean(axis=0)
        if self.likelihood == "bernoulli":
            share = np.clip(mean, 1e-3, 1 - 1e-3)
            mean = np.log(share / (1 - share))
        rng = np.random.default_rng(self.random_state)
        weights = initial_weights(rng, self.width_, self.latent, self.hidden, mean)
        if self.likelihood == "gaussian":
            weights["emission"]["log_sd"] = np.log(np.maximum(steps.std(axis=0), 1e-6))
        return weights

    def _publish(self, trained: Trained) -> None:
        self.result_, self.params_, self.objective_ = trained, trained.params, trained.objective
        self.history_, self.elbo_, self.n_iter_ = trained.history, trained.elbo, trained.steps
        self.outcome_ = trained.outcome
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained.params)):
            raise NumericalError(
                "the weights are not finite after training; use a smaller learning_rate", trained
            )
        if trained.outcome not in (Outcome.CONVERGED, Outcome.BUDGET):
            warn_user(NotConvergedWarning(trained.outcome.sentence, trained))

    def _fitted(self) -> Any:
        if not hasattr(self, "params_"):
            raise InputError("this DeepMarkovModel is not fitted yet; call fit(sequences) first")
        return self.params_

    def bound(
        self, sequences: Any, *, lengths: Any = None, per_sequence: bool = False, seed: int = 0
    ) -> Any:
        """The ELBO in nats per step: over all steps of all sequences, divided by their number.

        Parameters
        ----------
        sequences, lengths
            As for :meth:`fit`.
        per_sequence : bool
            The ELBO per step of each sequence instead; the mean of these is another convention.
        seed : int
            Of the draws, ``num_draws`` for each sequence.

        Returns
        -------
        float or array
            To be maximised: published tables print its negative.
        """
        params = self._fitted()
        batch = padded(self._sequences(sequences, lengths, self.width_), np.float32)
        nats = sequence_bounds(self.objective_, params, batch, seed)
        if per_sequence:
            return -nats / batch.length
        return -float(nats.sum() / batch.length.sum())

    def smooth(self, sequences: Any, *, lengths: Any = None, seed: int = 0) -> list[np.ndarray]:
        """Latent states given whole sequences.

        Parameters
        ----------
        sequences, lengths
            As for :meth:`fit`.
        seed : int
            Of the draw that the conditional means follow.

        Returns
        -------
        list of arrays, shape (steps, latent)
            Means of q(z_t | z_{t-1}, x) along a draw.
        """
        found = self._sequences(sequences, lengths, self._fitted() and self.width_)
        _, mean, steps = posterior(self.params_, found, seed)
        return [np.asarray(mean[:n, row]) for row, n in enumerate(steps)]

    def sample(self, num_sequences: int, length: int, *, seed: int = 0) -> np.ndarray:
        """Draw new sequences from the model.

        Parameters
        ----------
        num_sequences, length : int
            How many, and how long.
        seed : int
            All randomness follows from it.

        Returns
        -------
        array, shape (num_sequences, length, width)
            Observations.
        """
        params = self._fitted()
        validation.positive_integer(num_sequences, "num_sequences")
        validation.positive_integer(length, "length")
        first, more, last = jax.random.split(jax.random.key(seed), 3)
        start = jax.tree.map(jnp.asarray, params["start"])
        noise = jax.random.normal(first, (num_sequences, start["mean"].shape[0]), jnp.float32)
        z = start["mean"][None] + jnp.exp(start["log_sd"])[None] * noise
        states = z[None]
        if length > 1:
            states = jnp.concatenate([states, rolled(self.params_, z, more, length - 1)])
        return np.swapaxes(
            np.asarray(emitted(self.params_, self.likelihood, states, last, draw=True)), 0, 1
        )

    def forecast(self, sequence: Any, h: int, *, num_draws: int = 200, seed: int = 0) -> np.ndarray:
        """Expected next observations of one sequence.

        Parameters
        ----------
        sequence : array, shape (steps, width)
            What has been seen.
        h : int
            Steps ahead.
        num_draws : int
            Futures that are averaged.
        seed : int
            All randomness follows from it.

        Returns
        -------
        array, shape (h, width)
            Probabilities, or means.
        """
        self._fitted()
        validation.positive_integer(h, "h")
        validation.positive_integer(num_draws, "num_draws")
        (found,) = self._sequences([sequence], None, self.width_)
        z, _, steps = posterior(self.params_, [found] * num_draws, seed)
        key = jax.random.fold_in(jax.random.key(seed), 1)
        states = rolled(self.params_, z[int(steps[0]) - 1], key, h)
        return np.asarray(
            emitted(self.params_, self.likelihood, states, key, draw=False).mean(axis=1)
        )

    def impute(self, sequence: Any, *, seed: int = 0, rounds: int = 20) -> np.ndarray:
        """Fill the gaps of one sequence.

        Gaps start at the mean of their column; then the sequence is encoded and decoded again and
        again, and the decoded values of the second half of the rounds are averaged.

        Parameters
        ----------
        sequence : array, shape (steps, width)
            Observations, NaN where one is missing.
        seed : int
            All randomness follows from it.
        rounds : int
            Rounds of imputation, of which the second half is averaged.

        Returns
        -------
        array, shape (steps, width)
            The same with expected values in the gaps.
        """
        self._fitted()
        (given,) = as_sequences([sequence], None, self.width_)
        gaps = np.isnan(given)
        filled = np.where(gaps, 0.5 if self.likelihood == "bernoulli" else 0.0, given)
        self._sequences([filled], None, self.width_)
        total = np.zeros_like(given)
        for index in range(rounds):
            z, _, _ = posterior(self.params_, [filled], seed + index)
            mean = np.asarray(
                emitted(self.params_, self.likelihood, z, jax.random.key(seed), draw=False)
            )
            filled = np.where(gaps, mean[:, 0], given)
            if index >= rounds // 2:
                total += filled
        return total / (rounds - rounds // 2)
