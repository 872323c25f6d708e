"""What can be done with a trained model: functions of its objective, parameters and seed.

Each is written for one block of rows, ``fn(objective, params, key, *rows, count)``, and
:func:`by_blocks` makes it ``fn(model, *rows, count)``. Rows are arrays of the model's dtype, or
pytrees of them, that were validated before. Draws come from the model's seed: the same call gives
the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from scipy import special

from curvi._core import validation
from curvi._core.compilation import SizedJit
from curvi._core.errors import InputError
from curvi._core.memory import require_memory
from curvi._core.trees import precision_of
from curvi.likelihoods import over_pixels
from curvi.vae._objective import (
    VAEObjective,
    kl_divergence,
    reparameterise,
    shaped_like,
    split,
)


def dtype_of(model: Any) -> np.dtype:
    """Precision of the model."""
    return np.dtype(jax.tree.leaves(model.params)[0].dtype)


def evaluation_work(params: PyTree, rows: int) -> float:
    """Work of code that passes rows through networks, by which it is compiled.

    A tenth of the products: they are done by the BLAS, whatever is made of the code around them.
    """
    return 0.1 * rows * sum(np.size(leaf) for leaf in jax.tree.leaves(params))


def _block_size(
    rows: int, work: float, *, few_rows: int = 64, cheap: float = 1e7, size: int = 512
) -> int:
    """Rows of a block, for work per row: a power of two, two of them where the rest is cheap.

    ``few_rows``: those of a block for fewer rows.
    ``cheap``: work that is not worth another shape.
    ``size``: rows of a block.
    """
    power = 2 ** (rows - 1).bit_length()
    if size * work <= cheap:
        return few_rows if rows <= few_rows else size
    return min(power, size)


def by_blocks(*counts: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function of a block of rows and apply it to all rows of a model.

    Blocks are padded, so that few shapes are compiled. ``counts`` names the keyword arguments that
    are positive integers and static.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        def of_block(
            objective: Any, params: Any, key: Any, number: Any, *rows: Any, **options: int
        ) -> Any:
            own = jax.random.fold_in(jax.random.fold_in(key, 7), number)
            return fn(objective, params, own, *rows, **options)

        block_of = SizedJit(wraps(fn)(of_block), static_argnames=("objective", *counts))

        @wraps(fn)
        def applied(model: Any, *arrays: Any, **options: int) -> Any:
            for name, value in options.items():
                validation.positive_integer(value, name)
            leaves = jax.tree.leaves(arrays)
            total = len(leaves[0])
            times = max(options.values(), default=1)
            size = _block_size(total, evaluation_work(model.params, times))
            draws, width = options.get("num_draws", 1), leaves[0].itemsize
            remedy = "lower num_draws"
            require_memory(float(draws) * size * width, f"num_draws={draws} of {size} rows", remedy)
            pieces = []
            with precision_of(dtype_of(model)):
                params, key = jax.device_put(model.params), jax.random.key(model.seed)
                work = evaluation_work(params, size * times)
                for number, first in enumerate(range(0, total, size)):
                    index = np.minimum(np.arange(first, first + size), total - 1)
                    blocks = jax.tree.map(partial(np.take, indices=index, axis=0), arrays)
                    found = block_of(
                        work, model.objective, params, key, np.int32(number), *blocks, **options
                    )
                    kept = total - first
                    pieces.append(jax.tree.map(lambda a, n=kept: np.asarray(a)[:n], found))
            return jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)

        return applied

    return decorate


@by_blocks()
def codes_of(objective: VAEObjective, params: PyTree, key: Array, rows: Any) -> tuple[Array, Array]:
    """Means and sds of q(z | x), each (rows, latent)."""
    del key
    rows = split(rows)
    mean, log_variance = objective.code(params, rows.features, rows.condition)
    return mean, jnp.exp(0.5 * log_variance)


def code_means(model: Any, rows: Any) -> np.ndarray:
    """Posterior means of the codes, (rows, latent)."""
    mean: np.ndarray = codes_of(model, rows)[0]
    return mean


@by_blocks()
def mean_images(
    objective: VAEObjective,
    params: PyTree,
    key: Array,
    codes: Array,
    condition: Any = None,
) -> Array:
    """E[x | z] of codes, (rows, pixels)."""
    del key
    return objective.image(params, codes, condition)


@by_blocks()
def drawn_images(
    objective: VAEObjective,
    params: PyTree,
    key: Array,
    codes: Array,
    condition: Any = None,
) -> Array:
    """Images of codes with pixels drawn from the likelihood."""
    return objective.likelihood.draw(key, objective.decoded(params, codes, condition))


@by_blocks("num_draws")
def elbos(
    objective: VAEObjective, params: PyTree, key: Array, rows: Any, *, num_draws: int
) -> Array:
    """The ELBO of every row, averaged over draws of its code."""
    rows = split(rows)
    code = objective.code(params, rows.features, rows.condition)

    def fit(number: Array) -> Array:
        decoded = objective.decoded(params, _drawn(code, key, number)[1], rows.condition)
        return objective.log_prob(decoded, rows.x)

    return jnp.mean(jax.lax.map(fit, jnp.arange(num_draws)), axis=0) - kl_divergence(*code)


@by_blocks("num_draws")
def log_likelihoods(
    objective: VAEObjective, params: PyTree, key: Array, rows: Any, *, num_draws: int
) -> Array:
    r"""Importance-weighted estimate of the log likelihood of every row.

    .. math:: \log \frac1S \sum_s \frac{p(x \mid z_s)\, p(z_s)}{q(z_s \mid x)}, \quad z_s \sim q
    """
    rows = split(rows)
    code = objective.code(params, rows.features, rows.condition)

    def log_weight(number: Array) -> Array:
        noise, codes = _drawn(code, key, number)
        fit = objective.log_prob(objective.decoded(params, codes, rows.condition), rows.x)
        # log p(z) - log q(z | x); the constants of both densities cancel.
        return fit + 0.5 * over_pixels(noise**2 + code[1] - codes**2)

    terms = jax.lax.map(log_weight, jnp.arange(num_draws))
    return jax.scipy.special.logsumexp(terms, axis=0) - math.log(num_draws)


@by_blocks("num_draws")
def denoised(
    objective: VAEObjective, params: PyTree, key: Array, rows: Any, *, num_draws: int
) -> Array:
    """E[x | z] averaged over draws of the code."""
    rows = split(rows)
    code = objective.code(params, rows.features, rows.condition)

    def image(number: Array) -> Array:
        codes = _drawn(code, key, number)[1]
        return shaped_like(objective.image(params, codes, rows.condition), rows.x)

    def add(number: Array, total: Array) -> Array:
        return total + image(number)

    return jax.lax.fori_loop(0, num_draws, add, jnp.zeros_like(rows.x)) / num_draws


@by_blocks("num_sweeps")
def imputed(
    objective: VAEObjective, params: PyTree, key: Array, rows: Any, gaps: Array, *, num_sweeps: int
) -> Array:
    """Fill missing entries by a Markov chain: draw a code, replace what is missing by its mean.

    ``gaps`` marks what is missing. The first half of the sweeps forgets the start; the result is
    the mean over the rest.
    """
    _, x, condition = split(rows)

    def image(codes: Array) -> Array:
        return shaped_like(objective.image(params, codes, condition), x)

    def sweep(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        current, total = carry
        codes = _drawn(objective.code(params, current, condition), key, number)[1]
        current = jnp.where(gaps, image(codes), x)
        counted = (2 * number >= num_sweeps).astype(x.dtype)
        return current, total + counted * current

    # Start from the decoder's image of the prior mean: zeros would be far from any image.
    origin = image(jnp.zeros_like(objective.code(params, x, condition)[0]))
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


def picture_shape(X: np.ndarray, image_shape: tuple[int, ...] | None) -> tuple[int, int]:
    """Height and width of an image: those that were given, or a square."""
    known = [n for n in image_shape or () if n > 1]
    return (known[0], known[1]) if len(known) == 2 else square_shape(X)


def _drawn(code: tuple[Array, Array], key: Array, number: Array) -> tuple[Array, Array]:
    """Draw a code for every row: standard normal noise, and the codes it gives."""
    mean, log_variance = code
    noise = jax.random.normal(jax.random.fold_in(key, number), (1, *mean.shape), mean.dtype)
    return noise[0], reparameterise(mean, log_variance, noise)
