"""What a Gaussian given theta misses: against brute-force quadrature, autodiff and long chains."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from curvi._core.quadrature import gauss_hermite
from curvi.latent import (
    Assembly,
    Gap,
    RandomWalk,
    Season,
    Trajectories,
    in_doubt,
    integrate,
    run_chains,
    skewed,
)
from curvi.latent._gap import drawn_in, excess
from curvi.latent._skewness import third_slopes
from curvi.likelihoods import likelihood_of
from tests.latent.models import (
    Levels,
    crossed_table,
    generator,
    site_model,
    walk_and_autoregression,
)
from tests.latent.test_sites import log_densities

pytestmark = pytest.mark.float64_only


def integrated(model):
    """Points of theta that the bound weighs, and the best q of each."""

    def evaluate(theta):
        fitted = model.fit(theta)
        return fitted.bound + model.assembly.log_prior(theta), fitted

    found = integrate(evaluate, model.assembly.start())
    return found.points, found.weights, found.kept


def weighted(weights, mean, variance):
    middle = weights @ mean
    return middle, np.sqrt(weights @ (variance + (mean - middle) ** 2))


class TwoEffects:
    """Two correlated effects, few counts or successes: all integrals on a grid."""

    def __init__(self, name, y):
        at = np.arange(len(y)) % 2
        self.likelihood = likelihood_of(name)
        walk = RandomWalk(at, first_sd=1.0)
        self.model = site_model(Assembly([walk]), self.likelihood, np.asarray(y, float))
        grid = np.linspace(-6, 6, 401)
        self.u = np.stack(np.meshgrid(grid, grid, indexing="ij"))
        self.cell = 2 * math.log(grid[1] - grid[0])
        rows = sum(
            self.likelihood.log_density(self.u[place], value)
            for place, value in zip(at, y, strict=True)
        )
        self.rows = rows + scipy.stats.norm.logpdf(self.u[0])

    def log_joint(self, log_sd):
        return self.rows + scipy.stats.norm.logpdf(self.u[1], self.u[0], math.exp(log_sd))

    def evidence(self, log_sd):
        return float(scipy.special.logsumexp(self.log_joint(log_sd)) + self.cell)

    def moments(self, log_sds, weights):
        """Of the effects, theta on points whose weights by the bound are given."""
        bound = self.model.fit(log_sds[:, None]).bound
        logs = [self.evidence(x) - b for x, b in zip(log_sds, bound, strict=True)]
        weights = scipy.special.softmax(np.log(weights) + logs)
        joint = sum(
            w * np.exp(self.log_joint(x) + self.cell - self.evidence(x))
            for x, w in zip(log_sds, weights, strict=True)
        )
        mean = (joint * self.u).sum(axis=(1, 2))
        centred = self.u - mean[:, None, None]
        return weights, mean, (joint * centred**2).sum(axis=(1, 2))


COUNTS = [("poisson", [0, 2, 1, 4]), ("bernoulli", [1, 0, 1, 1, 1, 0])]


@pytest.mark.parametrize(("name", "y"), COUNTS)
def test_the_gap_is_half_the_variance_and_most_of_what_the_bound_misses(name, y):
    case = TwoEffects(name, y)
    theta = np.log([[0.4], [0.9], [1.5]])
    fitted = case.model.fit(theta)
    found, *halves = Gap(draws=400_000, reach=np.inf).terms(case.model, theta, fitted)
    thirds = np.zeros(len(theta))
    nodes, weights = gauss_hermite(40)
    x = np.stack(np.meshgrid(nodes, nodes, indexing="ij")).reshape(1, 2, -1)
    product = np.outer(weights, weights).ravel()
    for k in range(len(theta)):
        some = slice(k, k + 1)
        u = case.model.draw(theta[some], fitted.at(some), x)[0]
        predictors = (case.model.assembly.A @ u)[None]
        g = excess(case.model, theta[some], fitted.at(some), predictors)[0][0]
        assert found[k] == pytest.approx(0.5 * product @ (g - product @ g) ** 2, rel=0.1)
        thirds[k] = product @ (g - product @ g) ** 3 / 6
        missing = case.evidence(theta[k, 0]) - fitted.bound[k]
        assert abs(missing - found[k]) < 0.3 * missing
        assert missing == pytest.approx(math.log(product @ np.exp(g - product @ g)), abs=1e-4)
    np.testing.assert_allclose(np.mean(halves, axis=0), thirds, atol=0.15 * np.abs(thirds).max())
    even = np.full(len(theta), 1 / len(theta))
    assert in_doubt(even, np.asarray(halves)) == pytest.approx(thirds.std(), rel=0.2)


def test_the_gap_of_counts_in_the_millions_is_no_rounding(key):
    """Rows and sites are of 1e9 nats each, and what they differ by is of 1e-5."""
    rng = generator(key)
    y = rng.poisson(1e7 * np.exp(np.cumsum(0.05 * rng.standard_normal(60))))
    walk = Assembly([RandomWalk(np.arange(60), first_sd=10.0)])
    model = site_model(walk, likelihood_of("poisson"), y, offset=np.log(1e7))
    theta = np.log([[0.04], [0.05], [0.06]])
    fitted = model.fit(theta)
    # A Poisson row has third derivative y, and its predictor about the variance 1 / y.
    wanted = (y[None] ** 2 * fitted.variance**3).sum(axis=1) / 12
    np.testing.assert_allclose(Gap()(model, theta, fitted), wanted, rtol=0.3)


def test_the_gap_of_rows_in_parts_is_that_of_all(key):
    rng = generator(key)
    model = walk_and_autoregression("poisson", rng)
    theta = model.assembly.start()[None]
    fitted = model.fit(theta)
    few = Gap(numbers_at_once=512 * 7)
    assert few(model, theta, fitted) == pytest.approx(Gap()(model, theta, fitted), rel=1e-9)


@pytest.mark.parametrize("name", ["bernoulli", "student-t", "poisson"])
def test_the_slopes_of_rows_minus_sites_are_those_of_autodiff(name, key):
    rng = generator(key)
    model = walk_and_autoregression(name, rng)  # one row has no response
    extras = len(model.assembly.extras)
    theta = np.concatenate([[-0.4, 0.2, 0.5], np.log([0.6, 4.0][:extras])])[None]
    fitted = model.fit(theta)
    predictors = rng.normal(size=(1, len(model.y), 2))
    value, slope = excess(model, theta, fitted, predictors)
    seen, log_density = np.isfinite(model.y), log_densities(name)

    def g(t):
        sites = t * (fitted.linear[0] - 0.5 * fitted.precision[0] * t)
        rows = log_density((t + model.offset)[seen], model.y[seen], np.exp(theta[0, 3:]))
        return rows.sum() - sites[seen].sum()

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for k in range(2):
            expected, slopes = jax.value_and_grad(g)(jnp.asarray(predictors[0, :, k]))
            assert value[0, k] == pytest.approx(float(expected), abs=1e-9)
            np.testing.assert_allclose(slope[0, :, k], slopes, atol=1e-9)


def test_gaussian_responses_need_no_correction(key):
    """Every move is accepted, and the moments are those of q to rounding."""
    model = walk_and_autoregression("gaussian", generator(key))
    theta = np.asarray([[-0.3, 0.1, 0.6, -0.5], [0.5, -1.0, -0.2, 0.3], [0.0, 0.0, 0.2, -0.1]])
    fitted = model.completed(theta, model.fit(theta))
    weights = np.asarray([0.2, 0.5, 0.3])
    gaps = Gap()(model, theta, fitted)
    assert (gaps == 0).all()
    chains = run_chains(model, theta, weights, fitted, gaps, rule=Trajectories(chains=3, draws=4))
    effects = model.effects(theta, fitted)
    mean, sd = weighted(weights, effects.mean, effects.variance)
    assert chains.accepted == (1.0, 1.0)
    np.testing.assert_allclose(chains.weights, weights, atol=1e-12)
    np.testing.assert_allclose(chains.moments.mean, mean, atol=1e-10)
    np.testing.assert_allclose(chains.moments.variance, sd**2, rtol=1e-10)
    np.testing.assert_allclose(chains.moved, 0.0, atol=1e-9)
    drawn = model.draw(theta, fitted, np.ones((1, model.assembly.size, 1)))
    np.testing.assert_allclose(skewed(model, theta, fitted, drawn), drawn, atol=1e-10)


@pytest.mark.parametrize(("name", "y"), COUNTS)
def test_chains_have_the_moments_of_brute_force_quadrature(name, y):
    """Hyperparameters and effects, although q is wide and the responses are few."""
    case = TwoEffects(name, y)
    theta = np.log([[0.2], [0.4], [0.8], [1.2], [1.6]])
    fitted = case.model.fit(theta)
    weights = scipy.special.softmax(fitted.bound + case.model.assembly.log_prior(theta))
    exact, mean, variance = case.moments(theta[:, 0], weights)
    gaps = Gap()(case.model, theta, fitted)
    rule = Trajectories(chains=64, draws=150)
    found = run_chains(case.model, theta, weights, fitted, gaps, rule=rule, seed=2)
    sd = np.sqrt(variance)
    np.testing.assert_allclose(found.moments.mean, mean, atol=5 * found.error.max())
    assert (found.error < 0.01 * sd).all()
    np.testing.assert_allclose(found.moments.variance, variance, rtol=0.04)
    drawn = found.effects.reshape(-1, 2)
    assert (np.abs(drawn.mean(axis=0) - mean) < 0.06 * sd).all()
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.08)
    centre = exact @ theta
    spread = np.sqrt(exact @ (theta - centre) ** 2)
    assert (np.abs(found.weights @ theta - centre) < 0.02 * spread).all()
    corrected = scipy.special.softmax(np.log(weights) + gaps)
    before, after = (np.abs((w - exact) @ theta) / spread for w in (weights, corrected))
    assert (after < 0.5 * before).all()


def test_weights_of_hyperparameters_of_a_crossed_table_allow_for_the_gap(key):
    """The bound favours small sds of groups; its gap says by how much, and chains agree."""
    model = crossed_table(generator(key), 40, 25, 0.25, sds=(2.0, 1.5))
    theta, weights, fitted = integrated(model)
    gaps = Gap()(model, theta, fitted)
    rule = Trajectories(chains=48, draws=80)
    chains = run_chains(model, theta, weights, fitted, gaps, rule=rule)
    centre = chains.weights @ theta
    sd = np.sqrt(chains.weights @ (theta - centre) ** 2)
    allowed = scipy.special.softmax(np.log(weights) + gaps)
    plain, corrected = ((centre - w @ theta) / sd for w in (weights, allowed))
    assert (np.abs(corrected) < 0.1).all()
    assert plain.sum() > 0
    assert np.linalg.norm(corrected) < 0.7 * np.linalg.norm(plain)
    effects = model.effects(theta, fitted)
    mean, spread = weighted(allowed, effects.mean, effects.variance)
    assert (np.abs(chains.moments.mean - mean) / spread < 0.1).all()
    ratio = np.sqrt(chains.moments.variance) / spread
    assert ratio.min() > 0.9
    assert ratio.max() < 1.1
    assert chains.accepted[0] > 0.8
    assert f"{np.abs(chains.moved).max():.2g} sd" in chains.verdict


def test_chains_keep_constraints_and_repeat_with_a_seed(key):
    rng = generator(key)
    y = rng.poisson(1.5, size=9).astype(float)
    y[[2, 5]] = np.nan
    assembly = Assembly([RandomWalk(np.arange(9), "walk"), Season(np.arange(9), 3)])
    model = site_model(assembly, likelihood_of("poisson"), y)
    theta = np.asarray([[-0.3, -1.0], [0.2, -0.5]])
    fitted, weights = model.fit(theta), np.asarray([0.6, 0.4])
    gaps = Gap()(model, theta, fitted)
    rule = Trajectories(chains=4, draws=5)
    runs = [run_chains(model, theta, weights, fitted, gaps, rule=rule, seed=s) for s in (1, 1, 2)]
    np.testing.assert_allclose(runs[0].effects[..., :9].sum(axis=-1), 0.0, atol=1e-9)
    np.testing.assert_array_equal(runs[0].effects, runs[1].effects)
    assert not np.array_equal(runs[0].effects, runs[2].effects)
    apart = Trajectories(chains=4, draws=5, copied=0.0)  # point by point, not side by side
    one_by_one = run_chains(model, theta, weights, fitted, gaps, rule=apart, seed=1)
    np.testing.assert_allclose(one_by_one.effects, runs[0].effects, atol=1e-9)
    np.testing.assert_array_equal(one_by_one.point, runs[0].point)


def test_kicks_are_doubled_where_trajectories_are_rejected():
    """A walk of large steps behind counts, many of them zero: a wall on one side."""
    rng = np.random.default_rng(0)
    y = rng.poisson(np.exp(np.cumsum(rng.normal(size=60)))).astype(float)
    walk = RandomWalk(np.arange(60), first_sd=2.0)
    model = site_model(Assembly([walk]), likelihood_of("poisson"), y)
    theta, one = np.asarray([[0.5]]), np.ones(1)
    fitted = model.fit(theta)
    accepted = [
        run_chains(
            model, theta, one, fitted, 0 * one,
            rule=Trajectories(kicks=1, warm_up=20, doublings=doublings),
        ).accepted[0]
        for doublings in (0, 5)
    ]  # fmt: skip
    assert accepted[0] < 0.8
    assert accepted[1] > 0.9


def test_what_was_left_out_or_not_accepted_is_said(key):
    model = crossed_table(generator(key), 12, 8, 0.5)
    theta, weights, fitted = integrated(model)
    one = Trajectories(chains=2, draws=3, numbers_at_once=3 * model.assembly.pattern.numbers)
    gaps = np.zeros(len(theta))
    found = run_chains(model, theta, weights, fitted, gaps, rule=one)
    assert found.covered == pytest.approx(np.sort(weights)[-3:].sum())
    assert set(np.flatnonzero(found.weights)) <= set(np.argsort(-weights)[:3])
    assert f"{1 - found.covered:.0%} of the weight were left out" in found.verdict
    stuck = found._replace(accepted=(0.9, 0.1), covered=1.0)
    assert "may not have converged" in stuck.verdict
    assert "left out" not in stuck.verdict


@pytest.mark.parametrize("name", ["poisson", "bernoulli", "volatility"])
def test_third_slopes_are_those_of_autodiff(name, key):
    model = walk_and_autoregression(name, generator(key))
    theta = np.asarray([[-0.4, 0.2, 0.5]])
    fitted = model.fit(theta)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    log_density = log_densities(name)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        third = jax.vmap(jax.grad(jax.grad(jax.grad(log_density))), (0, None, None))
        for row in model.seen:
            t = fitted.mean[0, row] + np.sqrt(fitted.variance[0, row]) * nodes
            expected = third(jnp.asarray(t), model.y[row], jnp.zeros(2)) @ weights / weights.sum()
            got = third_slopes(model, theta, fitted)[0, row]
            assert got == pytest.approx(float(expected), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("counts", [[3, 2, 4], [12, 9]])
def test_moved_draws_have_the_skewness_of_the_posterior(counts):
    """One effect: the map at quadrature nodes, against the posterior on a grid."""
    y = np.asarray(counts, float)
    levels = Levels(np.zeros(len(y), int), 1, "level", known_sd=2.0)
    model = site_model(Assembly([levels]), likelihood_of("poisson"), y)
    theta = np.zeros((1, 0))
    fitted = model.fit(theta)
    nodes, weights = gauss_hermite(40)
    drawn = model.draw(theta, fitted, nodes[None, None])
    moved = skewed(model, theta, fitted, drawn)[0, 0]
    grid = np.linspace(-4, 5, 4001)
    logs = scipy.stats.norm.logpdf(grid, 0, 2.0) + grid * y.sum() - len(y) * np.exp(grid)
    exact = scipy.special.softmax(logs)

    def shape(x, w):
        mean = w @ x
        sd = math.sqrt(w @ (x - mean) ** 2)
        return mean, sd, w @ (x - mean) ** 3 / sd**3

    mean, sd, skewness = shape(grid, exact)
    assert skewness < -0.2
    found = shape(moved, weights)
    assert found[2] == pytest.approx(skewness, rel=0.15)
    assert found[0] == pytest.approx(mean, abs=0.02 * sd)
    assert found[1] == pytest.approx(sd, rel=0.03)


def test_outliers_are_drawn_in(key):
    values = generator(key).normal(size=4000)
    assert drawn_in(values, 8.0) is not values
    np.testing.assert_array_equal(drawn_in(values, 8.0), values)
    values[7] = -1e6
    assert drawn_in(values, 4.0)[7] == pytest.approx(-4.0, abs=0.2)
