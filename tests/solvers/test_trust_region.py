"""TrustRegion: as good as SciPy on fixed draws, monotone, and at rest at a minimum."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree

import curvi
from curvi._core.errors import InputError
from curvi.engine import Budget, Execution
from curvi.engine import run as run_loop
from curvi.objective import neg_elbo, plan_draws, sample_draws
from tests.solvers.problems import WIDTH, generator, logistic, seed_of, variational

PROBLEMS = {
    "plain": {},
    "ill-conditioned": {"scales": (1e-3, 1.0, 30.0)},
    "nearly-separable": {"steepness": 30.0},
}
FAMILY = curvi.MeanField()
PLAN = plan_draws(FAMILY, WIDTH)
TOLERANCE = 1e-8


@partial(jax.jit, static_argnums=0)
def dense(problem, params, resources):
    """Value, flat gradient and dense Hessian of the objective on its fixed sample."""
    flat, unravel = ravel_pytree(params)
    sample = problem.sample(resources, jnp.asarray(0, jnp.int32))

    def value(flat):
        return problem.value(unravel(flat), sample)

    return value(flat), jax.grad(value)(flat), jax.hessian(value)(flat)


@pytest.fixture(params=["eager", "compiled"])
def run(request):
    """A run in either mode: the algorithm is the same."""
    execution = Execution(request.param)

    def run(problem, params, resources):
        budget = Budget(TOLERANCE, 200)
        return run_loop(
            problem, curvi.TrustRegion(), params, resources, budget, execution=execution
        )

    return run


@pytest.mark.float64_only
@pytest.mark.parametrize("options", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_on_fixed_draws_it_converges_as_far_down_as_scipy(run, options, key, dtype):
    target = logistic(generator(key), dtype, **options)
    problem, resources, start = variational(target, FAMILY, PLAN, key)
    ended = run(problem, start, resources)
    assert ended.outcome is curvi.Outcome.CONVERGED

    flat, unravel = ravel_pytree(start)

    def at(x, part):
        return np.asarray(dense(problem, unravel(jnp.asarray(x)), resources)[part])

    value, gradient, hessian = (
        np.asarray(item) for item in dense(problem, ended.params, resources)
    )
    for method, extra in (("trust-ncg", {"hess": partial(at, part=2)}), ("L-BFGS-B", {})):
        peer = scipy.optimize.minimize(
            partial(at, part=0), np.asarray(flat), jac=partial(at, part=1), method=method, **extra
        )
        assert value <= peer.fun + 1e-4

    decrement = 0.5 * gradient @ np.linalg.solve(hessian, gradient)
    assert 0 <= decrement < TOLERANCE
    assert np.linalg.eigvalsh(hessian).min() > 0

    values, accepted = ended.trace["value"], ended.trace["accepted"]
    rounding = 20 * np.finfo(np.float64).eps * np.abs(values).max()
    assert (np.diff(values) <= rounding).all()  # a refused step leaves the value as it is
    moved = np.diff(values) != 0
    assert not (moved & ~accepted[:-1]).any()


def double_well(position):
    """Two far modes: at the origin both log density and bound have a saddle."""
    return -jnp.sum((position**2 - 4) ** 2) / 4


@pytest.mark.float64_only
def test_from_between_two_modes_it_reaches_a_minimum_and_not_the_saddle(run, key, dtype):
    target = curvi.Target(double_well, jnp.zeros(2, dtype))
    plan = plan_draws(FAMILY, 2)
    problem, resources, start = variational(target, FAMILY, plan, key)
    _, _, hessian = dense(problem, start, resources)
    assert np.linalg.eigvalsh(np.asarray(hessian)).min() < 0
    ended = run(problem, start, resources)
    assert ended.outcome is curvi.Outcome.CONVERGED
    assert ended.trace["negative_curvature"].any()
    _, gradient, hessian = (np.asarray(item) for item in dense(problem, ended.params, resources))
    assert np.linalg.eigvalsh(hessian).min() > 0
    assert 0.5 * gradient @ np.linalg.solve(hessian, gradient) < TOLERANCE


@partial(jax.jit, static_argnums=0)
def bound(density, params, noise, rows):
    return neg_elbo(density, FAMILY, params, noise, rows)


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning", "ignore::curvi.NotConvergedWarning")
def test_minibatches_end_within_tenths_of_a_nat_of_the_full_optimum(key, dtype):
    """With a curvature sample of its own size."""
    target = logistic(generator(key), dtype)
    method = curvi.TrustRegion(curvature_batch_size=90)
    options = {"seed": seed_of(key), "on_failure": "return"}
    whole = curvi.fit(target, family=FAMILY, **options)
    assert whole.converged
    result = curvi.fit(target, method=method, batch_size=30, **options)
    assert result.outcome in (curvi.Outcome.CONVERGED, curvi.Outcome.BUDGET)
    assert result.draws.fresh
    noise = sample_draws(jax.random.fold_in(key, 1), 256, WIDTH, kind="whitened", dtype=dtype)
    best, found = (
        float(bound(target.density, item.params, noise, target.rows)) for item in (whole, result)
    )
    num_params = 2 * WIDTH
    assert found - best < 0.3 * num_params**0.5


@pytest.mark.float64_only
def test_sizes_that_are_no_counts_are_refused():
    with pytest.raises(InputError, match="cg_steps is 0; it must be a positive integer"):
        curvi.TrustRegion(cg_steps=0)
    with pytest.raises(InputError, match=r"curvature_batch_size is 1\.5; it must be a positive"):
        curvi.TrustRegion(curvature_batch_size=1.5)
