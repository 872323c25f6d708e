"""The best Gaussian given hyperparameters: against dense algebra, quadrature and autodiff."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import curvi
from curvi.latent import Assembly, Iteration, LocalTrend, RandomWalk, Season, SiteModel
from curvi.likelihoods import likelihood_of
from tests.families.kalman import LinearGaussian, smoothed
from tests.latent.models import (
    RESPONSES,
    dense_prior,
    generator,
    site_model,
    walk_and_autoregression,
)

pytestmark = pytest.mark.float64_only


def covariance_of_rows(model, theta):
    """Prior covariance of the predictors, by inversion of the dense precision."""
    assembly = model.assembly
    values = assembly.precision(theta).values
    A = assembly.A.toarray()
    return A @ np.linalg.inv(assembly.pattern.dense(values)[0]) @ A.T


def test_gaussian_responses_have_the_evidence_and_the_moments_of_dense_algebra(key):
    rng = generator(key)
    model = walk_and_autoregression("gaussian", rng)
    theta = np.asarray([[-0.3, 0.1, 0.6, -0.5], [0.5, -1.0, -0.2, 0.3]])
    fitted = model.completed(theta, model.fit(theta))
    seen, y = np.isfinite(model.y), model.y - model.offset
    for k, point in enumerate(theta):
        prior = covariance_of_rows(model, point[None])
        noise = math.exp(2 * point[3])
        total = prior[np.ix_(seen, seen)] + noise * np.eye(seen.sum())
        evidence = scipy.stats.multivariate_normal(np.zeros(seen.sum()), total).logpdf(y[seen])
        gain = np.linalg.solve(total, prior[seen]).T
        assert fitted.bound[k] == pytest.approx(evidence, abs=1e-8)
        np.testing.assert_allclose(fitted.mean[k] - model.offset, gain @ y[seen], atol=1e-8)
        variance = np.diag(prior - gain @ prior[seen])
        np.testing.assert_allclose(fitted.variance[k], variance, rtol=1e-8)


def test_a_local_trend_is_the_kalman_smoother(key):
    rng = generator(key)
    y = np.cumsum(rng.normal(size=40)) + rng.normal(size=40)
    y[[0, 7, 8, 9, 39]] = np.nan
    trend = LocalTrend(np.arange(40), first_sds=(15.0, 1.5))
    likelihood = likelihood_of("gaussian")
    model = site_model(Assembly([trend], likelihood.extras, [1.0]), likelihood, y, 0.3)
    theta = 0.5 * rng.normal(size=(3, 3))
    fitted = model.completed(theta, model.fit(theta))
    for k, (level, slope, noise) in enumerate(np.exp(theta)):
        oracle = LinearGaussian(
            transition=np.asarray([[1.0, 1.0], [0.0, 1.0]]),
            process=np.diag([level**2, slope**2]),
            emission=np.asarray([[1.0, 0.0]]),
            noise=np.asarray([[noise**2]]),
            start=np.diag([15.0**2, 1.5**2]),
        )
        means, covariances, evidence = smoothed(oracle, (y - 0.3)[:, None])
        assert fitted.bound[k] == pytest.approx(evidence, abs=1e-8)
        np.testing.assert_allclose(fitted.mean[k], means[:, 0] + 0.3, atol=1e-8)
        np.testing.assert_allclose(fitted.variance[k], covariances[:, 0, 0], rtol=1e-8)
        effects = model.effects(theta[k : k + 1], fitted.at(slice(k, k + 1)))
        np.testing.assert_allclose(effects.mean[0].reshape(-1, 2), means, atol=1e-8)
        diagonal = np.diagonal(covariances, axis1=1, axis2=2)
        np.testing.assert_allclose(effects.variance[0].reshape(-1, 2), diagonal, rtol=1e-7)


@pytest.mark.parametrize("name", RESPONSES)
def test_bound_and_gradient_are_those_of_a_dense_implementation(name, key):
    """At the best q nothing is gained by moving it: the derivatives in m and S vanish."""
    model = walk_and_autoregression(name, generator(key))
    assembly, extras = model.assembly, len(model.assembly.extras)
    theta = np.concatenate([[-0.4, 0.2, 0.5], np.log([0.6, 4.0][:extras])])
    fitted = model.fit(theta[None])
    values = assembly.precision(theta[None]).values + assembly.products.gram(fitted.precision)
    spread = np.linalg.inv(assembly.pattern.dense(values)[0])
    effects = spread @ (assembly.A.T @ fitted.linear[0])
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    A, seen = assembly.A.toarray(), np.isfinite(model.y)
    size = assembly.size // 2
    log_density = log_densities(name)

    def bound(theta, mean, covariance):
        Q = dense_prior(theta, size)
        row_mean = A @ mean + model.offset
        row_sd = jnp.sqrt(jnp.einsum("ij,jk,ik->i", A, covariance, A))
        t = row_mean[:, None] + row_sd[:, None] * nodes
        rows = log_density(t[seen], model.y[seen][:, None], jnp.exp(theta[3:])) @ weights
        divergence = jnp.trace(Q @ covariance) + mean @ Q @ mean - assembly.size
        log_dets = jnp.linalg.slogdet(Q)[1] + jnp.linalg.slogdet(covariance)[1]
        return rows.sum() - 0.5 * (divergence - log_dets)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        value, slopes = jax.value_and_grad(bound, (0, 1, 2))(theta, effects, spread)
    assert fitted.bound[0] == pytest.approx(float(value), abs=1e-7)
    np.testing.assert_allclose(model.gradient(theta[None], fitted)[0], slopes[0], atol=1e-5)
    np.testing.assert_allclose(slopes[1] * np.sqrt(np.diag(spread)), 0.0, atol=1e-5)
    np.testing.assert_allclose(slopes[2] * spread, 0.0, atol=1e-5)


def log_densities(name):
    """Of a response given its predictor, for jax, without the table of the house."""
    ln, lgamma = jnp.log, jax.scipy.special.gammaln
    normal = 0.5 * math.log(2 * math.pi)

    def student(t, y, extra):
        sd, df = extra
        constant = lgamma(0.5 * (df + 1)) - lgamma(0.5 * df) - 0.5 * ln(df * math.pi) - ln(sd)
        return constant - 0.5 * (df + 1) * jnp.log1p(((y - t) / sd) ** 2 / df)

    def negative_binomial(t, y, extra):
        size = extra[0] ** -2.0
        constant = lgamma(y + size) - lgamma(size) - lgamma(y + 1)
        return constant + y * (t - ln(size)) - (y + size) * jnp.logaddexp(0.0, t - ln(size))

    def gamma(t, y, extra):
        shape = extra[0] ** -2.0
        return (
            shape * ln(shape) - lgamma(shape) + (shape - 1) * ln(y) - shape * (t + y * jnp.exp(-t))
        )

    return {
        "gaussian": lambda t, y, e: -0.5 * ((y - t) / e[0]) ** 2 - ln(e[0]) - normal,
        "student-t": student,
        "poisson": lambda t, y, e: y * t - jnp.exp(t) - lgamma(y + 1),
        "bernoulli": lambda t, y, e: y * t - jnp.logaddexp(0.0, t),
        "binomial": lambda t, y, e: (
            y * t - 4 * jnp.logaddexp(0.0, t) + math.log(24) - lgamma(y + 1) - lgamma(5 - y)
        ),
        "negative-binomial": negative_binomial,
        "gamma": gamma,
        "volatility": lambda t, y, e: -normal - 0.5 * (t + y**2 * jnp.exp(-t)),
    }[name]


@pytest.mark.parametrize("name", ["poisson", "student-t"])
def test_points_side_by_side_are_those_one_by_one(name, key):
    """In any order, from anywhere; a batch goes on with the points that have not converged."""
    rng = generator(key)
    model = walk_and_autoregression(name, rng)
    theta = rng.normal(size=(6, model.assembly.dimension)) * 0.5
    together = model.fit(theta)
    nearby = model.fit(theta, (together.precision + 0.1, together.linear - 0.2))
    for k in range(len(theta)):
        alone = model.fit(theta[k : k + 1])
        for found in (together, nearby):
            assert found.bound[k] == pytest.approx(alone.bound[0], abs=1e-7)
            np.testing.assert_allclose(found.mean[k], alone.mean[0], atol=1e-4)
    parts = SiteModel(
        model.assembly, model.likelihood, model.y, model.offset, model.trials,
        type(model.iteration)(numbers_at_once=1.0),
    )  # fmt: skip
    np.testing.assert_allclose(parts.fit(theta).bound, together.bound, atol=1e-7)


def test_outliers_of_student_noise_do_not_lower_the_bound(key):
    """Far out the curvature has the wrong sign: weights become negative, the precision does not."""
    rng = generator(key)
    y = rng.normal(size=30)
    y[[4, 11, 12]] = [9.0, -12.0, 15.0]
    likelihood = likelihood_of("student-t")
    walk = RandomWalk(np.arange(30), first_sd=2.0)
    model = site_model(Assembly([walk], likelihood.extras, [1.0, 4.0]), likelihood, y)
    theta = np.log([[0.3, 0.7, 2.5], [0.05, 0.7, 4.0], [1.5, 0.4, 1.5]])
    fitted = model.fit(theta)
    assert np.isfinite(fitted.bound).all()
    assert (fitted.precision < 0).any()
    one = model.rows(theta, fitted.mean, fitted.variance)
    np.testing.assert_allclose(-one[2], fitted.precision, atol=1e-4)
    for k, point in enumerate(theta):  # no other Gaussian nearby is better
        factor = model.assembly.factor(
            model.assembly.precision(point[None]).values
            + model.assembly.products.gram(fitted.precision[k : k + 1])
        )
        assert np.isfinite(factor.log_det).all()


def test_a_likelihood_of_ones_own_is_fitted_like_that_of_the_table(key):
    rng = generator(key)
    y = rng.poisson(2.0, size=12).astype(float)
    own = curvi.Likelihood(
        lambda t, y: y * t - jnp.exp(t) - jax.scipy.special.gammaln(y + 1), name="counts"
    )
    theta = np.asarray([[-0.5]])
    bounds = []
    for likelihood in (own, likelihood_of("poisson")):
        walk = RandomWalk(np.arange(12), first_sd=2.0)
        bounds.append(site_model(Assembly([walk]), likelihood, y).fit(theta).bound[0])
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-6)


def test_a_small_posterior_agrees_with_brute_force_quadrature(key):
    """Two effects: the bound lies below the evidence, by little, and moments are near."""
    rng = generator(key)
    at = np.arange(40) % 2
    y = rng.poisson(np.exp(1.5 + 0.5 * at)).astype(float)
    walk = RandomWalk(at, first_sd=1.0)
    model = site_model(Assembly([walk]), likelihood_of("poisson"), y)
    theta = np.asarray([[math.log(0.7)]])
    fitted = model.fit(theta)
    grid = np.linspace(-2, 4, 1201)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    log_prior = scipy.stats.norm.logpdf(first) + scipy.stats.norm.logpdf(second, first, 0.7)
    t = np.stack([first, second])
    total = log_prior
    for place in (0, 1):
        counts = y[at == place]
        total = total + counts.sum() * t[place] - len(counts) * np.exp(t[place])
        total = total - scipy.special.gammaln(counts + 1).sum()
    evidence = scipy.special.logsumexp(total) + 2 * math.log(grid[1] - grid[0])
    weight = np.exp(total - scipy.special.logsumexp(total))
    assert evidence - 5e-3 < fitted.bound[0] < evidence + 1e-9
    effects = model.effects(theta, fitted)
    for place in (0, 1):
        mean = (weight * t[place]).sum()
        sd = math.sqrt((weight * (t[place] - mean) ** 2).sum())
        assert abs(effects.mean[0, place] - mean) < 0.01 * sd
        assert math.sqrt(effects.variance[0, place]) == pytest.approx(sd, rel=0.01)


@pytest.mark.parametrize("name", ["gaussian", "poisson"])
def test_draws_have_the_moments_of_the_effects_and_keep_constraints(name, key):
    rng = generator(key)
    walk = RandomWalk(np.arange(9), "walk")
    season = Season(np.arange(9), 3)
    likelihood = likelihood_of(name)
    y = np.asarray(RESPONSES[name](rng, rng.normal(size=9)), float)
    assembly = Assembly([walk, season], likelihood.extras, [1.0] * len(likelihood.extras))
    model = site_model(assembly, likelihood, y)
    theta = np.full((1, assembly.dimension), -0.3)
    fitted = model.fit(theta)
    effects = model.effects(theta, fitted)
    drawn = model.draw(theta, fitted, rng.normal(size=(1, assembly.size, 20_000)))[0]
    np.testing.assert_allclose(drawn[:9].sum(axis=0), 0.0, atol=1e-9)
    sd = np.sqrt(effects.variance[0])
    assert (np.abs(drawn.mean(axis=1) - effects.mean[0]) < 6 * sd / math.sqrt(20_000)).all()
    np.testing.assert_allclose(drawn.std(axis=1), sd, rtol=0.04)


def test_nothing_seen_leaves_the_prior():
    walk = RandomWalk(np.arange(4), first_sd=2.0)
    model = site_model(Assembly([walk]), likelihood_of("poisson"), np.full(4, np.nan))
    theta = np.asarray([[0.2]])
    fitted = model.fit(theta)
    assert fitted.bound[0] == pytest.approx(0.0, abs=1e-10)
    expected = 4.0 + math.exp(0.4) * np.arange(4)
    np.testing.assert_allclose(model.effects(theta, fitted).variance[0], expected, rtol=1e-10)


def test_a_fit_says_whether_its_sites_have_converged(key):
    model = walk_and_autoregression("poisson", generator(key))
    theta = np.zeros((2, model.assembly.dimension))
    assert model.converged(theta, model.fit(theta)).all()
    short = replace(model, iteration=Iteration(rounds=1))
    assert not short.converged(theta, short.fit(theta)).any()
