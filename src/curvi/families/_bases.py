"""Base distributions of the noise: what epsilon is in z = mu + R epsilon.

Every base is symmetric with mean zero and a finite variance, so one code path serves all of
them; only the Gaussian also satisfies equations (1)-(3).
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float, PRNGKeyArray

from curvi._core.errors import InputError


class Base(abc.ABC):
    """A zero-mean, symmetric noise distribution over vectors."""

    @property
    @abc.abstractmethod
    def variance(self) -> float:
        """Variance of one coordinate."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
        """Draw independent vectors; the last axis of ``shape`` is the vector."""

    @abc.abstractmethod
    def log_prob(self, noise: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log density of one vector."""

    @abc.abstractmethod
    def entropy(self, dimension: int) -> float:
        """Entropy in nats of a vector of the given dimension."""

    def num_uniforms(self, dimension: int) -> int:
        """How many uniform variables :meth:`from_uniform` turns into one vector."""
        return dimension

    @abc.abstractmethod
    def from_uniform(self, uniform: np.ndarray) -> np.ndarray:
        """Map points of the unit cube (rows) to noise vectors by inverse distribution functions."""


def _normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
    """Standard normals, drawn flat: the same bits, but several axes compile ten times slower."""
    return jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape)


@dataclass(frozen=True)
class Normal(Base):
    """Standard Gaussian noise."""

    variance = 1.0

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
        """Draw standard normals."""
        return _normal(key, shape, dtype)

    def log_prob(self, noise: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log density of one vector."""
        return jnp.sum(-0.5 * noise**2 - 0.5 * math.log(2 * math.pi))

    def entropy(self, dimension: int) -> float:
        """``d/2 (1 + log 2 pi)``."""
        return 0.5 * dimension * (1 + math.log(2 * math.pi))

    def from_uniform(self, uniform: np.ndarray) -> np.ndarray:
        """Inverse normal distribution function."""
        return scipy.special.ndtri(uniform)


@dataclass(frozen=True)
class Laplace(Base):
    """Independent standard Laplace coordinates."""

    variance = 2.0

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
        """Draw standard Laplace variables."""
        return jax.random.laplace(key, shape, dtype)

    def log_prob(self, noise: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log density of one vector."""
        return jnp.sum(-jnp.abs(noise) - math.log(2))

    def entropy(self, dimension: int) -> float:
        """``d (1 + log 2)``."""
        return dimension * (1 + math.log(2))

    def from_uniform(self, uniform: np.ndarray) -> np.ndarray:
        """Inverse Laplace distribution function."""
        centred = uniform - 0.5
        return -np.sign(centred) * np.log1p(-2 * np.abs(centred))


@dataclass(frozen=True)
class Logistic(Base):
    """Independent standard logistic coordinates."""

    variance = math.pi**2 / 3

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
        """Draw standard logistic variables."""
        return jax.random.logistic(key, shape, dtype)

    def log_prob(self, noise: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log density of one vector."""
        return jnp.sum(-noise - 2 * jax.nn.softplus(-noise))

    def entropy(self, dimension: int) -> float:
        """``2 d``."""
        return 2.0 * dimension

    def from_uniform(self, uniform: np.ndarray) -> np.ndarray:
        """Inverse logistic distribution function."""
        return scipy.special.logit(uniform)


@dataclass(frozen=True)
class _T(Base):
    """What the two t distributions share: df, and the density of the multivariate one."""

    df: float

    def __post_init__(self) -> None:
        """Validate that the variance is finite."""
        if not 2 < self.df <= 1e30:  # noqa: PLR2004  beyond which single precision has no chi-square
            raise InputError(
                f"df is {self.df}; a Student t needs df > 2 so that its variance df / (df - 2) is "
                "finite"
            )

    @property
    def variance(self) -> float:
        """``df / (df - 2)``."""
        return self.df / (self.df - 2)

    def _log_constant(self, dimension: int) -> float:
        return (
            math.lgamma(0.5 * (self.df + dimension))
            - math.lgamma(0.5 * self.df)
            - 0.5 * dimension * math.log(self.df * math.pi)
        )

    def entropy(self, dimension: int) -> float:
        r"""``-log c_d + (df + d)/2 (psi((df + d)/2) - psi(df/2))``."""
        half = 0.5 * (self.df + dimension)
        difference = scipy.special.digamma(half) - scipy.special.digamma(0.5 * self.df)
        return float(half * difference) - self._log_constant(dimension)


@dataclass(frozen=True)
class StudentTBase(_T):
    """Independent Student t coordinates (a product of t's).

    Parameters
    ----------
    df : float
        Degrees of freedom, above 2.

    Raises
    ------
    InputError
        If ``df`` is not above 2: the variance would not be finite.
    """

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
        """Draw t variables."""
        return jax.random.t(key, jnp.asarray(self.df, dtype), shape, dtype)

    def log_prob(self, noise: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log density of one vector."""
        half = 0.5 * (self.df + 1)
        return jnp.sum(self._log_constant(1) - half * jnp.log1p(noise**2 / self.df))

    def entropy(self, dimension: int) -> float:
        """Dimension times the entropy of one t variable."""
        return dimension * super().entropy(1)

    def from_uniform(self, uniform: np.ndarray) -> np.ndarray:
        """Inverse t distribution function."""
        return scipy.special.stdtrit(self.df, uniform)


@dataclass(frozen=True)
class MultivariateTBase(_T):
    """The multivariate t: a Gaussian vector over the root of one shared chi-square / df.

    Parameters
    ----------
    df : float
        Degrees of freedom, above 2.

    Raises
    ------
    InputError
        If ``df`` is not above 2: the variance would not be finite.
    """

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
        """Draw vectors; each has one chi-square of its own."""
        normal_key, gamma_key = jax.random.split(key)
        normal = _normal(normal_key, shape, dtype)
        half_chi2 = jax.random.gamma(gamma_key, 0.5 * self.df, (*shape[:-1], 1), dtype)
        return normal * jnp.sqrt(0.5 * self.df / half_chi2)

    def log_prob(self, noise: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Log density of one vector."""
        dimension = noise.shape[0]
        half = 0.5 * (self.df + dimension)
        return self._log_constant(dimension) - half * jnp.log1p(jnp.sum(noise**2) / self.df)

    def num_uniforms(self, dimension: int) -> int:
        """One more than the dimension, for the shared chi-square."""
        return dimension + 1

    def from_uniform(self, uniform: np.ndarray) -> np.ndarray:
        """Normal quantiles over the root of a chi-square quantile from the last coordinate."""
        chi2 = scipy.special.chdtri(self.df, 1 - uniform[:, -1:])
        return scipy.special.ndtri(uniform[:, :-1]) * np.sqrt(self.df / chi2)
