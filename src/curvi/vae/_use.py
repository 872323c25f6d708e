"""What can be done with a trained model: functions of :class:`~curvi.vae._training.Trained`.

Each is written for one block of rows, ``fn(objective, params, key, *rows, count)``, and
:func:`by_blocks` makes it ``fn(model, *rows, count)``. Rows are arrays of the model's dtype that
were validated before. Draws come from the model's seed: the same call gives the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from scipy import special

from curvi._core import validation
from curvi._core.compilation import compiled
from curvi._core.errors import InputError
from curvi._core.memory import require_memory
from curvi._core.trees import precision_of
from curvi.vae._objective import VAEObjective, kl_divergence, reparameterise
from curvi.vae._training import Trained

_ROWS = 500


def dtype_of(model: Trained) -> np.dtype:
    """Precision of the model."""
    return np.dtype(jax.tree.leaves(model.params)[0].dtype)


def by_blocks(*counts: str) -> Callable[[Callable[..., Array]], Callable[..., np.ndarray]]:
    """Compile a function of a block of rows and apply it to all rows of a model.

    The last block is padded, so that one shape is compiled. ``counts`` names the keyword arguments
    that are positive integers and static.
    """

    def decorate(fn: Callable[..., Array]) -> Callable[..., np.ndarray]:
        block_of = compiled(fn, static_argnums=0, static_argnames=counts)

        @wraps(fn)
        def applied(model: Trained, *arrays: np.ndarray, **options: int) -> np.ndarray:
            for name, value in options.items():
                validation.positive_integer(value, name)
            total = len(arrays[0])
            size = min(_ROWS, total)
            draws, width = options.get("num_draws", 1), arrays[0].itemsize
            remedy = "lower num_draws"
            require_memory(float(draws) * size * width, f"num_draws={draws} of {size} rows", remedy)
            pieces = []
            with precision_of(dtype_of(model)):
                params = jax.tree.map(jnp.asarray, model.params)
                key = jax.random.fold_in(jax.random.key(model.seed), 7)
                for number, first in enumerate(range(0, total, size)):
                    index = np.minimum(np.arange(first, first + size), total - 1)
                    block_key = jax.random.fold_in(key, number)
                    blocks = [array[index] for array in arrays]
                    found = block_of(model.objective, params, block_key, *blocks, **options)
                    pieces.append(np.asarray(found)[: total - first])
            return np.concatenate(pieces)

        return applied

    return decorate


@by_blocks()
def code_means(objective: VAEObjective, params: PyTree, key: Array, x: Array) -> Array:
    """Posterior means of the codes, (rows, latent)."""
    del key
    return objective.code(params, x)[0]


@by_blocks()
def mean_images(objective: VAEObjective, params: PyTree, key: Array, codes: Array) -> Array:
    """E[x | z] of codes, (rows, pixels)."""
    del key
    return objective.image(params, codes)


@by_blocks()
def drawn_images(objective: VAEObjective, params: PyTree, key: Array, codes: Array) -> Array:
    """Images of codes with pixels drawn from the likelihood."""
    return objective.likelihood.draw(key, objective.decoded(params, codes))


@by_blocks("num_draws")
def elbos(
    objective: VAEObjective, params: PyTree, key: Array, x: Array, *, num_draws: int
) -> Array:
    """The ELBO of every row, averaged over draws of its code."""
    code = objective.code(params, x)

    def fit(number: Array) -> Array:
        codes = _drawn(code, key, number)[1]
        return objective.likelihood.log_prob(objective.decoded(params, codes), x)

    return jnp.mean(jax.lax.map(fit, jnp.arange(num_draws)), axis=0) - kl_divergence(*code)


@by_blocks("num_draws")
def log_likelihoods(
    objective: VAEObjective, params: PyTree, key: Array, x: Array, *, num_draws: int
) -> Array:
    r"""Importance-weighted estimate of the log likelihood of every row.

    .. math:: \log \frac1S \sum_s \frac{p(x \mid z_s)\, p(z_s)}{q(z_s \mid x)}, \quad z_s \sim q
    """
    code = objective.code(params, x)

    def log_weight(number: Array) -> Array:
        noise, codes = _drawn(code, key, number)
        fit = objective.likelihood.log_prob(objective.decoded(params, codes), x)
        # log p(z) - log q(z | x); the constants of both densities cancel.
        return fit + 0.5 * jnp.sum(noise**2 + code[1] - codes**2, axis=-1)

    terms = jax.lax.map(log_weight, jnp.arange(num_draws))
    return jax.scipy.special.logsumexp(terms, axis=0) - math.log(num_draws)


@by_blocks("num_draws")
def denoised(
    objective: VAEObjective, params: PyTree, key: Array, x: Array, *, num_draws: int
) -> Array:
    """E[x | z] averaged over draws of the code."""
    code = objective.code(params, x)

    def add(number: Array, total: Array) -> Array:
        return total + objective.image(params, _drawn(code, key, number)[1])

    return jax.lax.fori_loop(0, num_draws, add, jnp.zeros_like(x)) / num_draws


@by_blocks("num_sweeps")
def imputed(
    objective: VAEObjective, params: PyTree, key: Array, x: Array, gaps: Array, *, num_sweeps: int
) -> Array:
    """Fill missing entries by a Markov chain: draw a code, replace what is missing by its mean.

    ``gaps`` marks what is missing. The first half of the sweeps forgets the start; the result is
    the mean over the rest.
    """

    def sweep(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        current, total = carry
        codes = _drawn(objective.code(params, current), key, number)[1]
        current = jnp.where(gaps, objective.image(params, codes), x)
        counted = (2 * number >= num_sweeps).astype(x.dtype)
        return current, total + counted * current

    # Start from the decoder's image of the prior mean: zeros would be far from any image.
    origin = objective.image(params, jnp.zeros_like(objective.code(params, x)[0]))
    start = jnp.where(gaps, origin, x), jnp.zeros_like(x)
    _, total = jax.lax.fori_loop(0, num_sweeps, sweep, start)
    return jnp.where(gaps, total / (num_sweeps - (num_sweeps + 1) // 2), x)


def code_grid(grid: int) -> np.ndarray:
    """Codes on a grid x grid net of the plane, row by row from the top, as (grid^2, 2).

    Both coordinates are normal quantiles of equally spaced points in the unit interval: every cell
    has the same prior probability.
    """
    marks = special.ndtri((np.arange(validation.positive_integer(grid, "grid")) + 0.5) / grid)
    first, second = np.meshgrid(marks, -marks)
    return np.stack([first.ravel(), second.ravel()], axis=1)


def square_shape(X: np.ndarray) -> tuple[int, int]:
    """Height and width of square images."""
    side = round(X.shape[-1] ** 0.5)
    if side * side != X.shape[-1]:
        raise InputError(
            f"images of {X.shape[-1]} pixels are not square; pass image_shape=(height, width)"
        )
    return side, side


def _drawn(code: tuple[Array, Array], key: Array, number: Array) -> tuple[Array, Array]:
    """Draw a code for every row: standard normal noise, and the codes it gives."""
    mean, log_variance = code
    noise = jax.random.normal(jax.random.fold_in(key, number), (1, *mean.shape), mean.dtype)
    return noise[0], reparameterise(mean, log_variance, noise)
