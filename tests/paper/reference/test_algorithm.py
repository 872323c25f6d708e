"""Algorithm 1 as written from the paper, against the solver, on the same batches and noise."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.linalg import conjugate_gradient
from curvi.paper.reference import hfsgvi, hfsgvi_step
from tests.solvers.problems import (
    WIDTH,
    generator,
    logistic,
    logistic_rows,
    unit_prior,
    variational,
)

BATCH, TOTAL = 8, 24


def target_of(key, dtype):
    rows = jax.tree.map(lambda leaf: leaf[:TOTAL], logistic(generator(key), dtype).rows)
    return curvi.DataTarget(logistic_rows, rows, unit_prior, jnp.zeros(WIDTH, dtype))


def location_scale(theta, row):
    """(mu, R): theta holds the mean and, column by column, a diagonal or a lower triangle."""
    mean, entries = theta[:WIDTH], theta[WIDTH:]
    if entries.size == WIDTH:
        return mean, jnp.diag(entries)
    return mean, jnp.zeros((WIDTH, WIDTH), theta.dtype).at[jnp.tril_indices(WIDTH)].set(entries)


def share(z, row, theta):
    """The share of a row of a batch in the bound: likelihood, prior and entropy."""
    scale = location_scale(theta, row)[1]
    rest = unit_prior(z) + jnp.sum(jnp.log(jnp.abs(jnp.diagonal(scale))))
    return TOTAL / BATCH * jax.nn.log_sigmoid(row[-1] * (row[:-1] @ z)) + rest / BATCH


def theta_of(raw):
    """(mu, R) of the solver as the vector of the reference."""
    scale = raw.scale_params
    entries = scale if scale.ndim == 1 else scale[jnp.tril_indices(WIDTH)]
    return jnp.concatenate([raw.mean, entries])


def moments_of(theta):
    """Mean and covariance: the sign of a column of R means nothing."""
    mean, scale = location_scale(theta, None)
    return np.asarray(mean, np.float64), np.asarray(scale @ scale.T, np.float64)


@partial(jax.jit, static_argnums=0)
def solver_step(method, problem, params, resources, step):
    sample = problem.sample(resources, step)
    state = method.init(problem, params, resources)
    moved, info = method.step(problem, state, resources, step, jnp.zeros((), params.mean.dtype))
    return moved.params, sample, info


ONE_PER_ROW = curvi.Draws("iid", 1, fresh=True, per_row=True)  # M = 1, the printed default
CASES = {
    "mean field, M = 1": (curvi.MeanField(), ONE_PER_ROW),
    "full rank, M = 1": (curvi.FullRank(), ONE_PER_ROW),
    "full rank, draws that rows share": (curvi.FullRank(), curvi.Draws("iid", 3, fresh=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_from_the_paper_alone_is_a_step_of_the_solver(case, key, dtype):
    """Three steps; at each, both go from where the solver stands."""
    family, plan = CASES[case]
    target, method = target_of(key, dtype), curvi.HFSGVI(cg_steps=4)
    problem, resources, params = variational(target, family, plan, key, batch_size=BATCH)
    for step in range(3):
        theta = theta_of(family.to_raw(params))
        number = jnp.asarray(step, jnp.int32)
        params, sample, info = solver_step(method, problem, params, resources, number)
        rows = jnp.concatenate([sample.rows["x"], sample.rows["sign"][:, None]], axis=1)
        noise = sample.noise if sample.noise.ndim == 3 else sample.noise[:, None]
        noise = jnp.broadcast_to(jnp.swapaxes(noise, 0, 1), (BATCH, noise.shape[0], WIDTH))
        after = hfsgvi_step(share, location_scale, theta, rows, noise, cg_steps=4)
        solved = theta_of(family.to_raw(params))
        for found, ours in zip(moments_of(after), moments_of(solved), strict=True):
            tolerance = 1e-7 if dtype == jnp.float64 else 1e-2
            np.testing.assert_allclose(found, ours, rtol=0, atol=tolerance * np.abs(ours).max())
        # The bound of a log-concave model is concave in (mu, R).
        assert not bool(info.negative_curvature)


@pytest.mark.float64_only
@pytest.mark.parametrize("slope", [[1.0, 1.0, 0.1], [0.1, 0.2, 1.0]], ids=["later", "at once"])
def test_both_stop_alike_at_negative_curvature(slope, dtype):
    """A saddle without noise: conjugate gradients meet its downward direction later, or first."""
    matrix, slope = jnp.diag(jnp.asarray([2.0, 1.0, -1.0], dtype)), jnp.asarray(slope, dtype)
    zero = jnp.zeros((3, 3), dtype)
    moved = hfsgvi_step(
        lambda z, row, theta: slope @ z - 0.5 * z @ matrix @ z,
        lambda theta, row: (theta, zero), zero[0], zero[:1], zero[None, :1],
    )  # fmt: skip
    solved = conjugate_gradient(lambda v: matrix @ v, slope, max_steps=10)
    assert bool(solved.negative_curvature)
    np.testing.assert_allclose(moved, solved.solution, rtol=1e-12)


@pytest.mark.float64_only
def test_with_hardly_any_noise_the_algorithm_is_newtons_method_and_finds_the_mode(key, dtype):
    x = generator(key).normal(size=(40, 2))
    data = jnp.asarray(np.column_stack([x, np.sign(x @ [1.0, -2.0] + np.tile([1, -1], 20))]), dtype)

    def of_row(z, row, theta):
        return jax.nn.log_sigmoid(row[2] * (row[:2] @ z)) - 0.5 * z @ z / 40

    scale = 1e-9 * jnp.eye(2, dtype=dtype)
    found = hfsgvi(of_row, lambda theta, row: (theta, scale), jnp.zeros(2, dtype), data, key,
                   num_steps=8, batch_size=40)  # fmt: skip
    slope = jax.grad(lambda z: jnp.sum(jax.vmap(lambda row: of_row(z, row, z))(data)))(found)
    np.testing.assert_allclose(slope, 0, atol=1e-6)
