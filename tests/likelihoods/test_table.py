"""Every likelihood of the table against derivatives, integrals, and its own draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import curvi
from curvi.likelihoods import LIKELIHOODS, Extra, Likelihood, likelihood_of
from tests.mixed.tables import generator

pytestmark = pytest.mark.float64_only

KINDS = [(name, link) for name, kind in LIKELIHOODS.items() for link in kind.links]
REGRESSIONS = ("gaussian", "bernoulli", "poisson")
EXTRA = np.array([0.8, 5.0])  # residual sd or dispersion; degrees of freedom, or odds
NODES = np.linspace(-14, 14, 20001)
WEIGHTS = stats.norm.pdf(NODES) / stats.norm.pdf(NODES).sum()
each = pytest.mark.parametrize(("name", "link"), KINDS)


def case(key, name, link, count=40):
    """A likelihood, predictors, trials, and responses that it has drawn."""
    rng = generator(key)
    likelihood = likelihood_of(name, link)
    t = rng.standard_normal(count)
    trials = rng.integers(1, 9, count).astype(float) if likelihood.takes_trials else np.ones(count)
    y = np.asarray(likelihood.sample(t, trials, EXTRA, rng), float)
    return likelihood, t, y, trials, rng


@each
def test_slopes_are_derivatives(key, name, link):
    likelihood, t, y, trials, _ = case(key, name, link)
    step = 1e-5
    up, down = (likelihood.log_density(t + s, y, trials, EXTRA) for s in (step, -step))
    first, second = likelihood.slopes(t, y, trials, EXTRA)
    np.testing.assert_allclose(first, (up - down) / (2 * step), atol=2e-6, rtol=1e-6)
    above, below = (likelihood.slopes(t + s, y, trials, EXTRA)[0] for s in (step, -step))
    np.testing.assert_allclose(second, (above - below) / (2 * step), atol=2e-6, rtol=1e-6)


@each
def test_expectations_have_one_accuracy_at_any_variance(key, name, link):
    likelihood, m, y, trials, rng = case(key, name, link)
    v = np.exp(rng.uniform(-6, 2.5, m.size))
    t = m[:, None] + np.sqrt(v)[:, None] * NODES
    exact = likelihood.terms(t, y[:, None], trials[:, None], EXTRA)
    found = likelihood.expected(m, v, y, trials, EXTRA)
    scale = 1 + np.abs(y) + trials  # the size of what is averaged
    for mine, terms in zip(found, exact, strict=True):
        truth = terms @ WEIGHTS
        assert (np.abs(mine - truth) < 1e-8 * (scale + np.abs(truth))).all()


@each
def test_moments_of_the_mean_response_are_integrals(key, name, link):
    likelihood, m, _, trials, rng = case(key, name, link)
    v = np.exp(rng.uniform(-4, 1.5, m.size))
    values = likelihood.mean(m[:, None] + np.sqrt(v)[:, None] * NODES, trials[:, None])
    first, second = likelihood.moments(m, v, trials)
    np.testing.assert_allclose(first, values @ WEIGHTS, rtol=1e-8)
    np.testing.assert_allclose(second, values**2 @ WEIGHTS, rtol=2e-8)
    np.testing.assert_allclose(likelihood.expected_mean(m, v, trials), first, rtol=1e-12)


@each
def test_draws_have_the_mean_that_is_promised(key, name, link):
    likelihood, _, _, _, rng = case(key, name, link)
    count = 40_000
    t, trials = np.full(count, 0.4), np.full(count, 3.0 if likelihood.takes_trials else 1.0)
    y = likelihood.sample(t, trials, EXTRA, rng)
    if likelihood.of_scale:
        y = np.abs(y) / np.sqrt(2 / np.pi)
    # six standard errors: missed once in 5e8 runs
    expected = likelihood.mean(t + likelihood.mean_shift(EXTRA), trials)[0]
    assert abs(y.mean() - expected) < 6 * y.std() / np.sqrt(count)


@each
def test_log_densities_are_normalised(key, name, link):
    likelihood, t, _, _, _ = case(key, name, link, 5)
    trials = np.full((5, 1), 4.0 if likelihood.takes_trials else 1.0)
    if likelihood.whole_numbers:
        y = np.arange(2.0 if likelihood.binary else 5.0 if likelihood.takes_trials else 800.0)
        spacing = 1.0
    elif name == "beta":  # in logits, with their Jacobian; no float lies between one and 1 - 1e-16
        t, logits = -np.abs(t), np.linspace(-700, 36, 73_601)
        y = special.expit(logits)
        spacing = 1e-2 * y * special.expit(-logits)
    elif likelihood.positive:  # in logarithms
        y = np.exp(np.linspace(-40, 12, 52_001))
        spacing = 1e-3 * y
    else:
        y, spacing = np.linspace(-200, 200, 200_001), 2e-3
    mass = (np.exp(likelihood.log_density(t[:, None], y, trials, EXTRA)) * spacing).sum(axis=1)
    tail = 1e-9 if name != "student-t" else 1e-4  # beyond two hundred
    np.testing.assert_allclose(mass, 1, atol=tail)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_compiled_and_host_formulas_agree_and_differentiate(key, name):
    likelihood, m, y, _, rng = case(key, name, None)
    v = np.exp(rng.uniform(-3, 1.5, m.size))
    arguments = [jnp.asarray(x) for x in (m, v, y)]
    extra = jnp.asarray(EXTRA)

    @jax.jit
    def value(m, v):
        return likelihood.expected(m, v, arguments[2], 1.0, extra, orders=(0,))[0]

    host = likelihood.expected(m, v, y, 1.0, EXTRA)
    np.testing.assert_allclose(value(*arguments[:2]), host[0], atol=2e-9)
    by_mean, by_variance = jax.grad(lambda m, v: jnp.sum(value(m, v)), (0, 1))(*arguments[:2])
    np.testing.assert_allclose(by_mean, host[1], atol=1e-7, rtol=1e-7)
    np.testing.assert_allclose(by_variance, 0.5 * host[2], atol=1e-7, rtol=1e-7)
    again = likelihood.log_density(jnp.asarray(m), arguments[2], 1.0, extra)
    np.testing.assert_allclose(again, likelihood.log_density(m, y, 1.0, EXTRA), atol=1e-12)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_terms_of_a_row_are_slopes_in_mean_and_variance(key, name):
    likelihood, m, y, _, _ = case(key, name, None)
    v, step = np.full(m.shape, 0.7), 1e-4
    at = likelihood.row_terms(m, v, y)
    for place, moves in enumerate(((step, 0), (0, step))):
        up, down = (likelihood.row_terms(m + s * moves[0], v + s * moves[1], y) for s in (1, -1))
        for mine, name_of in zip((at[1 + place], at[3 + place]), ("value", "by_mean"), strict=True):
            slope = (getattr(up, name_of) - getattr(down, name_of)) / (2 * step)
            expected = np.zeros(m.shape) if mine is None else mine
            np.testing.assert_allclose(slope, expected, atol=1e-6, rtol=1e-6)


def test_labels_may_be_zero_and_one_or_minus_one_and_one():
    likelihood = likelihood_of("bernoulli")
    m, v, y = np.array([-3.0, 0.2, 40.0]), np.array([0.1, 2.0, 1.0]), np.array([0.0, 1.0, 1.0])
    for zero, signed in zip(
        likelihood.row_terms(m, v, y), likelihood.row_terms(m, v, 2 * y - 1), strict=True
    ):
        np.testing.assert_array_equal(zero, signed)
    assert -1e-16 < likelihood.row_terms(m, v, y).value[2] < 0  # no digits are lost


@pytest.mark.parametrize(
    ("name", "y", "trials", "sentence"),
    [
        ("poisson", [1, 2.5], 1, r"rate\[1\] is 2.5; likelihood='poisson' needs counts"),
        ("negative-binomial", [2, -1], 1, r"rate\[1\] is -1; .* needs counts"),
        ("bernoulli", [0, 1, 2], 1, r"rate\[2\] is 2; likelihood='bernoulli' needs 0 and 1"),
        ("binomial", [1, 5], [4, 4], r"rate\[1\] is 5; .* no more successes than trials"),
        ("beta-binomial", [1, 5], [4, 4], r"rate\[1\] is 5; .* no more successes than trials"),
        ("gamma", [1, 0], 1, r"rate\[1\] is 0; likelihood='gamma' needs positive numbers"),
        ("beta", [0.2, 1], 1, r"rate\[1\] is 1; .* between zero and one, without the ends"),
    ],
)
def test_responses_that_cannot_be_are_named(name, y, trials, sentence):
    with pytest.raises(curvi.InputError, match=sentence):
        likelihood_of(name).check(np.asarray(y, float), np.asarray(trials, float), "rate")
    missing = np.array([y[0], np.nan], float)  # which is not wrong
    likelihood_of(name).check(missing, np.asarray(trials, float))


def test_names_and_links_are_refused_with_those_that_there_are():
    with pytest.raises(curvi.InputError, match=r"'cauchy'; choose one of gaussian, student-t"):
        likelihood_of("cauchy")
    with pytest.raises(
        curvi.InputError, match=r"link is 'log'; bernoulli has logit, probit and cloglog"
    ):
        likelihood_of("bernoulli", "log")
    with pytest.raises(curvi.InputError, match="brings its own"):
        likelihood_of(likelihood_of("poisson"), "log")


def test_a_table_entry_says_which_hyperparameters_it_has():
    assert {name: len(kind.extras) for name, kind in LIKELIHOODS.items() if kind.extras} == {
        "gaussian": 1, "student-t": 2, "lognormal": 1, "gamma": 1, "weibull": 1, "beta": 1,
        "beta-binomial": 1, "negative-binomial": 1, "negative-binomial-1": 1,
        "zero-inflated-poisson": 1, "zero-inflated-negative-binomial": 2,
    }  # fmt: skip
    assert all(isinstance(e, Extra) for kind in LIKELIHOODS.values() for e in kind.extras)
    assert all(issubclass(kind, Likelihood) for kind in LIKELIHOODS.values())
