"""What a file must say of a deep Markov model, so that it can be used."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from curvi._core.errors import InputError
from curvi.io import SavedEstimator, require_claims, require_described, require_like
from curvi.sequences._markov import initial_weights


class StoredWeights(SavedEstimator):
    """A model whose weights fit its sizes after loading, too."""

    _claims = {  # noqa: RUF012  of no instance
        "width_": "whole width_", "n_iter_": "whole iterations", "outcome_": "outcome",
        "elbo_": "number", "history_": "trace evaluations step epoch elbo validation_elbo",
        "result_.history": "trace evaluations step", "result_.trace": "trace steps step",
        "result_.objective.num_draws": "positive",
    }  # fmt: skip

    def _check_stored(self: Any) -> None:
        """Refuse weights of a file that do not fit its sizes."""
        if not hasattr(self, "result_"):
            return
        self.params_, self.objective_ = self.result_.params, self.result_.objective  # one meaning
        require_described(type(self), vars(self))
        self._check_options()
        claims = {**self._claims, "latent": "whole latent", "hidden": "whole hidden"}
        # What is made below for comparison is then no larger than the file.
        require_claims(self, {**claims, "params_.emission.first.w": "real latent hidden",
                              "params_.emission.out.w": "real hidden width_"})  # fmt: skip
        like = initial_weights(
            np.random.default_rng(0), self.width_, self.latent, self.hidden, np.zeros(self.width_)
        )
        require_like(self.params_, like, "params_")
        if not all((np.abs(leaf) < 1e9).all() for leaf in jax.tree.leaves(self.params_)):  # noqa: PLR2004
            raise InputError("its params_ have a number that is not finite, or none of use")
        if self.objective_.likelihood != self.likelihood:
            raise InputError("its result_.objective.likelihood is not that of the model")
