"""Location-scale families q(z): z = mu + R epsilon, any structure of R with any base noise."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.trees import Metric
from curvi.families._bases import Base, MultivariateTBase, Normal, StudentTBase
from curvi.families._low_rank import DiagonalPlusLowRank
from curvi.families._scales import Diagonal, LowerTriangular, Scale


class Params(NamedTuple):
    """Variational parameters: the mean, and whatever describes R."""

    mean: Float[Array, " dimension"]
    scale: Any


class Family(abc.ABC):
    """q(z) as a structure of R (``scale``) and a noise distribution (``base``).

    A family has no state: parameters go in, numbers come out, and everything can be jitted,
    differentiated and vmapped.
    """

    @property
    @abc.abstractmethod
    def scale(self) -> Scale:
        """The structure of R."""

    @property
    @abc.abstractmethod
    def base(self) -> Base:
        """The distribution of epsilon."""

    def init(
        self,
        position: Float[Array, " dimension"],
        sd: float | Float[Array, ""] | Float[Array, " dimension"] = 1.0,
    ) -> Params:
        """Parameters whose mean is the position itself and whose sds are ``sd``."""
        width = jnp.broadcast_to(jnp.asarray(sd, position.dtype), position.shape)
        return Params(position, self.scale.init(width / self.base.variance**0.5))

    def transform(
        self, params: Params, noise: Float[Array, " noise"]
    ) -> Float[Array, " dimension"]:
        """``z = mu + R epsilon``."""
        return params.mean + self.scale.apply(params.scale, noise)

    def entropy(self, params: Params) -> Float[Array, ""]:
        """``log |det R|`` plus the entropy of the base."""
        constant = self.base.entropy(params.mean.shape[0])
        return self.scale.log_det(params.scale) + constant

    def log_prob(self, params: Params, z: Float[Array, " dimension"]) -> Float[Array, ""]:
        """``log q(z)``."""
        noise = self.scale.solve(params.scale, z - params.mean)
        return self.base.log_prob(noise) - self.scale.log_det(params.scale)

    def sd(self, params: Params) -> Float[Array, " dimension"]:
        """Marginal standard deviations."""
        return jnp.sqrt(self.base.variance * self.scale.variance(params.scale))

    def covariance(self, params: Params) -> Float[Array, "dimension dimension"]:
        """Dense covariance matrix."""
        return self.base.variance * self.scale.covariance(params.scale)

    def num_noise(self, dimension: int) -> int:
        """Length of epsilon."""
        return self.scale.num_noise(dimension)

    def min_fixed_draws(self, dimension: int) -> int:
        """Fewest fixed draws for which the sampled bound has a maximum."""
        return self.scale.min_fixed_draws(dimension)

    def metric(self, params: Params) -> Metric:
        """Natural metric on tangents of the parameters, the preconditioner of Newton steps."""
        mean = self.scale.mean_metric(params.scale)
        scale = self.scale.scale_metric(params.scale)
        variance = self.base.variance
        return Metric(
            lambda t: Params(mean.apply(t.mean) / variance, scale.apply(t.scale)),
            lambda t: Params(mean.solve(t.mean) * variance, scale.solve(t.scale)),
        )

    def project(self, params: Params, tangent: Params) -> Params:
        """Remove directions in parameter space along which q does not change."""
        return Params(tangent.mean, self.scale.project(params.scale, tangent.scale))

    def to_raw(self, params: Params) -> Params:
        """The mean and the entries of R themselves."""
        return Params(params.mean, self.scale.to_raw(params.scale))

    def from_raw(self, raw: Params) -> Params:
        """Inverse of :meth:`to_raw`."""
        return Params(raw.mean, self.scale.from_raw(raw.scale))


@dataclass(frozen=True)
class MeanField(Family):
    """Independent Gaussian coordinates: R = diag(sigma)."""

    @property
    def scale(self) -> Scale:
        """Diagonal."""
        return Diagonal()

    @property
    def base(self) -> Base:
        """Gaussian."""
        return Normal()


@dataclass(frozen=True)
class FullRank(Family):
    """A Gaussian with any covariance: R lower triangular with a positive diagonal."""

    @property
    def scale(self) -> Scale:
        """Lower triangular."""
        return LowerTriangular()

    @property
    def base(self) -> Base:
        """Gaussian."""
        return Normal()


@dataclass(frozen=True)
class LowRank(Family):
    """A Gaussian with covariance D^2 + U U', U of the given rank, in O(d rank) memory.

    Gaussian only: a sum of independent terms of another base is not of that base.
    """

    rank: int

    def __post_init__(self) -> None:
        """Refuse a rank that is no count."""
        validation.positive_integer(self.rank, "rank")

    @property
    def scale(self) -> Scale:
        """Diagonal plus low rank."""
        return DiagonalPlusLowRank(self.rank)

    @property
    def base(self) -> Base:
        """Gaussian."""
        return Normal()

    def init(
        self,
        position: Float[Array, " dimension"],
        sd: float | Float[Array, ""] | Float[Array, " dimension"] = 1.0,
    ) -> Params:
        """Parameters around the position; the rank must be below the dimension."""
        if self.rank >= position.shape[0]:
            raise InputError(
                f"rank is {self.rank} but the position has {position.shape[0]} coordinate(s); "
                "use a smaller rank, or FullRank()"
            )
        return super().init(position, sd)


@dataclass(frozen=True)
class StudentT(Family):
    """Student t posteriors with heavier tails than a Gaussian.

    Parameters
    ----------
    df : float
        Degrees of freedom, above 2. The sd is ``scale * sqrt(df / (df - 2))``.
    covariance : {"diagonal", "full"}
        A product of t's, or the multivariate t whose coordinates share one chi-square.
    """

    df: float
    covariance_kind: str = "diagonal"

    def __init__(self, df: float, covariance: str = "diagonal") -> None:
        validation.positive_number(df, "df")
        validation.one_of(covariance, ("diagonal", "full"), "covariance")
        object.__setattr__(self, "df", float(df))
        object.__setattr__(self, "covariance_kind", covariance)
        _ = self.base  # refuses df <= 2

    @property
    def scale(self) -> Scale:
        """Diagonal or lower triangular."""
        return Diagonal() if self.covariance_kind == "diagonal" else LowerTriangular()

    @property
    def base(self) -> Base:
        """Independent t's, or the multivariate t."""
        shape = StudentTBase if self.covariance_kind == "diagonal" else MultivariateTBase
        return shape(self.df)


@dataclass(frozen=True)
class LocationScale(Family):
    """Any base noise with a diagonal or lower-triangular R.

    Examples
    --------
    >>> from curvi.families import Laplace, LocationScale
    >>> family = LocationScale(Laplace())
    >>> family.num_noise(3)
    3
    """

    noise: Base
    structure: str = "diagonal"

    def __post_init__(self) -> None:
        """Refuse an unknown structure."""
        validation.one_of(self.structure, ("diagonal", "full"), "structure")

    @property
    def scale(self) -> Scale:
        """Diagonal or lower triangular."""
        return Diagonal() if self.structure == "diagonal" else LowerTriangular()

    @property
    def base(self) -> Base:
        """The base given."""
        return self.noise
