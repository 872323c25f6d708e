"""What can be done with a fitted auto-encoder."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.trees import precision_of
from curvi.plots import plot_images, plot_training
from curvi.vae import _evaluate as evaluate
from curvi.vae._variance import ReconstructionVariance, reconstruction_variance

_DTYPES = (np.float64, np.float32)


class UsesVAE(TransformerMixin, BaseEstimator):
    """Embed, reconstruct, generate, impute: everything after ``fit``."""

    def transform(self, X: Any) -> np.ndarray:
        """Posterior means of the codes, (rows, latent)."""
        X = self._rows(X)
        return self._mapped(lambda _, x: evaluate.code_means(self.objective_, self.params_, x), x=X)

    def inverse_transform(self, Z: Any) -> np.ndarray:
        """Mean images E[x | z] of codes."""
        check_is_fitted(self)
        Z = np.asarray(Z, self._dtype())
        if Z.ndim != 2 or Z.shape[1] != self.latent:
            raise InputError(f"Z has shape {Z.shape}; codes have shape (rows, {self.latent})")
        validation.refuse_non_finite(Z, "Z", "codes must be finite")
        return self._mapped(
            lambda _, z: evaluate.decoded_means(self.objective_, self.params_, z), z=Z
        )

    def reconstruct(self, X: Any) -> np.ndarray:
        """Rows through the bottleneck and back: the mean image of the mean code."""
        return self.inverse_transform(self.transform(X))

    def draw_report(self, X: Any, num_draws: int = 200) -> ReconstructionVariance:
        """How much one draw of the code moves the reconstruction term: bound and measurement.

        Theorem 2 with the constant of Lemma 4, carried through the decoder, beside the variance
        over ``num_draws`` draws. A Gaussian likelihood has no bound.
        """
        validation.positive_integer(num_draws, "num_draws")
        X = self._rows(X)
        return reconstruction_variance(
            self.objective_, self.params_, X, num_draws=max(2, num_draws), seed=self.seed_
        )

    def denoise(self, X: Any, num_draws: int = 20) -> np.ndarray:
        """Posterior mean images E[E[x | z] | observed], averaged over draws of the code.

        The rows may carry noise that the training rows did not have, as long as they are in range.
        """
        X = self._rows(X)
        validation.positive_integer(num_draws, "num_draws")

        def one(number: int, x: np.ndarray) -> Any:
            key = jax.random.fold_in(self._key(), number)
            return evaluate.denoised(self.objective_, self.params_, x, key, num_draws)

        return self._mapped(one, x=X)

    def impute(self, X: Any, missing: Any = None, num_sweeps: int = 100) -> np.ndarray:
        """Fill missing entries given the others.

        A Markov chain draws a code given the current image and replaces what is missing by the
        code's mean image; the answer is the average over its second half.

        Parameters
        ----------
        X : array, (rows, pixels)
            Values at missing entries are ignored and may be NaN.
        missing : boolean array of the same shape, optional
            By default the NaN entries of X.
        num_sweeps : int
            Length of the chain, at least 2.
        """
        check_is_fitted(self)
        X = np.array(X, self._dtype(), ndmin=2)
        missing = np.isnan(X) if missing is None else np.asarray(missing)
        if missing.dtype != bool or missing.shape != X.shape:
            raise InputError(
                f"missing has dtype {missing.dtype} and shape {missing.shape}; it must be boolean "
                f"of the shape of X, {X.shape}"
            )
        if validation.positive_integer(num_sweeps, "num_sweeps") < 2:
            raise InputError("num_sweeps is 1; impute() needs at least 2")
        X[missing] = 0.5
        X = self._rows(X)

        def one(number: int, x: np.ndarray, hole: np.ndarray) -> Any:
            key = jax.random.fold_in(self._key(), number)
            return evaluate.filled(self.objective_, self.params_, x, hole, key, num_sweeps)

        return self._mapped(one, x=X, hole=missing)

    def sample(self, num_draws: int, seed: int = 0, *, noise: bool = False) -> np.ndarray:
        """Images of codes drawn from the prior; with ``noise`` pixels are drawn too."""
        check_is_fitted(self)
        validation.positive_integer(num_draws, "num_draws")
        codes = np.random.default_rng(seed).standard_normal((num_draws, self.latent))
        if not noise:
            return self.inverse_transform(codes)
        with precision_of(self._dtype()):
            outputs = self.objective_.decoded(self.params_, jnp.asarray(codes, self._dtype()))
            return np.asarray(self.objective_.likelihood.draw(jax.random.key(seed), outputs))

    def manifold(self, grid: int = 20) -> np.ndarray:
        """Mean images on a grid x grid net of the code plane, (grid, grid, pixels).

        Both coordinates are normal quantiles of equally spaced points in the unit interval, so
        that every cell has the same prior probability. Needs ``latent=2``.
        """
        check_is_fitted(self)
        validation.positive_integer(grid, "grid")
        if self.latent != 2:
            raise InputError(f"latent is {self.latent}; manifold() needs a model with latent=2")
        marks = special.ndtri((np.arange(grid) + 0.5) / grid)
        first, second = np.meshgrid(marks, -marks)
        codes = np.stack([first.ravel(), second.ravel()], axis=1)
        return self.inverse_transform(codes).reshape(grid, grid, -1)

    def elbo(self, X: Any, num_draws: int = 10) -> np.ndarray:
        """The evidence lower bound of every row, in nats."""
        return self._per_row(evaluate.row_elbos, X, num_draws)

    def log_likelihood(self, X: Any, num_draws: int = 1000) -> np.ndarray:
        """Importance-weighted estimate of log p(x) of every row: above the bound on average."""
        return self._per_row(evaluate.row_log_likelihoods, X, num_draws)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean bound per row: higher is better."""
        del y
        return float(np.mean(self.elbo(X)))

    def plot_history(self) -> Any:
        """The bound against time and epochs; returns a matplotlib figure."""
        check_is_fitted(self)
        return plot_training({self._method_name(): self.history_})

    def plot_reconstructions(
        self, X: Any, image_shape: tuple[int, int] | None = None, count: int = 10
    ) -> Any:
        """Originals above their reconstructions; returns a matplotlib figure."""
        X = self._rows(X)[:count]
        return plot_images(
            {"original": X, "reconstruction": self.reconstruct(X)}, image_shape or _square(X)
        )

    def plot_manifold(self, grid: int = 20, image_shape: tuple[int, int] | None = None) -> Any:
        """The code plane as a sheet of images; returns a matplotlib figure."""
        from curvi.plots import plot_sheet

        sheet = self.manifold(grid)
        return plot_sheet(sheet, image_shape or _square(sheet[0]))

    def _per_row(self, fn: Any, X: Any, num_draws: int) -> np.ndarray:
        X = self._rows(X)
        validation.positive_integer(num_draws, "num_draws")

        def one(number: int, x: np.ndarray) -> Any:
            key = jax.random.fold_in(self._key(), number)
            return fn(self.objective_, self.params_, x, key, num_draws)

        return self._mapped(one, x=X)

    def _mapped(self, fn: Any, **arrays: np.ndarray) -> np.ndarray:
        with precision_of(self._dtype()):
            return evaluate.in_blocks(fn, **arrays)

    def _dtype(self) -> Any:
        return jax.tree.leaves(self.params_)[0].dtype

    def _key(self) -> Any:
        return jax.random.fold_in(jax.random.key(self.seed_), 7)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _rows(self, X: Any, *, reset: bool = False) -> np.ndarray:
        """The gate: finite rows of the right width, in range for the likelihood."""
        if not reset:
            check_is_fitted(self)
        X = validate_data(
            self, X, dtype=_DTYPES, ensure_all_finite=False, reset=reset, ensure_min_samples=1
        )
        validation.refuse_non_finite(X, "X", "pixels must be finite; impute() fills missing ones")
        if self.likelihood == "bernoulli":
            outside = (X < 0) | (X > 1)
            if outside.any():
                row, column = (int(i) for i in np.argwhere(outside)[0])
                raise InputError(
                    f"X[{row}, {column}] is {X[row, column]}; likelihood='bernoulli' needs values "
                    "in [0, 1]: divide grey levels by their maximum, or use likelihood='gaussian'"
                )
        return X if reset else X.astype(self._dtype())

    def _method_name(self) -> str:
        name = self.method
        return name if isinstance(name, str) else type(name).__name__


def _square(X: np.ndarray) -> tuple[int, int]:
    side = round(X.shape[-1] ** 0.5)
    if side * side != X.shape[-1]:
        raise InputError(
            f"images of {X.shape[-1]} pixels are not square; pass image_shape=(height, width)"
        )
    return side, side
