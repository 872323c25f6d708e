r"""What the outputs of a decoder mean: p(x | z), its mean, and its curvature in the outputs.

The curvature is the Fisher information of a row, which is diagonal for both likelihoods. For the
Bernoulli in its logits and for the Gaussian in its mean it is also the Hessian of -log p, which is
the remark of section 3 that ties Gauss-Newton to Fisher.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy import special

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.likelihoods._counts import logistic_log_density
from curvi.likelihoods._real import normal_log_density

_LIMIT = 12.0  # log variances beyond this are bent back: exp(13) and exp(-13) are safe to square

Observed = Bool[Array, "rows *pixels"] | None  # None: everything is


def over_pixels(
    terms: Float[Array, "rows *pixels"], observed: Observed = None
) -> Float[Array, " rows"]:
    """Sum of every row over all its axes, without what is not observed."""
    if observed is not None:
        terms = jnp.where(observed, terms, 0.0)
    return jnp.sum(terms, axis=tuple(range(1, terms.ndim)))


def bounded(log_variance: Array, limit: float = _LIMIT) -> Array:
    r"""The identity within ``[-limit, limit]``, bent to within one unit of it outside.

    :math:`\pm(\ell + \tanh(|s| - \ell))` beyond: twice continuously differentiable, and the
    gradient never vanishes at once, so that a runaway variance can come back.
    """
    over = jnp.maximum(jnp.abs(log_variance) - limit, 0.0)
    outside = jnp.sign(log_variance) * (limit + jnp.tanh(over))
    return jnp.where(over > 0, outside, log_variance)


@dataclass(frozen=True)
class BernoulliPixels:
    r"""Pixels in [0, 1] as probabilities: :math:`\log p = \sum_j x_j s_j - \log(1 + e^{s_j})`."""

    name: ClassVar[str] = "bernoulli"
    variances: ClassVar[int | None] = 0  # none are learned
    need: ClassVar[str] = (
        "values in [0, 1]: divide grey levels by their maximum, or use likelihood='gaussian'"
    )

    def fitting(self, X: np.ndarray, variance: str | float) -> BernoulliPixels:
        """The same: probabilities have no unit."""
        return self

    def outside(self, X: np.ndarray) -> np.ndarray:
        """Which entries it cannot give."""
        found: np.ndarray = (X < 0) | (X > 1)
        return found

    def steepest(self, X: np.ndarray) -> np.ndarray:
        """The largest norm of the slope of every row in its outputs, ``x - p``."""
        return np.linalg.norm(np.maximum(X, 1 - X), axis=1)

    def trivial_elbo(self, X: np.ndarray) -> float:
        """The ELBO per row of the best model that ignores its code: independent pixels.

        NaN is not observed, and not explained.
        """
        mean, share = np.nanmean(X, axis=0, dtype=np.float64), 1 - np.mean(np.isnan(X), axis=0)
        return -float(np.sum(share * (special.entr(mean) + special.entr(1 - mean))))

    def log_density(self, outputs: Array, x: Array) -> Array:
        """Log likelihood of every pixel, on logits: no probability is ever formed."""
        return logistic_log_density(outputs, x)

    def log_prob(
        self, outputs: Float[Array, "rows *pixels"], x: Array, observed: Observed = None
    ) -> Float[Array, " rows"]:
        """Log likelihood of rows."""
        return over_pixels(self.log_density(outputs, x), observed)

    def mean(self, outputs: Float[Array, "rows *pixels"]) -> Float[Array, "rows *pixels"]:
        """E[x | z]."""
        return jax.nn.sigmoid(outputs)

    def outputs_for(self, mean: np.ndarray, *, margin: float = 0.02) -> np.ndarray:
        """Logits of a mean image, kept away from infinity.

        ``margin``: first guesses of probabilities stay this far from 0 and 1.
        """
        safe = np.clip(mean, margin, 1 - margin)
        return np.log(safe) - np.log1p(-safe)

    def curvature(self, outputs: Float[Array, "rows *pixels"]) -> Float[Array, "rows *pixels"]:
        """Fisher information in the logits, p (1 - p)."""
        probability = jax.nn.sigmoid(outputs)
        return probability * (1 - probability)

    def lifted(self, curvature: Array, slope: Array) -> Array:
        """The curvature as it is: that of logits bounds what the loss can do."""
        return curvature

    def draw(self, key: Array, outputs: Float[Array, "rows *pixels"]) -> Array:
        """Binary images."""
        flips = jax.random.bernoulli(key, jax.nn.sigmoid(outputs))
        return flips.astype(outputs.dtype)


@dataclass(frozen=True)
class GaussianPixels:
    r"""Real pixels: :math:`\log p = -\frac12 \sum_j s_j + \log 2\pi + (x_j - m_j)^2 e^{-s_j}`.

    Outputs are means, or a pair (means, log variances) where variances are learned; the log
    variances broadcast over rows or pixels and are bounded. They count from ``scale^2``.

    Parameters
    ----------
    variance : {"pixel", "one"} or float
        Learned for every pixel, learned once, or fixed at the number.
    scale : float
        Size of the data, from which learned log variances count: a variance stays above
        ``scale^2 exp(-13)`` even where all images agree.
    """

    variance: str | float = "pixel"
    scale: float = 1.0
    name: ClassVar[str] = "gaussian"
    need: ClassVar[str] = "numbers"

    def __post_init__(self) -> None:
        """Validate the choice of variance, and the scale."""
        if isinstance(self.variance, str):
            validation.one_of(self.variance, ("pixel", "one"), "variance")
        else:
            validation.positive_number(self.variance, "variance")
        validation.positive_number(self.scale, "scale")

    @property
    def variances(self) -> int | None:
        """How many variances are learned; None means one per pixel."""
        return {"pixel": None, "one": 1}.get(str(self.variance), 0)

    def fitting(
        self, X: np.ndarray, variance: str | float, *, largest_scale: float = 1e6
    ) -> GaussianPixels:
        """In the units of the data.

        ``largest_scale``: sd of the rows, up to which untouched rows can be learned.
        """
        with np.errstate(over="ignore"):
            scale = float(np.sqrt(np.nanvar(X, axis=0, dtype=np.float64).mean()))
        if not 1 / largest_scale <= scale <= largest_scale:
            raise InputError(
                f"X has an sd of about {scale:.3g}; networks need numbers of moderate size, from "
                f"{1 / largest_scale:.0e} to {largest_scale:.0e}: divide X by its sd, for "
                "example with sklearn.preprocessing.StandardScaler"
            )
        # A power of two: folds of a table and nearby data sets share what is compiled.
        return GaussianPixels(variance, 2.0 ** round(math.log2(scale)))

    def outside(self, X: np.ndarray) -> np.ndarray:
        """Nothing."""
        return np.zeros(X.shape, bool)

    def steepest(self, X: np.ndarray) -> np.ndarray:
        """A squared error has no bounded slope."""
        return np.full(len(X), math.inf)

    def trivial_elbo(self, X: np.ndarray) -> float:
        """The ELBO per row of the best model that ignores its code: independent pixels.

        NaN is not observed, and not explained.
        """
        mean, share = np.nanmean(X, axis=0, dtype=np.float64), 1 - np.mean(np.isnan(X), axis=0)
        spread = np.nanvar(X, axis=0, dtype=np.float64)
        variance: Any = spread if self.variance == "pixel" else spread.mean()
        if not isinstance(self.variance, str):
            variance = self.variance
        variance = np.maximum(variance, self.scale**2 * math.exp(-_LIMIT - 1))
        terms = np.log(2 * math.pi * variance) + spread / variance
        return -0.5 * float(np.sum(share * np.broadcast_to(terms, mean.shape)))

    def parts(self, outputs: Any) -> tuple[Array, Array]:
        """Means and log variances, of one shape."""
        if isinstance(outputs, tuple):
            mean, raw = outputs
            shift = 2 * math.log(self.scale)
            return mean, jnp.broadcast_to(bounded(raw) + shift, mean.shape)
        if isinstance(self.variance, str):
            raise InputError(
                f"variance is {self.variance!r} but decode() returned one array; return "
                "(mean, log_variance), or fix the variance at a number"
            )
        return outputs, jnp.full_like(outputs, math.log(self.variance))

    def log_density(self, outputs: Any, x: Array) -> Array:
        """Log likelihood of every pixel."""
        mean, log_variance = self.parts(outputs)
        return normal_log_density(x - mean, log_variance)

    def log_prob(self, outputs: Any, x: Array, observed: Observed = None) -> Float[Array, " rows"]:
        """Log likelihood of rows."""
        return over_pixels(self.log_density(outputs, x), observed)

    def mean(self, outputs: Any) -> Float[Array, "rows *pixels"]:
        """E[x | z]."""
        return self.parts(outputs)[0]

    def outputs_for(self, mean: np.ndarray) -> np.ndarray:
        """Outputs of a mean image: the image itself."""
        return mean

    def curvature(self, outputs: Any) -> Any:
        """Fisher information: 1/variance in the mean, 1/2 in the log variance."""
        mean, log_variance = self.parts(outputs)
        precision = jnp.exp(-log_variance)
        if isinstance(outputs, tuple):
            return precision, jnp.full_like(mean, 0.5)
        return precision

    def lifted(self, curvature: Any, slope: Any) -> Any:
        r"""The curvature, of log variances at least as large as what the rows show on average.

        Where means are far off, the curvature of the loss in a log variance is not the expected
        1/2 but :math:`r^2 e^{-s} / 2`, which is 1/2 minus its slope. A step by the former goes so
        far above the variance that the way back is lost.
        """
        if not isinstance(curvature, tuple):
            return curvature
        precision, expected = curvature
        shown = jnp.mean(expected - slope[1], axis=0, keepdims=True)
        return precision, jnp.maximum(expected, shown)

    def draw(self, key: Array, outputs: Any) -> Array:
        """Images with pixel noise."""
        mean, log_variance = self.parts(outputs)
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return mean + jnp.exp(0.5 * log_variance) * noise


Pixels = BernoulliPixels | GaussianPixels
PIXELS: dict[str, Callable[..., Pixels]] = {
    kind.name: kind for kind in (BernoulliPixels, GaussianPixels)
}


def pixels_for(X: np.ndarray, name: str, variance: str | float) -> Pixels:
    """The likelihood by name, in the units of the data."""
    validation.one_of(name, tuple(PIXELS), "likelihood")
    return PIXELS[name]().fitting(X, variance)
