"""HMC: from a wrong q to the moments of the target, and an honest word where they fail."""

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.families import FullRank
from curvi.families._host import HostMap
from curvi.inference.ladder._convergence import Effort, convergence_of
from curvi.inference.ladder._hamiltonian import run_hmc
from curvi.objective._batch import BatchedDensity
from curvi.objective._draws import host_generator

pytestmark = pytest.mark.float64_only


def place_of(target, mean, sd):
    params = FullRank().init(jnp.asarray(mean), jnp.asarray(sd))
    return BatchedDensity.of(target), HostMap.of(FullRank(), params)


def seeded(key):
    return host_generator(key)


def test_hmc_finds_the_moments_that_q_has_wrong(key):
    covariance = np.array([[2.0, 0.9], [0.9, 0.7]])
    precision = jnp.asarray(np.linalg.inv(covariance))
    target = curvi.Target(lambda x: -0.5 * (x - 1.0) @ precision @ (x - 1.0), jnp.zeros(2))
    density, place = place_of(target, [0.0, 0.0], [0.5, 0.5])
    found = run_hmc(density, place, seeded(key), Effort(), lambda z: z)
    assert found.trusted
    ess = found.convergence.ess.min()
    error = 6 / ess**0.5  # six standard errors of two means and three second moments
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((found.positions.mean(axis=0) - 1.0) / sd, 0.0, atol=error)
    scaled = np.cov(found.positions.T) / np.outer(sd, sd)
    np.testing.assert_allclose(scaled, covariance / np.outer(sd, sd), atol=1.5 * error)
    assert found.evaluations == density.evaluations


def test_chains_that_cannot_move_are_not_trusted(key):
    """A wall of curvature that no step resolves: every trajectory diverges."""
    target = curvi.Target(lambda x: -0.5 * jnp.sum(x**2) - 1e12 * jnp.sum(x**4), jnp.zeros(2))
    density, place = place_of(target, [0.0, 0.0], [1.0, 1.0])
    effort = Effort(most_evaluations=20_000)
    found = run_hmc(density, place, seeded(key), effort, lambda z: z)
    assert not found.trusted


def test_draws_that_drift_have_not_converged(key):
    rng = seeded(key)
    steady = rng.normal(size=(12, 256, 3))
    assert convergence_of(steady).converged
    assert convergence_of(steady).ess.min() > 1500
    moving = steady + np.linspace(0, 1, 12)[:, None, None] * np.array([0.0, 1.0, 0.0])
    found = convergence_of(moving)
    assert not found.converged
    assert (found.drift != 0).tolist() == [False, True, False]
    wider = steady * np.linspace(1, 2, 12)[:, None, None]
    assert not convergence_of(wider).converged


def test_stuck_chains_are_worth_one_draw_each(key):
    stuck = np.broadcast_to(seeded(key).normal(size=(1, 256, 2)), (12, 256, 2))
    np.testing.assert_allclose(convergence_of(stuck).ess, 256, rtol=1e-6)


def test_a_spike_that_no_chain_leaves_shows_in_distances_from_the_centre(key):
    """Half of the chains stay in it: all agree on the mean, and none on the spread."""
    rng = seeded(key)
    kept = rng.normal(size=(12, 256, 1)) * np.where(np.arange(256) % 2, 1.0, 0.01)[:, None]
    found = convergence_of(kept)
    assert found.ess.min() > 1500
    assert found.scale_ess < 1500
    assert convergence_of(rng.normal(size=(12, 256, 1))).scale_ess > 1500


def test_chains_between_which_nothing_moves_are_not_trusted(key):
    """Two modes that no trajectory joins: chains stay where they started, and nothing drifts."""

    def log_density(x):
        return jnp.logaddexp(-0.5 * (x[0] - 12.0) ** 2, -0.5 * (x[0] + 12.0) ** 2)

    density, place = place_of(curvi.Target(log_density, jnp.zeros(1)), [0.0], [12.0])
    effort = Effort(most_evaluations=20_000)
    found = run_hmc(density, place, seeded(key), effort, lambda z: z)
    assert not found.trusted


def test_chains_without_time_to_move_are_not_trusted(key):
    target = curvi.Target(lambda x: -0.5 * jnp.sum((x / 9.0) ** 2), jnp.zeros(2))
    density, place = place_of(target, [0.0, 0.0], [1.0, 1.0])
    found = run_hmc(density, place, seeded(key), Effort(time_left=lambda: 0.0), np.array)
    assert not found.trusted


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_constant_is_known_exactly(key, dtype):
    """The corner of a Cholesky factor, or a deterministic site, holds nobody up."""
    kept = seeded(key).normal(size=(12, 256, 3)).astype(dtype)
    kept[..., 0], kept[..., 1] = 1 / 3, 0.0
    found = convergence_of(kept)
    assert found.converged
    assert found.ess[:2].tolist() == [12 * 256, 12 * 256]
    assert found.ess[2] > 1500
