"""Location-scale families q(z): z = mu + R epsilon, any structure of R with any base noise."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from curvi._core import trees, validation
from curvi._core.compilation import compiled
from curvi._core.memory import require_draws, require_matrix, require_memory
from curvi.families._bases import Base, MultivariateTBase, Normal, StudentTBase
from curvi.families._scales import (
    Diagonal,
    DiagonalPlusLowRank,
    LowerTriangular,
    Matrix,
    Scale,
    Vector,
)
from curvi.linalg import FunctionMetric, Metric
from curvi.report import notebook_html

_STRUCTURES: dict[str, Scale] = {"diagonal": Diagonal(), "full": LowerTriangular()}


class Params(NamedTuple):
    """Variational parameters: the mean, and whatever describes R.

    Attributes
    ----------
    mean : array, shape (dimension,)
        mu, in flat, unconstrained coordinates.
    scale_params : pytree
        Parameters of R, in the parameterisation of ``family.scale``.
    """

    mean: Vector
    scale_params: Any


class Family(abc.ABC):
    """A distribution q(z): a structure of R (``scale``) and a noise distribution (``base``).

    A family has no state: parameters go in, numbers come out, and everything can be jitted,
    differentiated and vmapped.
    """

    def _repr_html_(self) -> str:
        """The family and what it is, for a notebook."""
        what = (type(self).__doc__ or "").strip().partition("\n")[0].rstrip(".")
        return notebook_html(repr(self), {"q(z)": what} if what else {})

    @property
    @abc.abstractmethod
    def scale(self) -> Scale:
        """The structure of R."""

    @property
    def base(self) -> Base:
        """The distribution of epsilon (default: Gaussian)."""
        return Normal()

    def init(self, position: Vector, sd: float | Float[Array, ""] | Vector = 1.0) -> Params:
        """Parameters whose mean is the position itself and whose sds are ``sd``.

        Parameters
        ----------
        position : array, shape (dimension,)
            The mean.
        sd : float or array
            Marginal standard deviations, one for all coordinates or one each.

        Returns
        -------
        Params
            Variational parameters in the precision of the position.

        Raises
        ------
        MemoryBudgetError
            If the parameters would not fit into the memory budget.
        """
        self.require_memory(position.shape[0], position.dtype)
        width = jnp.broadcast_to(jnp.asarray(sd, position.dtype), position.shape)
        return Params(position, self.scale.init(width / self.base.variance**0.5))

    def require_memory(self, dimension: int, dtype: Any, copies: int = 1) -> None:
        """Raise MemoryBudgetError where ``copies`` of the parameters would not fit.

        Parameters
        ----------
        dimension, dtype : int, dtype
            Number of coordinates, and the precision.
        copies : int
            Arrays of the size of the parameters that exist at once.

        Raises
        ------
        MemoryBudgetError
            Before anything is allocated.
        """
        sds = jax.ShapeDtypeStruct((dimension,), dtype)
        numbers = dimension + trees.size(jax.eval_shape(self.scale.init, sds))
        require_memory(
            copies * numbers * jnp.dtype(dtype).itemsize,
            f"{self} in {dimension} dimensions ({copies} x {numbers} numbers)",
            "use fewer coordinates" if self.scale.is_diagonal else "use MeanField() or LowRank(8)",
        )

    def transform(self, params: Params, noise: Float[Array, " noise"]) -> Vector:
        """``z = mu + R epsilon``."""
        return params.mean + self.scale.apply(params.scale_params, noise)

    def sample(
        self, params: Params, key: PRNGKeyArray, num_draws: int
    ) -> Float[Array, "draws dimension"]:
        """Independent draws of z.

        Parameters
        ----------
        params : Params
            Variational parameters.
        key : key
            All randomness follows from it.
        num_draws : int
            Number of draws.

        Returns
        -------
        array, shape (num_draws, dimension)
            Flat, unconstrained positions.

        Raises
        ------
        MemoryBudgetError
            If they would not fit into the memory budget.
        """
        require_draws(num_draws, self.num_noise(params.mean.shape[0]))
        return self._sample(params, key, num_draws)

    @partial(compiled, static_argnames=("self", "num_draws"))
    def _sample(self, params: Params, key: PRNGKeyArray, num_draws: int) -> Array:
        shape = (num_draws, self.num_noise(params.mean.shape[0]))
        noise = self.base.sample(key, shape, params.mean.dtype)
        return jax.vmap(lambda epsilon: self.transform(params, epsilon))(noise)

    def entropy(self, params: Params) -> Float[Array, ""]:
        """``log |det R|`` plus the entropy of the base."""
        constant = self.base.entropy(params.mean.shape[0])
        return self.scale.log_det(params.scale_params) + constant

    def log_prob(self, params: Params, z: Vector) -> Float[Array, ""]:
        """``log q(z)``."""
        noise = self.scale.solve(params.scale_params, z - params.mean)
        return self.base.log_prob(noise) - self.scale.log_det(params.scale_params)

    def noise_log_prob(self, params: Params, noise: Float[Array, " noise"]) -> Float[Array, ""]:
        """``log q`` at the z that the noise is mapped to, without solving for the noise again."""
        if self.num_noise(params.mean.shape[0]) == params.mean.shape[0]:
            return self.base.log_prob(noise) - self.scale.log_det(params.scale_params)
        return self.log_prob(params, self.transform(params, noise))

    def on(self, position: Any) -> Family:
        """The family for a position: one that names leaves of it finds their coordinates."""
        return self

    def sd(self, params: Params) -> Vector:
        """Marginal standard deviations."""
        return jnp.sqrt(self.base.variance * self.scale.variance(params.scale_params))

    def covariance(self, params: Params) -> Matrix:
        """Dense covariance matrix; MemoryBudgetError where it would not fit."""
        require_matrix(params.mean.shape[0], params.mean.dtype)
        return self.base.variance * self.scale.covariance(params.scale_params)

    def num_noise(self, dimension: int) -> int:
        """Length of epsilon."""
        return self.scale.num_noise(dimension)

    def min_fixed_draws(self, dimension: int) -> int:
        """Fewest fixed draws for which the sampled ELBO has a maximum."""
        return self.scale.min_fixed_draws(dimension)

    def metric(self, params: Params) -> Metric:
        """Natural metric on tangents of the parameters, the preconditioner of Newton steps."""
        mean = self.scale.mean_metric(params.scale_params)
        scale = self.scale.scale_metric(params.scale_params)
        variance = self.base.variance
        return FunctionMetric(
            lambda t: Params(mean.apply(t.mean) / variance, scale.apply(t.scale_params)),
            lambda t: Params(mean.solve(t.mean) * variance, scale.solve(t.scale_params)),
        )

    def project(self, params: Params, tangent: Params) -> Params:
        """Remove directions in parameter space along which q does not change."""
        return Params(tangent.mean, self.scale.project(params.scale_params, tangent.scale_params))

    def to_raw(self, params: Params) -> Params:
        """The mean and the entries of R themselves."""
        return Params(params.mean, self.scale.to_raw(params.scale_params))

    def from_raw(self, raw: Params) -> Params:
        """Inverse of :meth:`to_raw`."""
        return Params(raw.mean, self.scale.from_raw(raw.scale_params))


@dataclass(frozen=True)
class MeanField(Family):
    """Independent Gaussian coordinates: R = diag(sigma).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> family = MeanField()
    >>> family.sd(family.init(jnp.zeros(2), 1.0)).tolist()
    [1.0, 1.0]
    """

    scale = Diagonal()


@dataclass(frozen=True)
class FullRank(Family):
    """A Gaussian with any covariance: R lower triangular with a positive diagonal.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> family = FullRank()
    >>> family.covariance(family.init(jnp.zeros(2), 1.0)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    scale = LowerTriangular()


@dataclass(frozen=True)
class LowRank(Family):
    """A Gaussian with covariance D^2 + U U', U of the given rank, in O(d rank) memory.

    Gaussian only: a sum of independent terms of another base is not of that base.

    Parameters
    ----------
    rank : int
        Number of columns of U, below the number of coordinates.

    Raises
    ------
    InputError
        If the rank is not a positive integer, or not below the dimension of the position that
        :meth:`init` is given.
    """

    rank: int

    def __post_init__(self) -> None:
        """Validate the rank."""
        validation.positive_integer(self.rank, "rank")

    @property
    def scale(self) -> Scale:
        """Diagonal plus low rank."""
        return DiagonalPlusLowRank(self.rank)


@dataclass(frozen=True)
class LocationScale(Family):
    """Any base noise with a diagonal or lower-triangular R.

    Parameters
    ----------
    noise : Base
        The distribution of epsilon.
    structure : {"diagonal", "full"}
        The structure of R.

    Raises
    ------
    InputError
        For another structure.

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
        """Validate the structure."""
        validation.one_of(self.structure, tuple(_STRUCTURES), "structure")

    @property
    def scale(self) -> Scale:
        """Diagonal or lower triangular."""
        return _STRUCTURES[self.structure]

    @property
    def base(self) -> Base:
        """The base given."""
        return self.noise


class StudentT(LocationScale):
    """Student t posteriors with heavier tails than a Gaussian.

    Parameters
    ----------
    df : float
        Degrees of freedom, above 2. The sd is ``scale * sqrt(df / (df - 2))``.
    covariance : {"diagonal", "full"}
        A product of t's, or the multivariate t whose coordinates share one chi-square.

    Raises
    ------
    InputError
        If ``df`` is not above 2, or for another covariance.

    Examples
    --------
    >>> StudentT(5.0, covariance="full")
    StudentT(df=5.0, covariance='full')
    """

    def __init__(self, df: float, covariance: str = "diagonal") -> None:
        validation.positive_number(df, "df")
        validation.one_of(covariance, tuple(_STRUCTURES), "covariance")
        noise = StudentTBase if covariance == "diagonal" else MultivariateTBase
        super().__init__(noise(float(df)), covariance)

    @property
    def df(self) -> float:
        """Degrees of freedom."""
        return float(self.noise.df)  # type: ignore[attr-defined]

    _stored: ClassVar[dict[str, Any]] = {"df": float, "covariance": str}

    def _state(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"df": self.df, "covariance": self.structure}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> StudentT:
        """The family with these arguments."""
        return cls(**state)

    def __repr__(self) -> str:
        return f"StudentT(df={self.df!r}, covariance={self.structure!r})"
