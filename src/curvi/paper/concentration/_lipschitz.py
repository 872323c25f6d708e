r"""Lipschitz constants of :math:`\epsilon \mapsto f(\mu + R\epsilon)` (Lemma 4 and beyond).

A constant returned as a number is an upper bound, proved for every :math:`\epsilon`. A constant
measured from gradients at draws is a :class:`LipschitzEstimate`, a type of its own that the
inequalities do not accept: the steepest point seen need not be the steepest point there is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.likelihoods import PIXELS

# The steepest slope of each activation: the constants of Lemma 4, and of others.
ACTIVATION_SLOPES = {
    "sigmoid": 0.25,
    "tanh": 1.0,
    "softplus": 1.0,
    "relu": 1.0,
    "elu": 1.0,
    "silu": 1.1,  # 1.0998...
    "gelu": 1.13,  # 1.1289...
    "identity": 1.0,
    "exp": math.inf,
}


@dataclass(frozen=True)
class LipschitzEstimate:
    """The largest gradient norm over some draws: a lower bound of the constant, not an upper.

    Attributes
    ----------
    value : float
        The largest gradient norm.
    num_draws : int
        The number of draws over which it was taken.
    """

    value: float
    num_draws: int

    def __str__(self) -> str:
        return f"at least {self.value:.4g} (steepest of {self.num_draws} draws; not an upper bound)"


def unit_lipschitz(
    weights: Any, scale: Any, *, activation: str = "sigmoid"
) -> Float[np.ndarray, " units"]:
    r"""Lemma 4, unit by unit: :math:`c\,\|W_{i,} R\|_2` with c the steepest slope of g.

    ``scale`` is R, a matrix or, for a diagonal R, the vector of sds. The covariance is
    :math:`R R^\top`.

    Parameters
    ----------
    weights : array of shape (units, inputs)
        The finite weight matrix W.
    scale : array
        R as a matrix or, if it is diagonal, the vector of sds.
    activation : str
        A key of `ACTIVATION_SLOPES`.

    Returns
    -------
    array of shape (units,)
        One constant per unit.

    Examples
    --------
    >>> unit_lipschitz([[3.0, 4.0]], [1.0, 1.0], activation="sigmoid")
    array([1.25])
    """
    product = _scaled(_matrix(weights, "weights"), scale)
    slope = _slope(activation)
    return np.asarray([_times(slope, norm) for norm in np.linalg.norm(product, axis=1)])


def layer_lipschitz(weights: Any, scale: Any = None, *, activation: str = "tanh") -> float:
    r"""A layer as a whole: :math:`c\,\|W R\|_2`, the spectral norm.

    Parameters
    ----------
    weights : array of shape (units, inputs)
        The finite weight matrix W.
    scale : array
        R of the first layer, as a matrix or, if it is diagonal, the vector of sds.
    activation : str
        A key of `ACTIVATION_SLOPES`.

    Returns
    -------
    float
        The constant of the layer.
    """
    matrix = _matrix(weights, "weights")
    product = matrix if scale is None else _scaled(matrix, scale)
    return _times(_slope(activation), float(np.linalg.norm(product, 2)))


def network_lipschitz(
    layers: Sequence[Any],
    scale: Any,
    *,
    activation: str = "tanh",
    output: str = "identity",
) -> float:
    r"""A network of :math:`\epsilon`: the product of its layers' constants.

    ``layers`` are weight matrices (outputs, inputs), the first of which reads
    :math:`z = \mu + R\epsilon`.

    Parameters
    ----------
    layers : sequence of arrays
        Weight matrices, of shape (outputs, inputs) each.
    scale : array
        R as a matrix or, if it is diagonal, the vector of sds.
    activation, output : str
        Keys of `ACTIVATION_SLOPES`: of the hidden layers, and of the last.

    Returns
    -------
    float
        The constant of the network, infinite where an activation has no steepest slope.

    Raises
    ------
    InputError
        If there is no layer, or layers do not fit together.
    """
    if len(layers) == 0:
        raise InputError("layers is empty; a network has at least one weight matrix")
    _require_chain([_matrix(weights, "weights") for weights in layers])
    total = 1.0
    for depth, weights in enumerate(layers):
        last = depth == len(layers) - 1
        here = layer_lipschitz(
            weights, scale if depth == 0 else None, activation=output if last else activation
        )
        total = _times(total, here)
    return total


def reconstruction_lipschitz(
    layers: Sequence[Any],
    images: Any,
    *,
    scale: Any = None,
    sds: Any = None,
    activation: str = "tanh",
    likelihood: str = "bernoulli",
) -> Float[np.ndarray, " rows"]:
    r"""The reconstruction term :math:`\log p(x_i \mid \mu_i + R_i\epsilon)` of each row.

    For Bernoulli pixels the slope in the logits is :math:`x - p`, of norm at most
    :math:`\|\max(x, 1 - x)\|_2`, which multiplies the constant of the network up to its logits.
    For a Gaussian likelihood, a squared error of an unbounded decoder, the slope has no bound
    and the result is infinity: Theorem 2 promises nothing there.

    Give ``sds``, (rows, latent), one diagonal R per row, or ``scale``, one R for all rows.

    Parameters
    ----------
    layers : sequence of arrays
        Weight matrices of the decoder, of shape (outputs, inputs) each.
    images : array of shape (rows, pixels)
        For Bernoulli pixels in [0, 1].
    scale, sds : array
        One R for all rows, or the sds of shape (rows, latent) of one diagonal R per row.
    activation : str
        Activation of the hidden layers, a key of `ACTIVATION_SLOPES`.
    likelihood : {"bernoulli", "gaussian"}

    Returns
    -------
    array of shape (rows,)
        One constant per row.
    """
    validation.one_of(likelihood, tuple(PIXELS), "likelihood")
    pixels = np.atleast_2d(np.asarray(images, np.float64))
    kind = PIXELS[likelihood]()
    if kind.outside(pixels).any():
        raise InputError("images must lie in [0, 1] for Bernoulli pixels")
    reach = kind.steepest(pixels)
    if np.isinf(reach).any():
        return reach
    if len(layers) == 0:
        raise InputError("layers is empty; a network has at least one weight matrix")
    matrices = [_matrix(weights, "weights") for weights in layers]
    _require_chain(matrices)
    first = matrices[0]
    if matrices[-1].shape[0] != pixels.shape[1]:
        raise InputError(
            f"the last layer has {matrices[-1].shape[0]} outputs but images have "
            f"{pixels.shape[1]} pixels; give the layers of this decoder, of shape (outputs, inputs)"
        )
    if (scale is None) == (sds is None):
        raise InputError("give either scale, one R for all rows, or sds, one row of sds per image")
    if sds is None:
        inner = np.full(pixels.shape[0], np.linalg.norm(_scaled(first, scale), 2))
    else:
        rows = _matrix(sds, "sds")
        if rows.shape != (pixels.shape[0], first.shape[1]):
            raise InputError(f"sds has shape {rows.shape}; it must be (images, latent)")
        # |W R_i| <= |W| max_j R_ij: one singular value for all rows.
        inner = np.linalg.norm(first, 2) * np.max(np.abs(rows), axis=1)
    rest = 1.0
    if len(layers) > 1:
        inputs = _matrix(layers[1], "weights").shape[1]
        beyond = network_lipschitz(layers[1:], np.ones(inputs), activation=activation)
        rest = _times(_slope(activation), beyond)
    return np.asarray([_times(_times(a, b), rest) for a, b in zip(reach, inner, strict=True)])


def logistic_row_lipschitz(X: Any, scale: Any) -> Float[np.ndarray, " rows"]:
    r"""The exact constant of each row of a logistic likelihood: :math:`\|x_i^\top R\|_2`.

    The slope of :math:`\log\sigma` comes as close to one as one likes.

    Parameters
    ----------
    X : array of shape (rows, features)
        The finite design matrix, with the rows x_i.
    scale : array
        R as a matrix or, if it is diagonal, the vector of sds.

    Returns
    -------
    array of shape (rows,)
        One constant per row.

    Raises
    ------
    InputError
        If ``X`` or ``scale`` is not finite, or their shapes do not fit together.
    """
    return unit_lipschitz(X, scale, activation="softplus")


def logistic_lipschitz(X: Any, scale: Any, weight: Any = None) -> float:
    r"""A bound for the whole log likelihood :math:`\sum_i w_i \log\sigma(y_i x_i^\top z)`.

    Its gradient is :math:`R^\top X^\top s` with :math:`|s_i| \le w_i`, so its norm is at most the
    smaller of :math:`\sum_i w_i \|x_i^\top R\|` and :math:`\|w\|_2\,\|X R\|_2`.

    Parameters
    ----------
    X : array of shape (rows, features)
        The finite design matrix, with the rows x_i.
    scale : array
        R as a matrix or, if it is diagonal, the vector of sds.
    weight : array of shape (rows,), optional
        Weights of the rows, none of them negative; one by default.

    Returns
    -------
    float
        The constant of the log likelihood.

    Raises
    ------
    InputError
        If ``X`` or ``scale`` is not finite, or their shapes do not fit together; if ``weight``
        does not hold one number per row, or one is negative.
    """
    product = _scaled(_matrix(X, "X"), scale)
    weights = np.ones(product.shape[0]) if weight is None else np.asarray(weight, np.float64)
    if weights.shape != product.shape[:1] or not np.all(weights >= 0):
        raise InputError("weight must hold one number per row, none of them negative")
    rows = np.linalg.norm(product, axis=1)
    return float(min(weights @ rows, np.linalg.norm(weights) * np.linalg.norm(product, 2)))


def estimate_lipschitz(
    fn: Callable[[Array], Array], noise: Float[Array, "draws dimension"]
) -> LipschitzEstimate:
    """The steepest gradient of ``fn(noise)`` over the given draws.

    Parameters
    ----------
    fn : callable
        One value per draw, differentiable.
    noise : array, (draws, dimension)
        Draws of a standard Gaussian.

    Returns
    -------
    LipschitzEstimate
        A lower bound of the constant, which the inequalities do not accept.

    Raises
    ------
    InputError
        A gradient is not finite.
    """
    norms = jnp.linalg.norm(jax.vmap(jax.grad(fn))(noise), axis=1)
    value = float(jnp.max(norms))
    if not math.isfinite(value):
        raise InputError("a gradient is not finite at one of the draws; fn must be differentiable")
    return LipschitzEstimate(value, int(noise.shape[0]))


def _slope(activation: str) -> float:
    validation.one_of(activation, tuple(ACTIVATION_SLOPES), "activation")
    return ACTIVATION_SLOPES[activation]


def _times(left: float, right: float) -> float:
    """A product in which zero wins over infinity: a constant function stays constant."""
    return 0.0 if 0.0 in (left, right) else left * right


def _matrix(values: Any, name: str) -> np.ndarray:
    matrix = np.asarray(values, np.float64)
    if matrix.ndim != 2 or not np.all(np.isfinite(matrix)):
        raise InputError(f"{name} must be a finite matrix; its shape is {matrix.shape}")
    return matrix


def _require_chain(matrices: list[np.ndarray]) -> None:
    """Raise InputError unless every layer reads as many inputs as the one before has outputs."""
    for depth, (before, after) in enumerate(itertools.pairwise(matrices)):
        if before.shape[0] != after.shape[1]:
            raise InputError(
                f"layer {depth} has {before.shape[0]} outputs but layer {depth + 1} reads "
                f"{after.shape[1]} inputs; give weights of shape (outputs, inputs) in order"
            )


def _scaled(matrix: np.ndarray, scale: Any) -> np.ndarray:
    """``W R`` for a matrix R, or for the vector of its diagonal."""
    factor = np.asarray(scale, np.float64)
    if not np.all(np.isfinite(factor)) or factor.ndim not in (1, 2):
        raise InputError("scale must be a finite vector of sds or a finite matrix R")
    if factor.shape[0] != matrix.shape[1]:
        raise InputError(
            f"scale has {factor.shape[0]} rows but {matrix.shape[1]} inputs are weighted"
        )
    return matrix * factor if factor.ndim == 1 else matrix @ factor
