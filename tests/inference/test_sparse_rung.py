"""The first rung above a thousand coordinates: entries that show only at q, and exact moments."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.families._sparse_host import SparseMap
from curvi.inference._first import sparse_family, structure_holds
from curvi.inference.ladder._corrections import with_own_moments
from curvi.inference.ladder._dense_rows import Following
from curvi.objective import normalise
from curvi.objective._batch import BatchedDensity
from curvi.objective._curvature import Curvature
from tests.solvers.problems import seed_of

STRIDE, LEVEL = 5, 3.0


@pytest.fixture
def rng(key):
    return np.random.default_rng(seed_of(key))


def switched(z):
    """A chain around 3, with a second one that is off below 1."""
    on = jnp.maximum(z - 1.0, 0.0)
    chain = jnp.sum((z - LEVEL) ** 2) * 6.0 + jnp.sum(jnp.diff(z) ** 2)
    return -0.5 * (chain + 4.0 * jnp.sum((on[STRIDE:] - on[:-STRIDE]) ** 2))


def exact_sds(dimension):
    """All of it is Gaussian where everything is on."""

    def differences(step):
        rows = np.eye(dimension, k=step) - np.eye(dimension)
        return rows[:-step]

    near, far = differences(1), differences(STRIDE)
    precision = 6.0 * np.eye(dimension) + near.T @ near + 4.0 * far.T @ far
    return np.sqrt(np.diag(np.linalg.inv(precision)))


@pytest.mark.float64_only
def test_entries_that_are_zero_at_the_start_are_missed_at_draws_of_q(rng):
    target = curvi.Target(switched, jnp.zeros(20))
    family = sparse_family(target)
    for mean, holds in ((0.0, True), (LEVEL, False)):
        place = SparseMap.of(family, family.init(jnp.full(20, mean), jnp.asarray(0.1)))
        assert structure_holds(target, place, rng) == holds


@pytest.mark.float64_only
def test_draws_of_a_sparse_q_have_its_moments(rng):
    family = sparse_family(curvi.Target(switched, jnp.full(20, LEVEL)))
    place = SparseMap.of(family, family.init(jnp.full(20, LEVEL), jnp.asarray(0.3)))
    links = 0.5 * rng.normal(size=place.links.shape)
    place = replace(place, links=links)
    noise = with_own_moments(place, normalise(rng.normal(size=(64, 20))))
    drawn = place.forward(noise).positions[:, place.order]
    np.testing.assert_allclose(drawn.mean(axis=0), place.mean, rtol=1e-9)
    np.testing.assert_allclose(drawn.std(axis=0), place.sds, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.float64_only
def test_a_structure_that_changes_is_found_again_where_q_is(key):
    dimension = 1_010
    result = curvi.fit(switched, jnp.zeros(dimension), progress=False, seed=seed_of(key))
    assert "sparse precision once more" in [rung.name for rung in result.rungs]
    assert result.warnings == ()
    np.testing.assert_allclose(result.sd, exact_sds(dimension), rtol=0.01)
    np.testing.assert_allclose(result.mean, LEVEL, atol=0.02)


def weak_groups(y):
    """Logistic rows with an intercept for every group, three rows each: prior and data are even."""

    def log_density(p):
        logits = p["effect"][:, None]
        likelihood = jnp.sum(y * logits - jnp.logaddexp(0.0, logits))
        scaled = p["effect"] * jnp.exp(-p["log_sd"])
        prior = -0.5 * jnp.sum(scaled**2) - len(y) * p["log_sd"]
        return likelihood + prior - 0.5 * p["log_sd"] ** 2

    return curvi.Target(log_density, {"effect": jnp.zeros(len(y)), "log_sd": jnp.zeros(())})


@pytest.mark.float64_only
def test_locals_that_follow_a_weakly_known_scale_end_where_their_conditions_hold(rng):
    fixed = np.random.default_rng(0)
    y = fixed.logistic(size=(80, 3)) < 0.5 * fixed.normal(size=(80, 1))
    target = weak_groups(jnp.asarray(y, float))
    family = sparse_family(target)
    start = SparseMap.of(family, family.init(target.start, jnp.asarray(0.3)))
    curvature = Curvature(target.density, target.rows, start.structure)
    following = Following(BatchedDensity.of(target), curvature, start, rng)
    _, gained = following.run()
    assert gained > 0
    assert following._step(0.0)[1] < 0.25  # sds of the dense block, or relative curvature
