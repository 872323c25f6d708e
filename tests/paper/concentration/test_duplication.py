r"""The duplication lemma: ``E phi(f - E f) <= E phi((pi / 2) <grad f, eta>)`` for any convex phi.

In one dimension both sides are integrals over a grid. Every convex function is a line plus a
mixture of hinges, and lines add nothing, so random mixtures of hinges stand for all of them.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

pytestmark = pytest.mark.float64_only

NODES = np.linspace(-8, 8, 641)
WEIGHTS = stats.norm.pdf(NODES) * (NODES[1] - NODES[0])
FUNCTIONS = {
    "linear": (lambda e: e, np.ones_like),
    "absolute value": (np.abs, np.sign),
    "tanh": (lambda e: np.tanh(3 * e), lambda e: 3 / np.cosh(3 * e) ** 2),
    "square": (lambda e: e**2, lambda e: 2 * e),
    "sine": (lambda e: np.sin(2 * e), lambda e: 2 * np.cos(2 * e)),
    "step, smoothed": (lambda e: 1 / (1 + np.exp(-20 * e)), lambda e: 5 / np.cosh(10 * e) ** 2),
}
NUMBERS = st.floats(-4, 4)


def sides(name, phi, constant=math.pi / 2):
    """Both expectations, over eps, and over eps and eta."""
    function, slope = FUNCTIONS[name]
    values = function(NODES)
    left = WEIGHTS @ phi(values - WEIGHTS @ values)
    right = WEIGHTS @ phi(constant * np.outer(slope(NODES), NODES)) @ WEIGHTS
    return left, right


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.lists(st.tuples(NUMBERS, st.floats(0, 3)), min_size=1, max_size=4),
)
def test_the_duplication_lemma_holds_for_every_mixture_of_hinges(name, hinges):
    def phi(x):
        return sum(height * np.maximum(x - place, 0.0) for place, height in hinges)

    left, right = sides(name, phi)
    assert left <= right + 1e-3 * (1 + abs(right))  # the error of the grid at the kinks


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "phi", [np.square, np.abs, np.cosh, lambda x: np.exp(0.3 * x), lambda x: x**4]
)
def test_the_duplication_lemma_holds_for_moments_and_exponentials(name, phi):
    left, right = sides(name, phi)
    assert left <= right * (1 + 1e-6) + 1e-9


def test_the_lemma_would_not_hold_with_a_smaller_constant_than_one():
    """A linear function has both sides equal with the constant one: below, it is broken."""
    left, right = sides("linear", np.square, constant=0.99)
    assert left > right
    for phi in (np.square, np.abs, np.cosh):
        np.testing.assert_allclose(*sides("linear", phi, constant=1.0), rtol=1e-6)
