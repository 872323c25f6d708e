"""The built-in networks: multilayer perceptrons as pure functions of matrices.

Their objective shows its layers for Kronecker curvature. :class:`~curvi.solvers.KFAC` trains them
in principal coordinates of the images, in which the curvature factor of the first layer is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi.likelihoods import bounded
from curvi.solvers import Layer, Pass
from curvi.vae._objective import VAEObjective, reparameterise, split

_NAMES = ("tanh", "sigmoid", "softplus", "elu", "gelu", "silu", "relu")
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {n: getattr(jax.nn, n) for n in _NAMES}
Network = tuple[Float[Array, "_ _"], ...]


class VAEParams(NamedTuple):
    """Parameters of the built-in auto-encoder.

    Every layer is one matrix of shape (inputs + 1, outputs) whose last row is the bias.

    Attributes
    ----------
    encoder : tuple of matrices
        Hidden layers of the encoder.
    heads : matrix, (hidden + 1, 2 latent)
        Mean and log variance of the code, side by side.
    decoder : tuple of matrices
        Hidden layers of the decoder and its output layer.
    log_variance : matrix, (1, pixels), (1, 1) or (1, 0)
        Log variances of a Gaussian likelihood, per pixel or one, in units of the likelihood's
        scale; empty where nothing is learned.
    """

    encoder: Network
    heads: Float[Array, "_ _"]
    decoder: Network
    log_variance: Float[Array, "1 _"]


def initial_network(
    generator: np.random.Generator, sizes: Sequence[int], dtype: Any, scale: float | None = None
) -> Network:
    """Random weights and zero biases, on the host: the same numbers whatever the device."""
    layers = []
    for rows, columns in itertools.pairwise(sizes):
        sd = rows**-0.5 if scale is None else scale
        weights = sd * generator.standard_normal((rows, columns))
        layers.append(placed(np.concatenate([weights, np.zeros((1, columns))]), dtype))
    return tuple(layers)


def initial_params(
    generator: np.random.Generator,
    *,
    inputs: int,
    hidden: Sequence[int],
    latent: int,
    outputs: int | None = None,
    variances: int = 0,
    conditions: int = 0,
    scale: float | None = None,
    dtype: np.dtype | type = np.float32,
) -> VAEParams:
    """Random weights and zero biases of both networks.

    Parameters
    ----------
    generator : numpy Generator
        Source of the weights.
    inputs, hidden, latent, outputs : int or sequence of int
        Sizes of the layers; the decoder mirrors the encoder and has ``inputs`` outputs by default.
    variances : int
        Number of learned log variances.
    conditions : int
        Columns of a condition, which both networks read besides.
    scale : float, optional
        Sd of every weight (0.01 or 0.001 in the paper). By default 1/sqrt(inputs of the layer), so
        that signals keep their size at any width.
    dtype : dtype
        Precision of the parameters.

    Returns
    -------
    VAEParams
        Parameters for :class:`MLPObjective`; learned log variances start at zero.
    """
    sizes = [inputs + conditions, *hidden, 2 * latent]
    *encoder, heads = initial_network(generator, sizes, dtype, scale)
    sizes = [latent + conditions, *reversed(hidden), inputs if outputs is None else outputs]
    decoder = initial_network(generator, sizes, dtype, scale)
    return VAEParams(tuple(encoder), heads, decoder, placed(np.zeros((1, variances)), dtype))


def placed(array: np.ndarray, dtype: Any) -> Array:
    """On the device; ``jnp.asarray`` compiles a conversion for every shape."""
    moved: Array = jax.device_put(array.astype(jax.dtypes.canonicalize_dtype(dtype)))
    return moved


def with_output_bias(decoder: Network, bias: np.ndarray) -> Network:
    """The decoder with these biases of its output layer."""
    last = np.array(decoder[-1])
    last[-1] = bias
    return (*decoder[:-1], placed(last, last.dtype))


def with_ones(rows: Float[Array, "rows inputs"]) -> Float[Array, "rows inputs+1"]:
    """Rows with a last column of ones, which meets the bias."""
    return jnp.concatenate([rows, jnp.ones((rows.shape[0], 1), rows.dtype)], axis=1)


def affine(layer: Float[Array, "inputs+1 outputs"], rows: Float[Array, "rows inputs"]) -> Array:
    """``rows W + b``."""
    return rows @ layer[:-1] + layer[-1:]


def run_network(network: Network, rows: Array, activation: str) -> Array:
    """Outputs of a perceptron; the last layer is affine."""
    for layer in network[:-1]:
        rows = ACTIVATIONS[activation](affine(layer, rows))
    return affine(network[-1], rows)


def code_from(heads: Float[Array, "rows twice"]) -> tuple[Array, Array]:
    """Mean and bounded log variance of q(z | x), which the encoder returns side by side."""
    latent = heads.shape[1] // 2
    return heads[:, :latent], bounded(heads[:, latent:])


def decoder_weights(params: Any) -> PyTree:
    """What the L2 penalty acts on: the decoder's weights without the biases."""
    return [layer[:-1] for layer in params.decoder]


