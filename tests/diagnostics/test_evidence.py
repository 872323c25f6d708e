"""The log evidence against closed forms and quadrature."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import curvi
from curvi.diagnostics._evidence import by_bridge, by_importance
from tests.solvers.problems import generator

SQUARES = np.array([[2.0, 0.6], [0.6, 1.0]])
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def gaussian(z):
    return -0.5 * z @ jnp.asarray(SQUARES, z.dtype) @ z + 3.0


def schools(z):
    """Eight schools; the evidence follows from one integral over tau."""
    mu, log_tau, theta = z[0], z[1], z[2:]
    tau = jnp.exp(log_tau)
    prior = -0.5 * (mu / 5) ** 2 - jnp.log(5.0) - 0.5 * (tau / 5) ** 2 + log_tau
    prior += jnp.log(2.0) - jnp.log(5.0) - jnp.log(2 * jnp.pi)
    groups = -0.5 * ((theta - mu) / tau) ** 2 - log_tau
    rows = -0.5 * ((EFFECTS - theta) / ERRORS) ** 2 - jnp.log(jnp.asarray(ERRORS))
    return prior + jnp.sum(groups + rows) - 8 * jnp.log(2 * jnp.pi)


def evidence_of_schools():
    def given(tau):
        covariance = np.diag(ERRORS**2 + tau**2) + 25.0
        return stats.multivariate_normal(np.zeros(8), covariance).pdf(EFFECTS)

    def at(tau):
        return given(tau) * stats.halfnorm(scale=5).pdf(tau)

    return np.log(integrate.quad(at, 0, 60, epsabs=0, epsrel=1e-10)[0])


def test_the_evidence_of_a_gaussian_is_its_normalising_constant(dtype, key):
    result = curvi.fit(gaussian, jnp.zeros(2, dtype), progress=False)
    exact = 3.0 + np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(SQUARES)[1]
    assert result.log_evidence == pytest.approx(exact, abs=2e-3)
    assert result.log_evidence_se < 2e-3
    assert result.elbo <= result.log_evidence + 4 * result.elbo_se + 1e-3


@pytest.mark.float64_only
@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
def test_the_evidence_of_a_funnel_agrees_with_quadrature():
    result = curvi.fit(schools, jnp.zeros(10), progress=False)
    assert result.correction.kind == "hmc"
    assert 0 < result.log_evidence_se < 0.1
    assert abs(result.log_evidence - evidence_of_schools()) < 5 * result.log_evidence_se


@pytest.mark.float64_only
def test_the_errors_of_both_estimates_cover_the_truth(key):
    """p is N(0, 1) times e^2, q is N(0.5, 1.3); five errors over many sets of draws."""
    rng = generator(key)

    def log_ratio(z):
        return 2 + stats.norm.logpdf(z) - stats.norm.logpdf(z, 0.5, 1.3)

    off = []
    for _ in range(400):
        at_q, at_p = log_ratio(rng.normal(0.5, 1.3, 300)), log_ratio(rng.normal(0, 1, 200))
        off.append([
            (found.log - 2) / found.se
            for found in (by_importance(at_q), by_bridge(at_q, at_p, 200.0))
        ])  # fmt: skip
    spread = np.std(off, axis=0)
    assert np.all((spread > 0.8) & (spread < 1.25))


def test_ratios_that_are_all_equal_give_the_evidence_without_error():
    same = np.full(64, 1.5)
    for found in (by_importance(same), by_bridge(same, same, 30.0)):
        assert found.log == pytest.approx(1.5)
        assert found.se == pytest.approx(0.0, abs=1e-7)


def test_draws_outside_of_the_support_count_as_zero():
    half = np.where(np.arange(64) % 2 == 0, 1.0, -np.inf)
    assert by_importance(half).log == pytest.approx(1.0 + np.log(0.5))
    assert by_importance(half).se == pytest.approx(np.sqrt(1 / 64))
