"""What the auto-encoders share around their training: gates before it, what it left after it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from curvi._core import validation
from curvi._core.errors import InputError, NotConvergedWarning, NumericalError
from curvi.vae._likelihoods import Bernoulli, Gaussian
from curvi.vae._networks import ACTIVATIONS
from curvi.vae._train import Trained

_MARGIN = 0.02  # first guesses of probabilities stay this far from 0 and 1


class TrainsVAE:
    """Check the networks and the schedule; publish a run or say how it failed."""

    latent: int
    hidden: Sequence[int]
    activation: str
    likelihood: str
    variance: str | float
    decoder_l2: float
    batch_size: int | None
    max_epochs: int
    time_budget: float | None

    def _check_networks(self) -> None:
        """Everything that both auto-encoders are told about networks and schedule."""
        for name in ("latent", "max_epochs"):
            validation.positive_integer(getattr(self, name), name)
        hidden: Any = self.hidden
        if isinstance(hidden, str) or not isinstance(hidden, Sequence) or not hidden:
            raise InputError(f"hidden is {hidden!r}; give a sequence of sizes, as in (500,)")
        for size in hidden:
            validation.positive_integer(size, "a size in hidden")
        validation.one_of(self.activation, tuple(ACTIVATIONS), "activation")
        validation.one_of(self.likelihood, ("bernoulli", "gaussian"), "likelihood")
        if self.time_budget is not None:
            validation.positive_number(self.time_budget, "time_budget")
        if self.batch_size is not None:
            validation.positive_integer(self.batch_size, "batch_size")
        if self.decoder_l2 != 0:
            validation.positive_number(self.decoder_l2, "decoder_l2")

    def _likelihood(self, X: np.ndarray) -> Bernoulli | Gaussian:
        if self.likelihood == "bernoulli":
            return Bernoulli()
        scale = float(np.sqrt(X.var(axis=0, dtype=np.float64).mean()))
        return Gaussian(self.variance, float(f"{scale:.3g}"))

    def _mean_output(self, X: np.ndarray) -> np.ndarray:
        """Outputs of a decoder that paints the mean image: logits, or the image itself."""
        mean = X.mean(axis=0)
        if self.likelihood != "bernoulli":
            return mean
        safe = np.clip(mean, _MARGIN, 1 - _MARGIN)
        return np.log(safe) - np.log1p(-safe)

    def _publish(self, trained: Trained) -> None:
        """Attributes of a run; a failed one warns, or raises if it left nothing to use."""
        self.result_, self.params_ = trained, trained.params
        self.history_, self.n_iter_ = trained.history, trained.steps
        self.outcome_, self.message_ = trained.outcome, trained.outcome.sentence
        bounds = trained.history["validation_elbo"]
        known = bounds[np.isfinite(bounds)]
        last = trained.history["elbo"][-1] if len(trained.history["elbo"]) else float("nan")
        self.elbo_ = float(known.max()) if len(known) else float(last)
        leaves = jax.tree.leaves(trained.params)
        if not all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in leaves):
            raise NumericalError("the weights are not finite after training", trained)
        if trained.outcome.is_failure:
            if len(known) == 0:
                raise NumericalError(self.message_, trained)
            warnings.warn(self.message_, NotConvergedWarning, stacklevel=3)
