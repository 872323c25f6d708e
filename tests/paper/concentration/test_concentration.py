"""Theorem 2, its corollary and the lemma behind them, against Gaussian samples."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from curvi._core.errors import InputError
from curvi.objective import Draws
from curvi.paper import concentration
from tests.conftest import SEED
from tests.paper.concentration.functions import random_function

pytestmark = pytest.mark.float64_only
FUNCTIONS, DRAWS = 1000, 2000
SIGMAS = 7.0  # one-sided level 1e-12 per function, 1e-9 for a thousand
CONSTANTS = ("sharp", "paper")


def sigmas_above(values: np.ndarray, bound: float) -> float:
    """How many standard errors the sample variance lies above a bound."""
    centred = values - values.mean()
    square = centred**2
    error = square.std() / math.sqrt(values.size)
    return (square.mean() - bound) / max(error, 1e-300)


@pytest.fixture(scope="module")
def samples():
    """A thousand random Lipschitz functions of several dimensions, at draws of their own."""
    rng = np.random.default_rng(SEED)
    found = []
    for _ in range(FUNCTIONS):
        function, lipschitz, dimension = random_function(rng)
        values = function(rng.standard_normal((DRAWS, dimension)))
        found.append((values, lipschitz, dimension))
    return found


def test_no_function_varies_more_than_its_bound(samples):
    for values, lipschitz, dimension in samples:
        sharp = concentration.variance_bound(lipschitz)
        assert sigmas_above(values, sharp) < SIGMAS
        assert sharp <= concentration.variance_bound(lipschitz, constant="paper")
        assert concentration.variance_bound(
            lipschitz, constant="paper"
        ) <= concentration.loose_variance_bound(lipschitz, dimension)


def test_tails_are_no_heavier_than_their_bound(samples):
    level = 1e-12
    for values, lipschitz, _ in samples:
        means = values.reshape(-1, 4).mean(axis=1)
        # The centre is estimated from the same sample: allow for its error.
        slack = SIGMAS * lipschitz / math.sqrt(values.size)
        for error in (lipschitz, 1.5 * lipschitz):
            beyond = int(np.sum(np.abs(means - values.mean()) >= error + slack))
            probability = concentration.tail_bound(lipschitz, 4, error)
            assert stats.binom.sf(beyond - 1, means.size, probability) > level


def test_a_linear_function_attains_the_sharp_bound(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    slope = rng.normal(size=50)
    values = rng.standard_normal((200_000, 50)) @ slope
    assert abs(sigmas_above(values, concentration.variance_bound(np.linalg.norm(slope)))) < SIGMAS


@settings(max_examples=25)
@given(st.floats(1e-3, 1e3), st.floats(-3, 3))
def test_the_moment_bound_is_that_of_a_gaussian(lipschitz, rate):
    """``E exp(rate (f - E f))`` of a linear function, in closed form."""
    exact = math.exp(min(700.0, 0.5 * (rate * lipschitz) ** 2))
    if exact < 1e300:
        assert concentration.moment_bound(lipschitz, rate) == pytest.approx(exact)
    paper = concentration.moment_bound(lipschitz, rate, constant="paper")
    assert concentration.moment_bound(lipschitz, rate) <= paper


@settings(max_examples=25)
@given(
    st.floats(1e-3, 1e3),
    st.floats(1e-2, 10),
    st.floats(1e-6, 0.5),
    st.sampled_from(CONSTANTS),
)
def test_draws_needed_and_the_error_bound_are_inverses(lipschitz, share, probability, constant):
    error = share * lipschitz
    options = {"constant": constant}
    enough = concentration.draws_needed(lipschitz, error, probability, **options)
    assert concentration.error_bound(lipschitz, enough, probability, **options) <= error * (
        1 + 1e-12
    )
    assert concentration.tail_bound(lipschitz, enough, error, **options) <= probability * (1 + 1e-9)
    if enough > 1:
        assert concentration.error_bound(lipschitz, enough - 1, probability, **options) > error


def test_the_papers_constant_costs_a_quarter_of_pi_squared():
    ratio = concentration.variance_bound(3.0, constant="paper") / concentration.variance_bound(3.0)
    assert ratio == pytest.approx(math.pi**2 / 4)
    # The corollary as printed: 2 exp(-2 M t^2 / (pi^2 L^2)).
    printed = 2 * math.exp(-2 * 40 * 0.7**2 / (math.pi**2 * 1.5**2))
    assert concentration.tail_bound(1.5, 40, 0.7, constant="paper") == pytest.approx(printed)


def test_a_constant_function_needs_one_draw():
    assert concentration.variance_bound(0.0) == 0.0
    assert concentration.tail_bound(0.0, 1, 0.1) == 0.0
    assert concentration.draws_needed(0.0, 0.1, 0.05) == 1
    assert concentration.error_bound(0.0, 1, 0.05) == 0.0
    assert concentration.moment_bound(0.0, 2.0) == 1.0


def test_extreme_numbers_give_an_answer_or_a_sentence():
    assert concentration.variance_bound(1e200) == math.inf
    assert concentration.moment_bound(1.0, 1e200) == math.inf
    assert concentration.tail_bound(1e-200, 1, 1.0) == 0.0
    with pytest.raises(InputError, match="no representable"):
        concentration.draws_needed(1.0, 1e-200, 0.05)


def test_an_unbounded_slope_promises_nothing():
    assert concentration.variance_bound(math.inf) == math.inf
    assert concentration.tail_bound(math.inf, 10, 1.0) == 1.0
    assert concentration.error_bound(math.inf, 10, 0.1) == math.inf
    with pytest.raises(InputError, match="infinite"):
        concentration.draws_needed(math.inf, 0.1, 0.1)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: concentration.variance_bound(-1.0), "zero or positive"),
        (lambda: concentration.variance_bound(math.nan), "zero or positive"),
        (
            lambda: concentration.variance_bound(concentration.LipschitzEstimate(1.0, 8)),
            "not an upper bound",
        ),
        (lambda: concentration.variance_bound(1.0, constant="best"), "constant"),
        (lambda: concentration.loose_variance_bound(1.0, 0), "dimension"),
        (lambda: concentration.tail_bound(1.0, 0, 0.1), "num_draws"),
        (lambda: concentration.tail_bound(1.0, 1, math.nan), "error"),
        (lambda: concentration.draws_needed(1.0, 0.0, 0.1), "error"),
        (lambda: concentration.draws_needed(1.0, 0.1, 1.0), "probability"),
        (lambda: concentration.error_bound(1.0, 2, math.nan), "probability"),
        (lambda: concentration.moment_bound(1.0, math.inf), "rate"),
        (lambda: concentration.tail_bound(1.0, 4, 0.1, draws="whitened"), "independent"),
        (
            lambda: concentration.draws_needed(1.0, 0.1, 0.1, draws=Draws("antithetic", 4)),
            "independent",
        ),
    ],
)
def test_what_cannot_be_bounded_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
