"""Intervals of summaries from few weighted points are those of the density that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from curvi.mixed._report import central_interval

pytestmark = pytest.mark.float64_only


@pytest.mark.parametrize(
    ("kind", "back", "forth"),
    [
        ("fixed effect", np.asarray, np.asarray),
        ("group sd", np.exp, np.log),
        ("correlation", np.tanh, np.arctanh),
    ],
)
@pytest.mark.parametrize("points", ["star", "lattice", "many"])
def test_intervals_of_a_normal_density_do_not_depend_on_its_points(kind, back, forth, points):
    mean, sd = 0.3, 0.5
    if points == "star":  # of two dimensions: centre and ends have the moments of a normal density
        x, weights = 1.1 * np.sqrt(2) * np.array([0, 1, -1, 0, 0]), np.full(5, 1 / (4 * 1.21))
        weights[0] = 1 - weights[1:].sum()
    elif points == "lattice":  # an sd and a quarter apart, and as many values as it has points
        x = np.repeat(np.arange(-4, 5), 9) * 1.25 + np.tile(np.arange(9), 9) * 1e-9
        weights = np.exp(-0.5 * x**2)
    else:
        x = special.ndtri((np.arange(2000) + 0.5) / 2000)
        weights = np.ones(2000)
    found = central_interval(kind, back(mean + sd * x), weights / weights.sum(), 0.9)
    wanted = mean + sd * special.ndtri([0.05, 0.95])
    np.testing.assert_allclose(forth(np.asarray(found)), wanted, atol=0.05 * sd)


def test_an_interval_of_one_value_is_that_value():
    assert central_interval("group sd", np.full(5, 2.0), np.full(5, 0.2), 0.9) == (2.0, 2.0)
