r"""Multiclass: a softmax over K linear predictors.

.. math::

    E[\log p(y_i)] = m_{i y_i} - E\Big[\log \sum_k e^{t_{ik}}\Big], \qquad
    t_i \sim N(m_i, V_i)

With a full covariance the coefficients of all classes are jointly Gaussian (`Contrasts`);
with any other the K blocks of coefficients are independent, and V_i is diagonal. The expectation
is averaged over draws in the space of logits, not of coefficients: :math:`t = m + L \epsilon` with
draws that are fixed, normalised and the same for every row for the exact methods, fresh for the
paper's stochastic ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from curvi._core.memory import row_slices
from curvi._core.meshes import current_mesh
from curvi._core.threads import one_blas_thread
from curvi._core.trees import precision_of, stable_sum
from curvi.families import Family, Params
from curvi.glm._bound import (
    Batch,
    GLMProblem,
    RegressionProblem,
    Rows,
    on_device,
    padded,
    predictor_variance,
    sampled_rows,
)
from curvi.glm._design import DenseDesign
from curvi.glm._diagonal_bound import DiagonalBound, Energy
from curvi.glm._fit import (
    dense_is_cheap,
    fit_compiled,
    fit_on_host,
    neg_elbo,
    relevant_columns,
    takes_full_steps,
    whole_table,
)
from curvi.glm._full_bound import FullBound
from curvi.glm._full_newton import fit_full, full_moments
from curvi.glm._narrowness import checked
from curvi.glm._rows import WholeTable
from curvi.glm._stages import Options
from curvi.glm._starts import GLMFit, starting_moments
from curvi.likelihoods import Bernoulli, Contrasts, draws_for, logit_draws
from curvi.linalg import FunctionMetric, Metric
from curvi.solvers import Problem


@dataclass(frozen=True)
class SoftmaxWork:
    """How much of a softmax over draws, rows and classes is computed at once."""

    draws_at_once: int = 8
    numbers_at_once: int = 2_000_000  # of a table of draws x rows x classes
    # Draws are a quadrature rule and no source of randomness: the same for every fit.
    quadrature_seed: int = 0
    dense_work: float = 3e10  # operations of one step up to which all pairs of classes are formed


WORK = SoftmaxWork()
_FRESH_SEEDS = range(1, 9)  # independent sets of draws on which the final bound is evaluated


def fit_softmax(
    family: Family,
    rows: Rows,
    num_classes: int,
    *,
    relevance: bool = False,
    intercept: bool = False,
    options: Options | None = None,
    policy: SoftmaxWork = WORK,
) -> GLMFit:
    """Maximise the bound of K blocks of coefficients.

    The bound is optimised on fixed draws of the logits and reported on fresh ones, which the
    optimum has not seen: ``elbo`` is their mean and ``elbo_se`` its standard error.

    Parameters
    ----------
    family : Family
        Structure of the posterior covariance: full over all classes together under a normal
        prior and Newton steps, otherwise that of each class.
    rows : Rows
        NumPy arrays; ``rows.y`` holds class numbers.
    num_classes : int
        K.
    relevance : bool
        Whether the prior is the relevance prior; otherwise it is normal.
    intercept : bool
        Whether the last column is an intercept. Under a relevance prior its prior variance is
        maximised as well, but not below ``1 / precision``: it is never switched off.
    options : Options, optional
        How the bound is maximised.

    Returns
    -------
    GLMFit
        The fit from the best start; parameters have a leading axis of classes, or are those of the
        K - 1 contrasts of :func:`contrast_basis`, flattened, where all classes are fitted jointly.
    """
    options = Options() if options is None else options
    began = time.perf_counter()
    columns, dtype = rows.design.num_columns, rows.weight.dtype
    exact_steps = options.method is None and current_mesh() is None
    if exact_steps and takes_full_steps(family, relevance):
        found = _fit_jointly(family, rows, num_classes, options, policy=policy)
        return replace(found, seconds=time.perf_counter() - began)
    draws = logit_draws(num_classes, policy.quadrature_seed)
    fresh = (logit_draws(num_classes, seed) for seed in _FRESH_SEEDS)

    def starts(index: int) -> tuple[np.ndarray, np.ndarray]:
        seeds = (options.seed + 7919 * k for k in range(num_classes))
        blocks = [starting_moments(columns, seed, index) for seed in seeds]
        mean, sd = (np.stack(part) for part in zip(*blocks, strict=True))
        return mean, sd

    work = 4.0 * rows.y.shape[0] * (num_classes * columns) ** 2
    dense = isinstance(rows.design, DenseDesign) and work < policy.dense_work
    cheap = dense and dense_is_cheap(family, rows, 2 * num_classes * columns)
    if options.method is None and cheap:
        precision = np.tile(rows.precision, num_classes)
        relevant = np.tile(relevant_columns(columns, relevance, intercept), num_classes)
        table = whole_table(rows)
        assert isinstance(table, WholeTable)  # noqa: S101  for the type checker
        bound = SoftmaxBound(relevant, precision, table, draws)
        found = fit_on_host(bound, family, dtype, starts, options)
        params = bound.join(np.ravel(found.q.mean), np.exp(np.ravel(found.q.scale_params)))
        elbos = [-replace(bound, draws=noise).value(params) for noise in fresh]
    else:
        exact = SoftmaxProblem(family, relevance, num_classes, intercept=intercept)
        with precision_of(dtype), one_blas_thread():
            device = on_device(padded(rows) if options.batch_size is None else rows)

            def sample_of(noise: np.ndarray) -> Batch:
                return Batch(device, jnp.asarray(noise, dtype), jnp.ones((), dtype))

            found = fit_compiled(exact, device, sample_of(draws), starts, options)
            q = exact.from_mean(on_device(found.q))
            elbos = [-float(neg_elbo(exact, q, sample_of(noise))) for noise in fresh]
    found = checked(
        _with_error(found, elbos), None, whole_table(rows), rows.precision, relevance, intercept
    )
    return replace(found, seconds=time.perf_counter() - began)


def _with_error(found: GLMFit, elbos: list[float]) -> GLMFit:
    """With the bound on draws that the fit has not seen, and its standard error."""
    error = float(np.std(elbos, ddof=1) / np.sqrt(len(elbos)))
    return replace(found, elbo=float(np.mean(elbos)), elbo_se=error)


def _fit_jointly(
    family: Family, rows: Rows, num_classes: int, options: Options, *, policy: SoftmaxWork = WORK
) -> GLMFit:
    """One Gaussian over the coefficients of all classes; q is that of their contrasts."""
    contrasts, count = num_classes - 1, draws_for(rows.y.shape[0])
    model = Contrasts(contrasts, logit_draws(contrasts, policy.quadrature_seed, count))
    bound = FullBound(model, whole_table(rows), rows.precision)

    def starts(index: int) -> tuple[np.ndarray, np.ndarray]:
        mean, sd = starting_moments(bound.size, options.seed, index)
        return mean, sd * contrasts**0.5  # that of as many columns as one predictor has

    found = fit_full(bound, family, rows.weight.dtype, starts, options)
    q = full_moments(family, found.q)
    models = (Contrasts(contrasts, logit_draws(contrasts, seed, count)) for seed in _FRESH_SEEDS)
    return _with_error(found, [-replace(bound, model=fresh).value(*q) for fresh in models])


def _parts(rows: int, draws: np.ndarray, *, policy: SoftmaxWork = WORK) -> Iterator[slice]:
    """Slices of rows whose logits on all draws fit into memory."""
    return row_slices(rows, max(1, policy.numbers_at_once // draws.size))


@dataclass(frozen=True)
class SoftmaxProblem(RegressionProblem):
    """The negative ELBO over parameters with a leading axis of classes, for compiled methods."""

    family: Family
    relevance: bool
    num_classes: int
    fresh_draws: int | None = None
    batch_size: int | None = None
    intercept: bool = False

    @property
    def _block(self) -> GLMProblem:
        """One class: its parameterisation, prior and metric are those of a single predictor."""
        return GLMProblem(Bernoulli(), self.family, self.relevance, intercept=self.intercept)

    @property
    def fixed(self) -> bool:
        """Whether draws and rows are the same at every step."""
        return self.fresh_draws is None

    def sampled(self, num_draws: int, batch_size: int | None) -> Problem:
        """The same bound on fresh draws."""
        return replace(self, fresh_draws=num_draws, batch_size=batch_size)

    def sample(self, resources: Any, step: Array, stream: int = 0, size: int | None = None) -> Any:
        """The fixed draws, or fresh draws and rows."""
        if self.fresh_draws is None:
            return resources
        key, rows, multiple = sampled_rows(resources, step, stream, size or self.batch_size)
        half = jax.random.normal(key, (self.fresh_draws, self.num_classes), rows.weight.dtype)
        return Batch(rows, jnp.concatenate([half, -half]), multiple)

    def value(self, params: Params, sample: Batch) -> Float[Array, ""]:
        """The negative ELBO on the draws, a few of them at a time to save memory."""
        q, rows = self.to_mean(params), sample.rows
        mean = rows.design.linear(q.mean.T)
        variance = jax.vmap(lambda scale: predictor_variance(self.family, scale, rows.design))(
            q.scale_params
        ).T
        tiny = float(jnp.finfo(mean.dtype).tiny) ** 0.5
        width = jnp.sqrt(jnp.maximum(variance, tiny))  # a row of zeros has no width

        @jax.checkpoint
        def spread(noise: Array) -> Array:
            return jax.nn.logsumexp(mean + width * noise[None, :], axis=1)

        averaged = jnp.mean(
            jax.lax.map(spread, sample.noise, batch_size=WORK.draws_at_once), axis=0
        )
        own = jnp.take_along_axis(mean, rows.y[:, None], axis=1)[:, 0]
        energy = sample.multiple * stable_sum(rows.weight * (averaged - own))
        return energy + jnp.sum(jax.vmap(lambda p: self._block.divergence(p, rows))(params))

    def to_mean(self, params: Params) -> Params:
        """From the parameterisation of the problem to (mean, scale), class by class."""
        return jax.vmap(self._block.to_mean)(params)

    def from_mean(self, params: Params) -> Params:
        """Back from (mean, scale)."""
        return jax.vmap(self._block.from_mean)(params)

    def metric(self, params: Params) -> Metric:
        """The natural metric of each block."""
        return FunctionMetric(
            lambda t: jax.vmap(lambda p, u: self._block.metric(p).apply(u))(params, t),
            lambda t: jax.vmap(lambda p, u: self._block.metric(p).solve(u))(params, t),
        )

    def project(self, params: Params, tangent: Params) -> Params:
        """Remove directions along which q does not change."""
        return jax.vmap(self._block.project)(params, tangent)

    def to_raw(self, params: Params) -> Params:
        """Means and entries of R."""
        return jax.vmap(self._block.to_raw)(params)

    def from_raw(self, raw: Params) -> Params:
        """Back from entries of R."""
        return jax.vmap(self._block.from_raw)(raw)


@dataclass(frozen=True)
class SoftmaxBound(DiagonalBound):
    """The negative ELBO with a diagonal R and its dense Hessian, on the host.

    mu and sd are flattened from (classes, columns). ``table.y`` holds class numbers, ``draws``
    (draws, classes) the normalised noise of the logits.
    """

    table: WholeTable
    draws: np.ndarray

    @property
    def work(self) -> float:
        """Multiplications of one Hessian, roughly."""
        return 3.0 * self.table.num_rows * self.precision.shape[0] ** 2

    def energy(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """Minus the expected log likelihood."""
        mean, width = self._logits(mu, sd)
        total = 0.0
        for part in _parts(len(mean), self.draws):
            t = mean[part] + width[part] * self.draws[:, None, :]
            spread = special.logsumexp(t, axis=2).mean(axis=0)
            total += float(self.table.weight[part] @ (spread - self._own(mean, part)))
        return total

    def energy_second_order(self, mu: np.ndarray, sd: np.ndarray) -> Energy:
        """The same with its derivatives: Gram matrices for every pair of classes."""
        mean, width = self._logits(mu, sd)
        rows, classes = mean.shape
        value, slope_m, slope_v = 0.0, np.empty((rows, classes)), np.empty((rows, classes))
        mm, mv, vv = (np.empty((rows, classes, classes)) for _ in range(3))
        for part in _parts(rows, self.draws):
            spread, *terms = _row_terms(mean[part], width[part], self.draws)
            value += float(self.table.weight[part] @ (spread - self._own(mean, part)))
            slope_m[part], slope_v[part], mm[part], mv[part], vv[part] = terms
        slope_m[np.arange(rows), self.table.y] -= 1
        weight = self.table.weight[:, None]
        X, squares = self.table.matrix, self.table.squares
        return Energy(
            value,
            ((weight * slope_m).T @ X).ravel(),
            ((weight * slope_v).T @ squares).ravel(),
            self._blocks(X, mm, X),
            self._blocks(X, mv, squares),
            self._blocks(squares, vv, squares),
        )

    def _own(self, mean: np.ndarray, part: slice) -> np.ndarray:
        """The mean logit of each row's own class."""
        return np.take_along_axis(mean[part], self.table.y[part, None], axis=1)[:, 0]

    def _logits(self, mu: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of every logit, (rows, classes)."""
        dtype, shape = self.table.matrix.dtype, (self.draws.shape[1], -1)
        mean = self.table.matrix @ mu.reshape(shape).T.astype(dtype)
        variance = self.table.squares @ (sd**2).reshape(shape).T.astype(dtype)
        floor = float(np.finfo(dtype).tiny) ** 0.5  # a row of zeros has no width
        return mean.astype(np.float64), np.sqrt(np.maximum(variance.astype(np.float64), floor))

    def _blocks(self, left: np.ndarray, slope: np.ndarray, right: np.ndarray) -> np.ndarray:
        classes, columns = self.draws.shape[1], left.shape[1]
        out = np.empty((classes, columns, classes, columns))
        for k in range(classes):
            for other in range(classes):
                weights = (self.table.weight * slope[:, k, other]).astype(left.dtype)
                out[k, :, other, :] = left.T @ (weights[:, None] * right)
        return out.reshape(classes * columns, classes * columns)


def _row_terms(mean: np.ndarray, width: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, ...]:
    """``E[logsumexp(t)]`` of rows, its slopes in (m, v), and second derivatives in both.

    Derivatives are those of the average over the draws itself, so that Newton steps on fixed
    draws converge quadratically.
    """
    noise = draws[:, None, :]
    t = mean + width * noise
    spread = special.logsumexp(t, axis=2)
    p = np.exp(t - spread[:, :, None])
    count = draws.shape[0]
    pulled = (p * noise).sum(axis=0) / count
    half = 0.5 / width
    mm, mv, vv = (
        -np.einsum("mnk,mnl->nkl", p * a, p * b, optimize=True) / count
        for a, b in ((1.0, 1.0), (1.0, noise), (noise, noise))
    )
    index = np.arange(mean.shape[1])
    slope = p.sum(axis=0) / count
    mm[:, index, index] += slope
    mv[:, index, index] += pulled
    vv[:, index, index] += (p * noise**2).sum(axis=0) / count
    mv = mv * half[:, None, :]
    vv = vv * half[:, :, None] * half[:, None, :]
    vv[:, index, index] -= pulled * 2 * half**3
    return spread.mean(axis=0), slope, pulled * half, mm, mv, vv
