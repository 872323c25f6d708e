"""Expectations of the logistic link agree with numerical integration and with each other."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from curvi.likelihoods import Bernoulli
from curvi.likelihoods._logistic import expected_log_sigmoid, log_sigmoid_expectations

MEANS = np.array([-8.0, -2.0, -0.3, 0.0, 0.7, 3.0, 12.0])
compiled_expectation = jax.jit(expected_log_sigmoid, static_argnums=0)
SDS = (0.01, 0.3, 0.99, 1.01, 2.0, 7.0, 30.0)


def derivative(order, t):
    q = special.expit(-t)
    slope = -q * (1 - q)
    if order == 0:
        return special.log_expit(t)
    return (q, slope, slope * (2 * q - 1), slope * (1 + 6 * slope))[order - 1]


def integral(order, mean, sd):
    """Split where the integrand bends, so that no bend is overlooked."""
    edges = sorted(
        {mean + sd * z for z in (-12, -6, -2, 0, 2, 6, 12)} | {-20.0, -3.0, 0.0, 3.0, 20.0}
    )
    edges = [e for e in edges if abs(e - mean) <= 12 * sd]
    density = stats.norm(mean, sd).pdf
    return sum(
        integrate.quad(lambda t: derivative(order, t) * density(t), a, b, epsabs=1e-13)[0]
        for a, b in itertools.pairwise(edges)
    )


@pytest.mark.float64_only
@pytest.mark.parametrize("sd", SDS)
def test_expected_log_sigmoid_and_its_derivatives_are_the_integrals(sd):
    truth = np.array([[integral(order, m, sd) for m in MEANS] for order in range(5)])
    variance = np.full(MEANS.shape, sd**2)
    host = log_sigmoid_expectations(MEANS, variance)
    compiled = [
        compiled_expectation(k, jnp.asarray(MEANS), jnp.asarray(variance)) for k in range(5)
    ]
    np.testing.assert_allclose(host, truth, atol=2e-7, rtol=1e-7)
    # The host takes fewer nodes where the variance is small: their error is below 1e-9.
    np.testing.assert_allclose(np.stack(compiled), host, atol=1e-9, rtol=0)


@pytest.mark.float64_only
def test_the_differentiation_rule_is_the_derivative():
    mean, variance = jnp.asarray(MEANS), jnp.asarray([0.1, 0.5, 2.0, 3.0, 0.9, 1.1, 20.0])

    @jax.jit
    def total(m, v):
        return jnp.sum(expected_log_sigmoid(0, m, v))

    step = 1e-5
    slope = jax.jit(jax.grad(total, argnums=1))(mean, variance)
    for row in range(7):
        bump = step * np.eye(7)[row]
        difference = (total(mean, variance + bump) - total(mean, variance - bump)) / (2 * step)
        np.testing.assert_allclose(slope[row], difference, atol=1e-7)


def test_the_expected_sigmoid_is_a_probability_and_symmetric():
    mean, variance = np.linspace(-40, 40, 81), np.linspace(0, 50, 81)
    up, down = (Bernoulli().expected_mean(sign * mean, variance) for sign in (1, -1))
    np.testing.assert_allclose(up + down, 1, atol=1e-9)
    assert ((up >= 0) & (up <= 1)).all()
