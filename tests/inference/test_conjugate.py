"""Fits against posteriors that are known in closed form."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from tests.solvers.problems import WIDTH, gaussian, generator, linear, seed_of

CORRELATED = np.array([[2.0, 0.9, 0.3], [0.9, 1.5, -0.4], [0.3, -0.4, 1.0]])
CENTRE = np.array([1.0, -2.0, 0.5])


def five_observations(position):
    """Five observations with mean 8 and unit noise; the prior is N(0, 100^2)."""
    return -0.5 * 5 * (8.0 - position) ** 2 - 0.5 * (position / 100.0) ** 2


def test_the_default_fit_of_a_conjugate_normal_is_right_and_silent(key, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = curvi.fit(five_observations, jnp.zeros((), dtype), seed=seed_of(key))
    assert result.converged
    assert result.outcome is curvi.Outcome.CONVERGED
    precision = 5 + 1e-4
    np.testing.assert_allclose(result.mean, 8.0, atol=0.01)
    np.testing.assert_allclose(result.sd, precision**-0.5, rtol=0.01)
    evidence = -0.5 * 5 * 64 + 0.5 * 40**2 / precision + 0.5 * np.log(2 * np.pi / precision)
    assert abs(result.elbo - evidence) < 6 * result.elbo_se + 1e-3


@pytest.mark.float64_only
def test_full_rank_is_exact_on_linear_regression(key, dtype):
    model = linear(generator(key))
    result = curvi.fit(model.target(dtype), family=curvi.FullRank(), seed=seed_of(key))
    assert result.converged
    sd = np.sqrt(np.diag(model.covariance))
    assert np.abs((result.mean - model.mean) / sd).max() < 1e-6
    relative = (np.asarray(result.covariance()) - model.covariance) / np.outer(sd, sd)
    assert np.abs(relative).max() < 1e-5


@pytest.mark.filterwarnings("ignore:q does not match")
def test_mean_field_variances_are_the_inverse_diagonal_of_the_precision(key, dtype):
    model = gaussian(CORRELATED, CENTRE)
    result = curvi.fit(model.target(dtype), family=curvi.MeanField(), seed=seed_of(key))
    assert result.converged
    tolerance = 1e-4 if dtype == jnp.float64 else 1e-2
    np.testing.assert_allclose(result.mean, model.mean, atol=tolerance)
    np.testing.assert_allclose(result.sd, np.diag(model.precision) ** -0.5, rtol=tolerance)
    np.testing.assert_allclose(result.covariance(), np.diag(np.asarray(result.sd) ** 2), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:q does not match")  # mean field of correlated coordinates
@pytest.mark.float64_only
def test_rescaling_the_coordinates_rescales_the_fit(key, dtype):
    """Metamorphic: features times s give coefficients, and sds, divided by s."""
    rng = generator(key)
    scales = 10.0 ** rng.uniform(0, 3, WIDTH)
    model = linear(rng)
    rescaled = type(model)(model.x * scales, model.y)
    options = {"seed": seed_of(key), "tolerance": 1e-12, "family": curvi.MeanField()}
    plain = curvi.fit(model.target(dtype), **options)
    other = curvi.fit(rescaled.target(dtype), **options)
    assert plain.converged
    assert other.converged
    # The prior, N(0, 100^2), is not rescaled, but it hardly matters.
    np.testing.assert_allclose(other.sd * scales, plain.sd, rtol=1e-2)
    assert np.abs((other.mean * scales - plain.mean) / plain.sd).max() < 1e-2
    for result, truth in ((plain, model), (other, rescaled)):
        np.testing.assert_allclose(result.sd, np.diag(truth.precision) ** -0.5, rtol=1e-5)
        assert np.abs((result.mean - truth.mean) / result.sd).max() < 1e-5


@pytest.mark.float64_only
def test_low_rank_finds_a_covariance_of_its_own_kind(key, dtype):
    factor = np.array([[1.0, 0.2], [-0.5, 1.0], [0.7, 0.4]])
    covariance = np.diag([0.3, 0.5, 0.4]) + factor @ factor.T
    model = gaussian(np.linalg.inv(covariance), CENTRE)
    result = curvi.fit(model.target(dtype), family=curvi.LowRank(2), seed=seed_of(key))
    assert result.converged
    np.testing.assert_allclose(result.covariance(), model.covariance, rtol=0.05, atol=0.01)
    assert abs(result.elbo - model.log_evidence) < 6 * result.elbo_se + 1e-3


@pytest.mark.float64_only  # in float32 one run in about a hundred stalls, and says so
def test_directions_that_do_not_matter_are_no_obstacle_to_convergence(key, dtype):
    """Rank 2 in three dimensions has more parameters than a covariance: the optimum is flat."""
    rng = generator(key)
    for _ in range(10):
        target = linear(rng).target(dtype)
        result = curvi.fit(
            target, family=curvi.LowRank(2), seed=int(rng.integers(2**31)), on_failure="return"
        )
        assert result.converged, result.message


@pytest.mark.float64_only
def test_the_student_bound_is_below_the_gaussian_one_on_a_gaussian_target(key, dtype):
    """The Gaussian is exact there; a t has to pay its divergence, and is centred all the same."""
    model = gaussian(np.diag([1.0, 4.0, 0.25]), CENTRE)
    result = curvi.fit(model.target(dtype), family=curvi.StudentT(5.0), seed=seed_of(key))
    assert result.converged
    np.testing.assert_allclose(result.mean, CENTRE, atol=0.01)
    assert model.log_evidence - 1 < result.elbo + 6 * result.elbo_se
    assert result.elbo < model.log_evidence + 6 * result.elbo_se
