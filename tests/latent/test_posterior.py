"""What comes after a fit: moments, quantiles, draws, new rows, densities of rows."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from curvi.latent import (
    Assembly,
    Autoregression,
    Fixed,
    Integration,
    LatentPosterior,
    RandomWalk,
)  # fmt: skip
from curvi.latent._mixtures import mixture_band, quantile
from curvi.likelihoods import likelihood_of
from tests.latent.models import RESPONSES, generator, site_model

pytestmark = pytest.mark.float64_only


def posterior_of(name, rng, rows=25):
    at = np.arange(rows)
    y = np.asarray(RESPONSES[name](rng, np.cos(at / 4)), float)
    y[4] = np.nan
    likelihood = likelihood_of(name)
    parts = [RandomWalk(at, first_sd=2.0), Fixed(rng.normal(size=(rows, 2)), "slopes")]
    assembly = Assembly(parts, likelihood.extras, likelihood.extra_start(y[np.isfinite(y)]))
    model = site_model(assembly, likelihood, y, 0.2, 4.0 if name == "binomial" else 1.0)
    return Integration()(model).posterior(model)


def test_quantiles_of_mixtures_are_roots_of_their_distribution_function(key):
    rng = generator(key)
    mean, sd = rng.normal(size=(7, 5)) * 3, rng.gamma(2.0, size=(7, 5))
    sd[:, 1] *= 1e-3  # steps between narrow parts
    weights = rng.dirichlet(np.ones(7))
    for p in (0.003, 0.4, 0.95):
        found = quantile(mean, sd, weights, p)
        for j in range(5):
            exact = scipy.optimize.brentq(
                lambda x, j=j, p=p: weights @ scipy.stats.norm.cdf(x, mean[:, j], sd[:, j]) - p,
                -60, 60, xtol=1e-12,
            )  # fmt: skip
            assert found[j] == pytest.approx(exact, abs=1e-8)


def test_a_certain_value_has_no_width():
    band = mixture_band(np.full((2, 1), 3.0), np.zeros((2, 1)), np.full(2, 0.5), 0.9)
    assert [float(part[0]) for part in band] == pytest.approx([3.0, 0.0, 3.0, 3.0], abs=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "negative-binomial", "binomial"])
def test_draws_have_the_moments_that_are_stated(name, key):
    rng = generator(key)
    posterior = posterior_of(name, rng)
    draws = posterior.draw(20_000, rng)
    for drawn, band in (
        (draws.effects, posterior.effects()),
        (draws.predictors, posterior.predictors()),
    ):
        error = 6 * band.sd / np.sqrt(len(drawn))
        assert (np.abs(drawn.mean(axis=0) - band.mean) < error).all()
        np.testing.assert_allclose(drawn.std(axis=0), band.sd, rtol=0.06)
        inside = ((drawn > band.lower) & (drawn < band.upper)).mean(axis=0)
        np.testing.assert_allclose(inside, 0.9, atol=0.02)
    natural = posterior.model.assembly.natural(draws.theta)
    for place, (mean, sd) in posterior.hyperparameters().items():
        assert abs(natural[place].mean() - mean) < 6 * sd / np.sqrt(20_000)
        low, high = posterior.hyperparameter_interval(place, 0.9)
        assert low < mean < high
    responses = posterior.responses(draws, rng)
    expected = posterior.predictors(response=True).mean
    error = 6 * responses.std(axis=0) / np.sqrt(len(responses))
    assert (np.abs(responses.mean(axis=0) - expected) < error).all()


def test_densities_of_rows_are_those_of_their_draws(key):
    rng = generator(key)
    posterior = posterior_of("gaussian", rng)
    draws = posterior.draw(50, rng)
    found = posterior.log_likelihood(draws)
    noise = np.exp(draws.theta[:, -1:])
    expected = scipy.stats.norm.logpdf(posterior.model.y, draws.predictors, noise)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    assert np.isnan(found[:, 4]).all()


def test_new_rows_are_those_of_dense_algebra(key):
    """Rows that were not fitted, and steps after the last one."""
    rng = generator(key)
    X, new = rng.normal(size=(20, 2)), rng.normal(size=(5, 2))
    y = rng.normal(size=20)
    likelihood = likelihood_of("gaussian")
    steps = np.arange(20)
    parts = [Autoregression(steps), Fixed(X)]
    model = site_model(Assembly(parts, likelihood.extras, [1.0]), likelihood, y, 0.5)
    theta = np.asarray([[-0.2, 0.8, -0.4]])
    posterior = LatentPosterior(model, theta, np.ones(1), model.fit(theta))
    later = np.arange(25)
    longer = posterior.extended(
        [Autoregression(later), parts[1].with_rows(parts[1].columns_for(new))],
        np.full(5, 0.7), np.ones(5),
    )  # fmt: skip
    phi = np.tanh(0.8)
    lag = np.abs(np.subtract.outer(later, later))
    both = np.concatenate([X, new])
    prior = np.exp(-0.4) / (1 - phi**2) * phi**lag + both @ both.T
    total = prior[:20, :20] + np.exp(-0.8) * np.eye(20)
    gain = np.linalg.solve(total, prior[:20]).T
    band = longer.predictors(slice(20, None))
    np.testing.assert_allclose(band.mean, 0.7 + (gain @ (y - 0.5))[20:], atol=1e-10)
    variance = np.diag(prior - gain @ prior[:20])
    np.testing.assert_allclose(band.sd, np.sqrt(variance[20:]), rtol=1e-9)
    np.testing.assert_allclose(
        longer.predictors(slice(20)).mean, posterior.predictors().mean, atol=1e-10
    )
    assert posterior.consistent()
    moved = posterior.fitted._replace(mean=posterior.fitted.mean + 1.0)
    assert not LatentPosterior(model, theta, np.ones(1), moved).consistent()