@dataclass(frozen=True)
class MLPObjective(VAEObjective):
    """``objective(params, batch, key)`` for :class:`VAEParams`: the negative ELBO per row.

    Parameters
    ----------
    encode, decode
        Not used: the networks are multilayer perceptrons. Leave them out.
    likelihood, num_draws, decoder_l2
        As for :class:`VAEObjective`.
    penalised : callable, optional
        Pytree of arrays under the L2 penalty; the weights of the decoder, without biases, by
        default.
    beta, importance_weighted, path_derivative, conditional, missing
        As for :class:`VAEObjective`; a condition is appended to what each network reads.
    activation : str
        Name of the nonlinearity of hidden layers.
    white : bool
        The encoder's rows end with the constant that meets the bias, and their columns are
        uncorrelated and scaled (see :func:`principal_rotation`).
    """

    encode: Callable[..., Any] | None = None  # type: ignore[assignment]
    decode: Callable[..., Any] | None = None  # type: ignore[assignment]
    penalised: Callable[[PyTree], PyTree] | None = decoder_weights
    activation: str = "tanh"
    white: bool = False

    @property
    def reads_nothing(self) -> bool:
        """Whether its fields say all: a function of the user's may read what they do not."""
        return self.penalised is decoder_weights

    @property
    def is_its_layers(self) -> bool:
        """Whether the penalty is that of the layers, so that they hold all of the curvature."""
        return self.penalised is decoder_weights

    def code(
        self, params: VAEParams, features: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        """Mean and bounded log variance of q(z | x)."""
        return code_from(self._encoded(params, self._read(features, condition), None)[0])

    def decoded(self, params: VAEParams, codes: Array, condition: Array | None = None) -> Any:
        """Outputs of the decoder."""
        return self._decoded(params, self._joined(codes, condition), None)[0]

    def _read(self, features: Array, condition: Array | None) -> Array:
        """What enters the encoder; principal coordinates hold the condition already."""
        return features if self.white else self._joined(self.filled(features), condition)

    def _joined(self, rows: Array, condition: Array | None) -> Array:
        extra = self._extra(condition)
        return jnp.concatenate([rows, *extra], axis=1) if extra else rows

    def tapped(self, params: VAEParams, taps: Any, batch: Any, key: PRNGKeyArray) -> Pass:
        """Forward pass; ``taps`` may be None."""
        rows, depth = split(batch), len(params.encoder) + 1
        first, second = (None, None) if taps is None else (taps[:depth], taps[depth:])
        heads, inputs = self._encoded(params, self._read(rows.features, rows.condition), first)
        mean, log_variance = code_from(heads)
        noise = self.noise(key, mean)
        codes = reparameterise(mean, log_variance, noise)
        condition = self.repeated_condition(rows)
        decoded, more = self._decoded(params, self._joined(codes, condition), second)
        return Pass(self.seen(mean, log_variance, noise, decoded, rows.x), (*inputs, *more))

    def _encoded(self, params: VAEParams, features: Array, taps: Any) -> tuple[Array, list[Array]]:
        """Both heads side by side, and the rows that entered each layer."""
        inputs = self._inputs(params.encoder, features if self.white else with_ones(features), taps)
        return _tap(inputs[-1] @ params.heads, taps, len(params.encoder)), inputs

    def _decoded(self, params: VAEParams, codes: Array, taps: Any) -> tuple[Any, list[Array]]:
        inputs = self._inputs(params.decoder[:-1], with_ones(codes), taps)
        last = len(params.decoder) - 1
        mean = _tap(inputs[-1] @ params.decoder[-1], taps, last)
        if self.likelihood.variances == 0:
            return mean, inputs
        ones = jnp.ones((mean.shape[0], 1), mean.dtype)
        spread = _tap(ones @ params.log_variance, taps, last + 1)
        return (mean, jnp.broadcast_to(spread, mean.shape)), [*inputs, ones]

    def _inputs(self, hidden: Network, rows: Array, taps: Any) -> list[Array]:
        """The rows, ones appended, that enter each hidden layer and the layer after them."""
        inputs = [rows]
        for index, layer in enumerate(hidden):
            sums = _tap(inputs[-1] @ layer, taps, index)
            inputs.append(with_ones(ACTIVATIONS[self.activation](sums)))
        return inputs

    def layers(self, params: VAEParams) -> tuple[Layer, ...]:
        """The pixel factor is diagonal: pixels are independent given the code."""
        encoder = [Layer(white_input=self.white and i == 0) for i in range(len(params.encoder))]
        decoder = [Layer(decay=self.decoder_l2)] * (len(params.decoder) - 1)
        pixels = Layer(diagonal_output=True, decay=self.decoder_l2)
        learned = [Layer(white_input=True, diagonal_output=True)] * (self.likelihood.variances != 0)
        return (*encoder, Layer(), *decoder, pixels, *learned)

    def matrices(self, params: VAEParams) -> tuple[Array, ...]:
        """Encoder, heads, decoder, and log variances where they are learned."""
        learned = (params.log_variance,) * (self.likelihood.variances != 0)
        return (*params.encoder, params.heads, *params.decoder, *learned)

    def assemble(self, params: VAEParams, matrices: tuple[Array, ...]) -> VAEParams:
        """Parameters like ``params`` with these matrices."""
        depth, end = len(params.encoder), len(params.encoder) + 1 + len(params.decoder)
        learned = matrices[end] if self.likelihood.variances != 0 else params.log_variance
        return VAEParams(
            tuple(matrices[:depth]), matrices[depth], tuple(matrices[depth + 1 : end]), learned
        )

    def tap_shapes(self, params: VAEParams, batch: Any) -> tuple[tuple[int, int], ...]:
        """(rows, outputs) of every layer; the decoder has M rows for each of the encoder's."""
        rows, depth = split(batch).x.shape[0], len(params.encoder) + 1
        return tuple(
            (rows if index < depth else rows * self.num_draws, matrix.shape[1])
            for index, matrix in enumerate(self.matrices(params))
        )


def _tap(rows: Array, taps: Any, index: int) -> Array:
    return rows if taps is None else rows + taps[index]


class Rotation(NamedTuple):
    """Principal coordinates of images, ``features = ((x - centre) V S, c)``.

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

    def features(self, X: np.ndarray, *, chunk: int = 4096) -> np.ndarray:
        """Rows in principal coordinates, the constant in the last column.

        ``chunk``: rows at once.
        """
        out = np.empty((len(X), self.map.shape[1] + 1), X.dtype)
        for first in range(0, len(X), chunk):  # a centred copy of everything is not needed
            part = slice(first, first + chunk)
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
        layer = placed(np.concatenate([weights, bias[None]]), params.encoder[0].dtype)
        return params._replace(encoder=(layer, *params.encoder[1:]))


def principal_rotation(
    X: np.ndarray, *, directions: int | None = 200, damping: float = 0.01, seed: int = 0,
    most_pixels: int = 1500, rows_of_covariance: int = 10_000, rows_of_gram: int = 2_000,
) -> Rotation:  # fmt: skip
    r"""Principal directions V of rows, scaled by :math:`S = (\Lambda + \rho \bar\lambda)^{-1/4}`.

    Images never change, so neither does the input factor of the first layer. In these coordinates
    a plain gradient step on the first layer is a step preconditioned by the -1/2 power of that
    factor, and fewer directions than pixels save most of that layer's time.

    At most ``directions`` are kept, at most the rank, and none at the level of rounding;
    ``directions=None`` sets no limit of its own. Beyond 1,500 pixels the directions are those of
    2,000 rows, so that there are fewer than that. Where the rank is below a limit, columns of zeros
    fill up: the folds of a table, whose ranks may differ, share what is compiled.

    ``most_pixels``: beyond, directions come from the Gram matrix of a subset of rows.
    ``rows_of_covariance``, ``rows_of_gram``: rows that the two matrices take.
    """
    limit = X.shape[1] if directions is None else directions
    rows = np.random.default_rng(seed).permutation(len(X))
    wide = X.shape[1] > most_pixels
    X = X[np.sort(rows[: rows_of_gram if wide else rows_of_covariance])]
    centre = X.mean(axis=0)
    centred = X - centre
    gram = wide or len(X) < X.shape[1]
    values, vectors = np.linalg.eigh(centred @ centred.T if gram else centred.T @ centred)
    values, vectors = values[::-1], vectors[:, ::-1]
    above_rounding = int(np.sum(values > values[0] * 100 * np.finfo(values.dtype).eps))
    kept = max(1, min(above_rounding, limit, len(X) - 1 if gram else X.shape[1]))
    vectors = vectors[:, :kept]
    if gram:
        vectors = centred.T @ (vectors / np.sqrt(values[:kept]))
    variances = values[:kept] / len(X)
    lift = damping * (variances.sum() + 1) / (kept + 1)
    scale = ((variances + lift) ** -0.25).astype(X.dtype)
    missing = 0 if directions is None else min(limit, X.shape[1]) - kept
    there, back = (np.pad(v, ((0, 0), (0, missing))) for v in (vectors * scale, vectors / scale))
    return Rotation(centre, there, back, float((1 + lift) ** -0.25))
