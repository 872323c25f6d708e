r"""Draws of the base noise, and the plan of which to use.

============  ======================================================  =====================
kind          what holds for the M draws                              needs
============  ======================================================  =====================
iid           independent; every estimator unbiased                   M >= 1
antithetic    come in pairs e, -e: odd moments are exact              M even
normalised    each coordinate has mean 0 and the base's variance      M >= 2
whitened      mean 0 and second moment exactly variance * I           M >= noise dimension + 1
sobol         scrambled low-discrepancy points                        fixed draws only
============  ======================================================  =====================

Fixed draws turn the bound into a deterministic function that can be minimised to convergence;
the error that remains is that of the draws. Normalised draws make it about ten times smaller
than iid draws on a near-Gaussian posterior, at no cost, because the quadratic part of the
integrand is then integrated exactly. They are therefore the default. All but iid and
antithetic draws have a bias of order 1/M on integrands that are not quadratic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.memory import require_draws
from curvi._core.threads import one_blas_thread
from curvi._core.trees import on_device
from curvi.families import Base, Family, Normal

KINDS = ("iid", "antithetic", "normalised", "whitened", "sobol")
AnyArray = TypeVar("AnyArray", Array, np.ndarray)
_TINY = float(np.finfo(np.float64).eps)  # keeps quantiles finite
_LARGEST_SOBOL = 21_201  # SciPy's table of direction numbers


@dataclass(frozen=True)
class Draws:
    """A plan of draws: how many, of which kind, fixed or fresh, shared or one set per row.

    Parameters
    ----------
    kind : str
        One of ``iid``, ``antithetic``, ``normalised``, ``whitened``, ``sobol``.
    num_draws : int
        M, the number of draws.
    fresh : bool
        New draws at every step instead of one set for the whole fit.
    per_row : bool
        M draws for each row of a batch, as in Algorithm 1 of the paper, instead of M draws
        shared by all its rows.

    Raises
    ------
    InputError
        For an unknown kind, an odd number of antithetic draws, a single normalised draw, or
        Sobol draws that are fresh or one set per row.
    """

    kind: str = "normalised"
    num_draws: int = 32
    fresh: bool = False
    per_row: bool = False

    def __post_init__(self) -> None:
        """Validate the combination of kind, number and flags."""
        validation.one_of(self.kind, KINDS, "kind")
        validation.positive_integer(self.num_draws, "num_draws")
        if self.kind == "antithetic" and self.num_draws % 2:
            raise InputError(f"num_draws is {self.num_draws}; antithetic draws come in pairs")
        if self.kind == "normalised" and self.num_draws < 2:
            raise InputError("num_draws is 1; a single draw cannot be normalised, use kind='iid'")
        if self.kind == "sobol" and (self.fresh or self.per_row):
            raise InputError(
                "sobol draws are made once on the host; use them fixed and shared, "
                "or choose kind='normalised' for fresh draws"
            )


def sample_draws(
    key: PRNGKeyArray,
    num_draws: int,
    dimension: int,
    *,
    kind: str = "normalised",
    base: Base | None = None,
    dtype: Any = None,
) -> Float[Array, "draws dimension"]:
    """Make M draws of a base distribution.

    All kinds but ``sobol`` run on device and may be called inside jit.

    Parameters
    ----------
    key : key
        All randomness follows from it.
    num_draws, dimension : int
        M, and the number of coordinates of a draw.
    kind : {"iid", "antithetic", "normalised", "whitened", "sobol"}
        What holds for the draws together, see :class:`Draws`.
    base : Base, optional
        Distribution of a draw; standard normal by default.
    dtype : dtype, optional
        Precision of the draws; JAX's default float by default.

    Returns
    -------
    array, shape (num_draws, dimension)
        The draws, one per row.

    Raises
    ------
    InputError
        If that many draws of the kind cannot be made: antithetic ones are even in number,
        normalised ones at least 2, whitened ones at least ``dimension + 1``.

    Examples
    --------
    >>> import jax
    >>> draws = sample_draws(jax.random.key(0), 8, 3, kind="normalised")
    >>> bool(abs(draws.mean()) < 1e-6), draws.shape
    (True, (8, 3))
    """
    base = Normal() if base is None else base
    dtype = jnp.zeros(()).dtype if dtype is None else dtype
    Draws(kind, num_draws)
    require_draws(num_draws, dimension)
    if kind == "sobol":
        return fixed_draws(key, Draws(kind, num_draws), dimension, base, dtype)
    if kind == "antithetic":
        half = base.sample(key, (num_draws // 2, dimension), dtype)
        return jnp.concatenate([half, -half])
    draws = base.sample(key, (num_draws, dimension), dtype)
    if kind == "normalised":
        return normalise(draws, base.variance)
    if kind == "whitened":
        return whiten(draws, base.variance)
    return draws


def host_generator(key: PRNGKeyArray, *stream: int) -> np.random.Generator:
    """NumPy's generator for a key and the numbers of a stream, without compiling anything.

    Different streams of a key are independent, as ``jax.random.fold_in`` would make them.
    """
    entropy = np.asarray(jax.random.key_data(key), np.uint32).ravel().tolist()
    return np.random.default_rng([*entropy, *stream])


def fixed_draws(
    key: PRNGKeyArray,
    plan: Draws,
    dimension: int,
    base: Base,
    dtype: Any,
    *,
    stream: tuple[int, ...] = (),
) -> Float[Array, "draws dimension"]:
    """Make the draws of a whole fit on the host, in double precision, then round them once.

    Nothing is compiled for them: JAX's samplers take longer to compile than a small fit to run.

    Parameters
    ----------
    key : key
        Seeds a NumPy generator; the numbers differ from those of :func:`sample_draws`.
    plan : Draws
        Kind and number of draws.
    dimension, base : int, Base
        Number of coordinates of a draw, and its distribution.
    dtype : dtype
        Precision to round to.
    stream : tuple of int
        Different streams of a key are independent.

    Returns
    -------
    array, shape (plan.num_draws, dimension)
        The draws, one per row.

    Raises
    ------
    InputError
        If there are too few draws to whiten, or too many dimensions for Sobol points (21,201).
    """
    rng, count = host_generator(key, *stream), plan.num_draws
    require_draws(count, dimension)
    if plan.kind == "sobol":
        draws = _sobol(rng, count, dimension, base)
    elif plan.kind == "antithetic":
        half = host_sample(rng, count // 2, dimension, base)
        draws = np.concatenate([half, -half])
    else:
        draws = host_sample(rng, count, dimension, base)
    if plan.kind in ("normalised", "whitened"):
        draws = (normalise if plan.kind == "normalised" else whiten)(draws, base.variance)
    return on_device(draws, dtype)


def host_sample(rng: np.random.Generator, count: int, dimension: int, base: Base) -> np.ndarray:
    """Independent draws by inverse distribution functions, in double precision.

    Parameters
    ----------
    rng : numpy Generator
        Source of uniform numbers; it is advanced.
    count, dimension : int
        Number of draws, and of their coordinates.
    base : Base
        Distribution of a draw.

    Returns
    -------
    float64 array, shape (count, dimension)
        The draws, one per row.
    """
    require_draws(count, dimension)
    uniform = rng.random((count, base.num_uniforms(dimension)))
    return base.from_uniform(np.clip(uniform, _TINY, 1 - _TINY))


def normalise(draws: AnyArray, variance: float = 1.0) -> AnyArray:
    """Centre each coordinate and scale it to the given variance over the draws.

    Parameters
    ----------
    draws : array, shape (M, dimension)
        At least two draws, of NumPy or JAX.
    variance : float
        Second moment of every coordinate afterwards.

    Returns
    -------
    array, shape (M, dimension)
        The normalised draws, of the type of ``draws``; NaN in a coordinate that does not vary.
    """
    xp: Any = jnp if isinstance(draws, jax.Array) else np
    centred = draws - xp.mean(draws, axis=0, keepdims=True)
    spread = xp.sqrt(xp.mean(centred**2, axis=0, keepdims=True) / variance)
    return centred / spread


def whiten(draws: AnyArray, variance: float = 1.0) -> AnyArray:
    """Make the sample mean 0 and the sample second moment ``variance * I``.

    The thin QR factor of the centred draws, with signs chosen so that the triangular factor has
    a positive diagonal: this is whitening by the Cholesky factor of the sample covariance, but
    stays orthogonal to rounding however few draws there are.

    Parameters
    ----------
    draws : array, shape (M, dimension)
        At least ``dimension + 1`` draws, of NumPy or JAX.
    variance : float
        Second moment of every coordinate afterwards.

    Returns
    -------
    array, shape (M, dimension)
        The whitened draws, of the type of ``draws``.

    Raises
    ------
    InputError
        If there are fewer than ``dimension + 1`` draws.
    """
    num_draws, dimension = draws.shape
    if num_draws < dimension + 1:
        raise InputError(
            f"num_draws is {num_draws}; whitened draws in {dimension} dimension(s) need at "
            f"least {dimension + 1}, or use kind='normalised'"
        )
    xp: Any = jnp if isinstance(draws, jax.Array) else np
    centred = draws - xp.mean(draws, axis=0, keepdims=True)
    with one_blas_thread():
        orthogonal, triangular = xp.linalg.qr(centred)
    signs = xp.where(xp.diagonal(triangular) < 0, -1, 1).astype(draws.dtype)
    white = orthogonal * signs[None, :]
    # QR is orthogonal to rounding in the span of the centred draws: centre the last digit, too.
    white = white - xp.mean(white, axis=0, keepdims=True)
    return white * (num_draws * variance) ** 0.5


def _sobol(rng: np.random.Generator, num_draws: int, dimension: int, base: Base) -> np.ndarray:
    from scipy.stats import qmc

    width = base.num_uniforms(dimension)
    if width > _LARGEST_SOBOL:
        raise InputError(
            f"sobol draws reach {_LARGEST_SOBOL} dimensions and {width} are needed; "
            "use kind='normalised'"
        )
    engine = qmc.Sobol(width, scramble=True, rng=rng)
    # A power of two is drawn and cut, because the balance of the points holds for those.
    count = 1 << (num_draws - 1).bit_length()
    uniform = engine.random(count)[:num_draws]
    return base.from_uniform(np.clip(uniform, _TINY, 1 - _TINY))


def plan_draws(
    family: Family, dimension: int, *, draws: str | Draws = "auto", num_draws: int | None = None
) -> Draws:
    """Choose the draws for a family, or validate the ones asked for.

    ``auto`` is whitened where that makes every quadratic target exact and fits (full rank, and
    any family whose noise has at most 255 coordinates), normalised otherwise. Full rank beyond
    1,000 dimensions gets fresh draws at every step, because d + 1 fixed ones no longer fit.

    Parameters
    ----------
    family : Family
        The variational family.
    dimension : int
        Number of unconstrained coordinates.
    draws : str or Draws
        ``"auto"``, a kind of draws, or a complete plan.
    num_draws : int, optional
        Number of draws, also in place of that of a plan; chosen for the family by default.

    Returns
    -------
    Draws
        A plan that the family can be fitted with.

    Raises
    ------
    InputError
        If fixed draws are too few for the family: the ELBO would be unbounded along the
        directions that no draw reaches. Also for an unknown kind, a number of draws that is not
        a positive integer, or too few draws to whiten.
    """
    if num_draws is not None:
        validation.positive_integer(num_draws, "num_draws")
    if isinstance(draws, Draws):
        plan = draws if num_draws is None else replace(draws, num_draws=num_draws)
    elif draws == "auto":
        plan = _automatic(family, dimension, num_draws)
    else:
        validation.one_of(draws, KINDS, "draws")
        count = _default_count(family, dimension, draws) if num_draws is None else num_draws
        plan = Draws(draws, count)
    _refuse_too_few(plan, family, dimension)
    require_draws(plan.num_draws, family.num_noise(dimension))
    return plan


def _default_count(
    family: Family, dimension: int, kind: str, *, usual: int = 32, dense: int = 128
) -> int:
    """Draws where none are asked for; on fewer ``dense`` ones sds are off by 6 % and more."""
    needed = _fewest(family, dimension, kind)
    if kind == "whitened":
        needed = max(needed, family.num_noise(dimension) + 1)
    needed = max(dense if family.min_fixed_draws(dimension) > dimension else usual, needed)
    return needed + needed % 2


def _fewest(family: Family, dimension: int, kind: str) -> int:
    """Fewest fixed draws of a kind; a pair e, -e spans one direction, and is centred already."""
    needed = family.min_fixed_draws(dimension)
    return 2 * (needed - 1) if kind == "antithetic" else needed


def _automatic(
    family: Family, dimension: int, num_draws: int | None, *, largest_whitened: int = 1000,
    worth_whitening: int = 256,
) -> Draws:  # fmt: skip
    """Whitened draws where they fit (dimension) and beat 32 normalised ones (number of draws)."""
    whitened_count = family.num_noise(dimension) + 1
    dense = family.min_fixed_draws(dimension) > dimension
    if dense and dimension > largest_whitened:
        return Draws("antithetic" if (num_draws or 2) % 2 == 0 else "iid", num_draws or 32, True)
    kind = "whitened" if dense or whitened_count <= (num_draws or worth_whitening) else "normalised"
    count = _default_count(family, dimension, kind) if num_draws is None else num_draws
    if count == 1:
        return Draws("iid", 1, fresh=True)  # one draw says nothing when fixed
    return Draws(kind, count)


def _refuse_too_few(plan: Draws, family: Family, dimension: int) -> None:
    needed = _fewest(family, dimension, plan.kind)
    if not plan.fresh and plan.num_draws < needed:
        raise InputError(
            f"{plan.num_draws} fixed draw(s) cannot hold {type(family).__name__} in {dimension} "
            f"dimension(s): the bound is unbounded; use num_draws >= {needed}, "
            "Draws(..., fresh=True), or MeanField()"
        )
    if plan.kind == "whitened" and plan.num_draws < family.num_noise(dimension) + 1:
        raise InputError(
            f"whitened draws for {type(family).__name__} in {dimension} dimension(s) need "
            f"num_draws >= {family.num_noise(dimension) + 1}, not {plan.num_draws}"
        )
