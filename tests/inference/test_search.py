"""Where other modes are looked for, and how many places that takes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import curvi
from curvi.inference.ladder._search import Search
from curvi.objective._batch import BatchedDensity
from tests.adversarial.posteriors import mixture

pytestmark = pytest.mark.float64_only


def test_directions_are_as_many_as_a_basin_needs_and_none_where_they_are_too_many(key):
    search, cheap = Search(), 10.0
    for dimension in (2, 3, 4, 5):
        count = search.num_directions(dimension, cheap)
        unit = np.eye(dimension)[0]
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        ways = rng.normal(size=(200, count, dimension))
        near = (ways @ unit) / np.linalg.norm(ways, axis=2) > np.cos(search.angle)
        # A share of 0.002 is missed: more than 10 of 200 has a probability below 1e-12.
        assert (~near.any(axis=1)).sum() <= 10
    assert search.num_directions(10, cheap) == 0
    assert search.num_directions(3, 1e12) == 0


def test_the_summary_says_where_other_modes_were_looked_for():
    def fitted(size):
        return curvi.fit(lambda z: -0.5 * (z**2).sum(), np.zeros(size), progress=False)

    assert "none found in any direction" in " ".join(str(fitted(3).summary()).split())
    assert "none found along coordinates" in " ".join(str(fitted(8).summary()).split())


def test_a_search_that_the_budget_ends_does_not_say_that_nothing_was_found():
    both = mixture("modes", "equal", np.array([[0.0, 0.0], [6.0, 0.0]]), [1, 0.3], [0.5, 0.5])
    found = curvi.fit(both.density, both.start, progress=False, max_steps=1)
    assert "search for other modes: ended early" in " ".join(str(found.summary()).split())


def test_draws_without_a_covariance_are_looked_around_along_coordinates(key):
    """No normal matches them, so that there are no shells of directions."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    draws = rng.normal(size=(400, 3)) * np.array([1.0, 1.0, 0.0])
    density = BatchedDensity.of(curvi.Target(lambda z: -0.5 * (z**2).sum(), np.zeros(3)))
    assert Search().standing_out(density, draws, rng).size == 0
    assert Search().extent(draws, density) == "along coordinates"


def test_places_of_a_narrow_mode_stand_out_of_their_shells(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    unit = rng.normal(size=4)
    unit /= np.linalg.norm(unit)
    one = mixture("modes", "narrow", np.stack([0 * unit, 6 * unit]), [1, 0.3], [0.3, 0.7])
    target = curvi.Target(one.density, one.start)
    draws = rng.normal(size=(400, 4))
    found = Search().standing_out(BatchedDensity.of(target), draws, rng)
    assert np.linalg.norm(found - 6 * unit, axis=1).min() < 1.8


def test_a_chain_that_strayed_into_a_mode_does_not_make_it_known(key):
    """A hundredth of the draws are there, where a third of the mass is."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    one = mixture("modes", "narrow", [[0.0], [6.0]], [1, 0.3], [0.7, 0.3])
    draws = np.concatenate([rng.normal(size=(990, 1)), 6 + 0.3 * rng.normal(size=(10, 1))])
    density = BatchedDensity.of(curvi.Target(one.density, one.start))
    (end,) = Search().ends(density, one.start, draws, 0.5, rng)
    assert abs(end.place[0] - 6) < 0.1
