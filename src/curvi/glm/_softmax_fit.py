"""Fit a multiclass model, and say how exact the integral over the logits is."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi._core.trees import precision_of
from curvi.families import Family, Params
from curvi.glm._bound import Rows
from curvi.glm._design import DenseDesign
from curvi.glm._fit import (
    GLMFit,
    Options,
    dense_is_cheap,
    fit_compiled,
    fit_on_host,
    neg_bound,
)
from curvi.glm._softmax import (
    SoftmaxProblem,
    SoftmaxResources,
    SoftmaxRows,
    logit_draws,
)
from curvi.glm._softmax_dense import SoftmaxBound
from curvi.glm._starts import on_device, padded, starting_moments

# Draws are a quadrature rule and no source of randomness: the same for every fit.
_QUADRATURE_SEED = 0
_FRESH_SEEDS = range(1, 9)  # independent sets of draws on which the final bound is evaluated
_DENSE_WORK = 3e10  # operations of one step up to which all pairs of classes are formed


def fit_softmax(
    family: Family,
    rows: Rows,
    num_classes: int,
    *,
    relevance: bool = False,
    options: Options | None = None,
) -> GLMFit:
    """Maximise the bound of K blocks of coefficients; ``rows.y`` holds class numbers.

    The bound is optimised on fixed draws of the logits and reported on fresh ones, which the
    optimum has not seen: ``elbo`` is their mean and ``elbo_se`` its standard error.
    """
    options = Options() if options is None else options
    began = time.perf_counter()
    columns = rows.design.num_columns
    size = 2 * num_classes * columns
    draws = logit_draws(num_classes, _QUADRATURE_SEED)
    work = 4.0 * rows.y.shape[0] * (num_classes * columns) ** 2
    host = dense_is_cheap(family, rows, size) and work < _DENSE_WORK
    if options.method is None and host:
        found = _on_host(family, rows, draws, relevance, options)
    else:
        with precision_of(rows.weight.dtype):
            found = _compiled(family, rows, draws, relevance, options)
    return replace(found, seconds=time.perf_counter() - began)


def _on_host(
    family: Family, rows: Rows, draws: np.ndarray, relevance: bool, options: Options
) -> GLMFit:
    assert isinstance(rows.design, DenseDesign)  # noqa: S101  for the type checker
    classes, columns = draws.shape[1], rows.design.num_columns
    arrays = (np.asarray(rows.design.matrix), np.asarray(rows.y), np.asarray(rows.weight))
    bound = SoftmaxBound(relevance, np.tile(rows.precision, classes), *arrays, draws)

    def starts(index: int) -> tuple[np.ndarray, np.ndarray]:
        blocks = [_moments(columns, options.seed, index, k) for k in range(classes)]
        return np.concatenate([m for m, _ in blocks]), np.concatenate([s for _, s in blocks])

    found = fit_on_host(bound, family, rows.weight.dtype, starts, options)
    params = bound.join(np.asarray(found.q.mean), np.exp(found.q.scale_params))
    values = [
        -replace(bound, draws=logit_draws(classes, seed)).value(params) for seed in _FRESH_SEEDS
    ]
    shape = (classes, columns)
    q = Params(found.q.mean.reshape(shape), found.q.scale_params.reshape(shape))
    return _reported(replace(found, q=q), values)


def _compiled(
    family: Family, rows: Rows, draws: np.ndarray, relevance: bool, options: Options
) -> GLMFit:
    classes, columns = draws.shape[1], rows.design.num_columns
    dtype = rows.weight.dtype
    exact = SoftmaxProblem(family, relevance, classes)
    device = on_device(padded(rows) if options.batch_size is None else rows)
    one = jnp.ones((), dtype)

    def sample_of(noise: np.ndarray) -> SoftmaxRows:
        return SoftmaxRows(device, jnp.asarray(noise, dtype), one)

    sample = sample_of(draws)
    problem = exact
    resources: Any = sample
    if options.method is not None:
        problem = replace(exact, fresh_draws=options.num_draws, batch_size=options.batch_size)
        resources = SoftmaxResources(jax.random.key(options.seed), device)

    def start(index: int) -> Params:
        blocks = []
        for k in range(classes):
            mean, sd = (jnp.asarray(x, dtype) for x in _moments(columns, options.seed, index, k))
            blocks.append(family.init(mean, sd))
        return exact.from_mean(jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks))

    found = fit_compiled(exact, sample, problem, resources, family, start, options)
    params = exact.from_mean(on_device(found.q))
    values = [
        -float(neg_bound(exact, params, sample_of(logit_draws(classes, seed))))
        for seed in _FRESH_SEEDS
    ]
    return _reported(found, values)


def _moments(columns: int, seed: int, start: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    return starting_moments(columns, seed + 7919 * k, start)


def _reported(found: GLMFit, values: list[float]) -> GLMFit:
    error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return replace(found, elbo=float(np.mean(values)), elbo_se=error)
