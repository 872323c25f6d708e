r"""Principal coordinates of the encoder's input, in which its curvature factor is known.

Images never change, so neither does the input factor of the first layer. Centred, rotated by
their principal directions V and scaled by :math:`S = (\Lambda + \rho \bar\lambda)^{-1/4}` once,
a plain gradient step on the first layer is a step preconditioned by the -1/2 power of that factor,
and fewer directions than pixels save most of that layer's time.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from curvi.vae._networks import VAEParams

_MOST_PIXELS = 1500  # beyond, directions come from the Gram matrix of a subset of rows
_ROWS_OF_COVARIANCE = 10_000
_ROWS_OF_GRAM = 2_000
_CHUNK = 4096


class Rotation(NamedTuple):
    """``features = ((x - centre) V S, c)``.

    Attributes
    ----------
    centre : array, (pixels,)
    map : array, (pixels, directions)
        V S.
    back : array, (pixels, directions)
        V / S.
    constant : float
        c, the column that meets the bias.
    """

    centre: np.ndarray
    map: np.ndarray
    back: np.ndarray
    constant: float

    def features(self, X: np.ndarray) -> np.ndarray:
        """Rows in principal coordinates, the constant in the last column."""
        out = np.empty((len(X), self.map.shape[1] + 1), X.dtype)
        for first in range(0, len(X), _CHUNK):  # a centred copy of everything is not needed
            part = slice(first, first + _CHUNK)
            out[part, :-1] = (X[part] - self.centre) @ self.map
        out[:, -1] = self.constant
        return out

    def rotated(self, params: VAEParams) -> VAEParams:
        """Parameters for features from parameters for pixels; what V leaves out is dropped."""
        first = np.asarray(params.encoder[0])
        weights = self.back.T @ first[:-1]
        bias = (first[-1] + self.centre @ first[:-1]) / self.constant
        return self._with_first(params, weights, bias)

    def restored(self, params: VAEParams) -> VAEParams:
        """Parameters for pixels from parameters for features."""
        first = np.asarray(params.encoder[0])
        weights = self.map @ first[:-1]
        bias = self.constant * first[-1] - self.centre @ weights
        return self._with_first(params, weights, bias)

    def _with_first(self, params: VAEParams, weights: np.ndarray, bias: np.ndarray) -> VAEParams:
        dtype = params.encoder[0].dtype
        layer = jnp.asarray(np.concatenate([weights, bias[None]]), dtype)
        return params._replace(encoder=(layer, *params.encoder[1:]))


def principal_rotation(
    X: np.ndarray, *, directions: int | None = 200, damping: float = 0.01, seed: int = 0
) -> Rotation:
    """The rotation of a set of rows; at most ``directions``, the rank, and what is not noise.

    ``directions=None`` sets no limit of its own. Beyond 1,500 pixels the directions are those of
    2,000 rows, so that there are fewer than that.
    """
    most = X.shape[1] if directions is None else directions
    rows = np.random.default_rng(seed).permutation(len(X))
    wide = X.shape[1] > _MOST_PIXELS
    X = X[np.sort(rows[: _ROWS_OF_GRAM if wide else _ROWS_OF_COVARIANCE])]
    centre = X.mean(axis=0)
    centred = X - centre
    if wide or len(X) < X.shape[1]:
        values, left = np.linalg.eigh(centred @ centred.T)
        values, left = values[::-1], left[:, ::-1]
        kept = _kept(values, min(most, len(X) - 1))
        vectors = centred.T @ (left[:, :kept] / np.sqrt(values[:kept]))
    else:
        values, vectors = np.linalg.eigh(centred.T @ centred)
        values, vectors = values[::-1], vectors[:, ::-1]
        kept = _kept(values, min(most, X.shape[1]))
        vectors = vectors[:, :kept]
    variances = values[:kept] / len(X)
    lift = damping * (variances.sum() + 1) / (kept + 1)
    scale = ((variances + lift) ** -0.25).astype(X.dtype)
    return Rotation(centre, vectors * scale, vectors / scale, float((1 + lift) ** -0.25))


def _kept(values: np.ndarray, most: int) -> int:
    """Directions above rounding, at least one."""
    above = int(np.sum(values > values[0] * 100 * np.finfo(values.dtype).eps))
    return max(1, min(above, most))
