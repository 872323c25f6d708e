"""Linear algebra, bounds, quadrature and marginal likelihoods against dense oracles."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from pandas import DataFrame, read_csv
from scipy import integrate, special, stats

from curvi.latent import Gap, Integration, SiteFit, white_points
from curvi.likelihoods import likelihood_of
from curvi.linalg._modes import find_mode
from curvi.mixed import MixedModel
from curvi.mixed._conditional import integrate as integrate_model
from curvi.mixed._design import merge_copies
from curvi.mixed._hyper import Block, Layout
from curvi.mixed._inference import GaussianMarginal, _hardly_known
from curvi.mixed._large import fit_large, model_of
from curvi.mixed._marginal import Marginal
from curvi.mixed._posterior import weighted_moments, weighted_quantile
from curvi.mixed._sums import Summed, sums_of
from curvi.mixed._system import condition, prior_of, remaining_columns, statistics, whitened
from curvi.mixed._variational import Problem, bound_and_slope, find_hyper, fit_effects
from tests.mixed.tables import generator, table

pytestmark = pytest.mark.float64_only


def crossed(key, likelihood="gaussian"):
    """A design with correlated slopes over one factor, crossed with another."""
    rng = generator(key)
    frame = table(rng, likelihood=likelihood, slope_sd=0.4)
    frame["h"] = rng.integers(0, 4, len(frame))
    model = MixedModel("y ~ x + (1 + x | g) + (1 | h)", likelihood=likelihood)
    return (*model.design(frame), frame, rng)


def dense(design, roots):
    """All columns of whitened effects, and the diagonal of the prior precision."""
    parts = [design.X]
    for factor, root in zip(
        (*design.factors[1:], design.factors[0]), (*roots[1:], roots[0]), strict=True
    ):
        wide = np.zeros((design.rows, factor.levels, factor.size))
        wide[np.arange(design.rows), factor.codes] = factor.columns @ root
        parts.append(wide.reshape(design.rows, -1))
    A = np.concatenate(parts, axis=1)
    return A, np.concatenate([design.scales**-2.0, np.ones(A.shape[1] - len(design.names))])


def test_the_marginal_likelihood_of_gaussian_rows_is_the_dense_normal_density(key):
    design, layout, _, rng = crossed(key)
    thetas = layout.start([0.7]) + 0.3 * rng.standard_normal((3, layout.size))
    likelihood = likelihood_of("gaussian", None)
    summed = Summed(sums_of(design), np.zeros(len(design.names)), design.y)
    exact = GaussianMarginal.of(design, layout, likelihood, summed)
    for theta, value in zip(thetas, exact(thetas), strict=True):
        A, precision = dense(design, layout.scale_factors(theta))
        covariance = (A / precision) @ A.T + np.exp(2 * theta[-1]) * np.eye(design.rows)
        oracle = stats.multivariate_normal.logpdf(design.y, np.zeros(design.rows), covariance)
        assert value == pytest.approx(oracle + layout.log_prior(theta), abs=1e-6)


def test_block_elimination_gives_means_and_determinant_of_the_dense_system(key):
    design, layout, _, rng = crossed(key)
    theta = layout.start([0.7]) + 0.3 * rng.standard_normal(layout.size)
    roots = layout.scale_factors(theta)
    w, t = rng.random(design.rows) + 0.1, rng.standard_normal(design.rows)
    A, precision = dense(design, roots)
    H = np.diag(precision) + A.T @ (w[:, None] * A)
    mean = np.linalg.solve(H, A.T @ (w * t))
    stats_ = statistics(design, remaining_columns(design), w, w * t)
    solved, size = condition(stats_, roots, prior_of(design)), design.remaining
    np.testing.assert_allclose(solved.rest_mean, mean[:size], atol=1e-9)
    np.testing.assert_allclose(solved.level_mean.ravel(), mean[size:], atol=1e-9)
    assert float(solved.log_det) == pytest.approx(np.linalg.slogdet(H)[1], abs=1e-8)
    assert float(solved.fit) == pytest.approx(mean @ H @ mean, abs=1e-8)


def test_the_engine_has_the_means_and_the_determinant_of_the_dense_system(key):
    design, layout, _, rng = crossed(key, "poisson")
    theta = layout.start([]) + 0.3 * rng.standard_normal(layout.size)
    roots = layout.scale_factors(theta)
    w, t = rng.random(design.rows) + 0.1, rng.standard_normal(design.rows)
    A, precision = dense(design, roots)
    H = np.diag(precision) + A.T @ (w[:, None] * A)
    mean = np.linalg.solve(H, A.T @ (w * t))
    assembly = model_of(design, layout, likelihood_of("poisson", None)).assembly
    prior = assembly.precision(theta[None])
    factor = assembly.factor(prior.values + assembly.products.gram(w[None]))
    found = factor.solve(((w * t) @ assembly.A)[None])[0]
    fixed, first, other = assembly.effects
    white = [np.linalg.solve(root, found[some].reshape(-1, len(root)).T).T
             for root, some in zip(roots, (first, other), strict=True)]  # fmt: skip
    expected = np.concatenate([found[fixed], white[1].ravel(), white[0].ravel()])
    np.testing.assert_allclose(expected, mean, atol=1e-9)
    gap = float(factor.log_det[0] - prior.log_det[0])
    oracle = np.linalg.slogdet(H)[1] - np.log(precision).sum()
    assert gap == pytest.approx(oracle, abs=1e-8)


@pytest.mark.parametrize("name", ["bernoulli", "poisson", "negative-binomial"])
def test_the_slope_of_the_bound_is_its_derivative_in_every_hyperparameter(key, name):
    design, layout, _, _ = crossed(key, name)
    likelihood = likelihood_of(name, None)
    problem = Problem.of(design, layout, likelihood)
    theta = layout.start(likelihood.extra_start(design.y)) + 0.7
    _, slope, fitted = bound_and_slope(problem, theta, None)
    step = 1e-3
    for index in range(layout.size):
        move = step * np.eye(layout.size)[index]
        ends = [bound_and_slope(problem, theta + s * move, fitted)[0] for s in (1, -1)]
        assert slope[index] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-3, abs=5e-3)


def test_the_variational_bound_is_below_the_exact_marginal_likelihood_and_near_it(key):
    frame = table(generator(key), likelihood="bernoulli", groups=15)
    model = MixedModel("y ~ x + (1 | g)", likelihood="bernoulli")
    design, layout = model.design(frame)
    likelihood = likelihood_of("bernoulli", None)
    problem = Problem.of(design, layout, likelihood)
    theta, fitted, converged = find_hyper(problem, layout.start([]))
    found = integrate_model(problem, theta, fitted, count=512, seed=0)
    assert converged
    assert found.weighted.ess > 0.3 * 512
    again = fit_effects(problem, theta, None)
    assert again.bound == pytest.approx(fitted.bound, abs=1e-4)
    marginal = Marginal.of(problem, fitted, 31)
    # the likelihood of a level, by quadrature from SciPy
    z = np.concatenate([theta, fitted.system.rest_mean])
    values = marginal.evaluate(z[None], moments=True)[1]
    sd, beta = np.exp(theta[0]), fitted.system.rest_mean
    rows = design.factors[0].codes == 0

    def integrand(effect, power):
        t = design.X[rows] @ beta + effect
        likelihood = np.prod(special.expit(np.where(design.y[rows] > 0, t, -t)))
        return effect**power * likelihood * stats.norm.pdf(effect, 0, sd)

    mass, first = (
        integrate.quad(integrand, -8 * sd, 8 * sd, args=(k,), epsabs=1e-13)[0] for k in (0, 1)
    )
    assert values.log_likelihood[0, 0] == pytest.approx(np.log(mass), abs=1e-6)
    assert values.mean[0, 0, 0] == pytest.approx(first / mass, abs=1e-6)


def test_groups_with_the_same_rows_are_fitted_once_with_the_same_answer(key):
    rng = generator(key)
    frame = table(rng, likelihood="bernoulli", groups=40, rows=3)
    frame["x"] = np.tile([-1.0, 0.0, 1.0], 40)
    design, layout = MixedModel("y ~ x + (1 | g)", likelihood="bernoulli").design(frame)
    merged = merge_copies(design)
    assert merged.factors[0].levels <= 8
    assert merged.copies.sum() == 40
    likelihood = likelihood_of("bernoulli", None)
    values = [
        bound_and_slope(Problem.of(d, layout, likelihood), np.zeros(1), None)
        for d in (design, merged)
    ]
    assert values[0][0] == pytest.approx(values[1][0], abs=1e-5)
    np.testing.assert_allclose(values[0][1], values[1][1], atol=1e-3)
    effects = [v[2].system.level_mean for v in values]
    np.testing.assert_allclose(effects[0], effects[1][merged.alias], atol=1e-5)


def test_the_prior_of_hyperparameters_is_a_density_and_correlations_are_lkj():
    layout = Layout(((Block(("a", "b"), (1.0, 2.0)),),))
    grid = np.linspace(-12, 6, 2000)
    for column in range(2):
        theta = np.zeros((len(grid), 3))
        theta[:, column] = grid
        others = layout.log_prior(np.zeros((1, 3)))[0]
        mass = integrate.trapezoid(np.exp(layout.log_prior(theta) - others), grid)
        scale = (1.0, 2.0)[column]
        at_zero = stats.halfnorm.pdf(1.0, scale=scale)
        assert mass == pytest.approx(1 / at_zero, rel=1e-4)
    r = np.linspace(-0.999, 0.999, 4001)
    theta = np.zeros((len(r), 3))
    theta[:, 2] = np.arctanh(r)
    density = np.exp(layout.log_prior(theta) - layout.log_prior(theta)[2000]) / (1 - r**2)
    np.testing.assert_allclose(density, 1 - r**2, atol=1e-9)  # LKJ(2) in two dimensions
    sds, matrix = layout.natural(np.array([0.0, 1.0, 0.5]))[0]
    assert matrix[0, 1] == pytest.approx(np.tanh(0.5))
    np.testing.assert_allclose(sds, [1.0, np.e])


def test_white_points_have_exact_moments():
    x = white_points(256, 5, 0)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(x.T @ x / 256, np.eye(5), atol=1e-12)


def test_the_mode_of_a_gaussian_density_is_found_from_afar():
    precision = np.array([[4.0, 1.0], [1.0, 2.0]])
    centre = np.array([3.0, -2.0])

    def density(z):
        return -0.5 * np.einsum("di,ij,dj->d", z - centre, precision, z - centre)

    mode, hessian, reached = find_mode(density, np.zeros(2))
    assert reached
    np.testing.assert_allclose(mode, centre, atol=1e-3)
    np.testing.assert_allclose(hessian, -precision, atol=1e-5)


@pytest.mark.parametrize("name", ["gaussian", pytest.param("poisson", marks=pytest.mark.slow)])
def test_a_design_of_points_agrees_with_importance_sampling(key, name):
    rng = generator(key)
    frame = table(rng, likelihood=name, groups=30, rows=8)
    frame["h"] = rng.integers(0, 12, len(frame))
    # A factor that matters: where an sd may be zero, its logarithm has no Gaussian posterior.
    shift = rng.standard_normal(12)[frame["h"]]
    frame["y"] = (
        rng.poisson(np.exp(0.5 * frame["x"] + shift)) if name == "poisson" else (frame["y"] + shift)
    )
    model = MixedModel("y ~ x + (1 | g) + (1 | h)", likelihood=name, num_points=512)
    design, layout = model.design(frame)
    found = fit_large(design, layout, likelihood_of(name, None), seed=0)
    model.fit(frame)
    mean = found["weights"] @ found["rest"]
    exact = model.posterior_.weights @ model.posterior_.rest
    sd = np.sqrt(model.posterior_.weights @ (model.posterior_.rest - exact) ** 2)
    # Their difference is that of two approximations; importance sampling alone has 0.04 sds.
    assert np.abs((mean - exact) / sd).max() < 0.3
    theta, oracle = (
        found["weights"] @ found["theta"],
        model.posterior_.weights @ model.posterior_.theta,
    )
    spread = np.sqrt(model.posterior_.weights @ (model.posterior_.theta - oracle) ** 2)
    assert np.abs((theta - oracle) / spread).max() < 0.5


def test_whitening_multiplies_blocks_of_columns(key):
    design, layout, _, rng = crossed(key)
    prior = prior_of(design)
    roots = layout.scale_factors(layout.start([1.0]) + 0.2 * rng.standard_normal(layout.size))
    values = rng.standard_normal((3, prior.size))
    M = np.eye(prior.size)
    part = prior.parts()[0]
    M[part, part] = np.kron(np.eye(prior.shapes[0][0]), roots[1])
    np.testing.assert_allclose(whitened(values, roots[1:], prior, ()), values @ M)


@pytest.mark.data
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_points_that_few_others_outweigh_are_drawn_again_around_them(data_dir, seed):
    """The correlation of few slopes has long tails, which a thousand points hardly show."""
    frame = read_csv(data_dir / "mixed" / "radon.csv").rename(columns={"log.radon": "y"})
    formula = "y ~ basement + uranium + (1 + basement | county)"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = MixedModel(formula, random_state=seed).fit(frame)
    assert found.khat_ < 0.7


def crossed_answers(rng, sds):
    """Few binary rows for every effect of two factors."""
    cells = np.argwhere(rng.random((120, 90)) < 0.06)
    effects = [sd * rng.normal(size=count) for sd, count in zip(sds, (120, 90), strict=True)]
    t = effects[0][cells[:, 0]] + effects[1][cells[:, 1]] - 0.5
    y = rng.random(len(t)) < special.expit(t)
    return DataFrame({"y": y, "r": cells[:, 0], "c": cells[:, 1]})


def test_sds_of_a_large_crossed_table_are_those_of_a_lattice_and_not_of_the_bound(key):
    """The bound alone places both sds too low."""
    model = MixedModel("y ~ 1 + (1 | r) + (1 | c)", likelihood="bernoulli")
    design, layout = model.design(crossed_answers(generator(key), (1.8, 1.5)))
    likelihood = likelihood_of("bernoulli", None)
    found = fit_large(design, layout, likelihood, seed=0)
    mean, sd = weighted_moments(found["theta"], found["weights"])
    given = model_of(design, layout, likelihood)
    lattice = Integration()(given).lattice
    wanted, spread = weighted_moments(lattice.points, lattice.weights)
    assert (np.abs(mean - wanted) < 0.1 * spread).all()
    assert (np.abs(np.log(sd / spread)) < 0.1).all()
    plain = Integration(gap=lambda model, theta, _: np.zeros(len(theta)))(given).lattice
    assert (plain.weights @ plain.points < wanted - 0.03 * spread).all()


@pytest.mark.parametrize("sd", [0.0, 0.3])
def test_a_hyperparameter_that_rows_hardly_determine_has_a_lattice(key, sd):
    model = MixedModel("y ~ 1 + (1 | r) + (1 | c)", likelihood="bernoulli")
    design, layout = model.design(crossed_answers(generator(key), (1.8, sd)))
    likelihood = likelihood_of("bernoulli", None)
    found = fit_large(design, layout, likelihood, seed=0)
    given = model_of(design, layout, likelihood)
    lattice = Integration()(given).lattice
    gaps = Gap()(given, lattice.points, SiteFit(*lattice.kept))
    evidence = lattice.log_integral - np.log(lattice.weights @ np.exp(-gaps))
    assert found["log_evidence"] == pytest.approx(evidence, abs=0.01)
    mean, spread = weighted_moments(found["theta"], found["weights"])
    wanted, width = weighted_moments(lattice.points, lattice.weights)
    assert (np.abs(mean - wanted) < 0.05 * width).all()
    np.testing.assert_allclose(spread, width, rtol=0.1)


def test_ctrl_c_on_the_lattice_ends_the_fit(key, monkeypatch):
    def pressed(evaluate, start, **_):
        evaluate(start[None])
        raise KeyboardInterrupt

    model = MixedModel("y ~ 1 + (1 | r) + (1 | c)", likelihood="bernoulli")
    design, layout = model.design(crossed_answers(generator(key), (1.8, 0.0)))
    monkeypatch.setattr("curvi.latent._integral.integrate", pressed)
    with pytest.raises(KeyboardInterrupt):
        fit_large(design, layout, likelihood_of("bernoulli", None), seed=0)


def test_draws_on_a_lattice_are_as_many_as_intervals_and_correlations_need(key):
    """Two draws of the same noise at all points had correlations near one, and short intervals."""
    model = MixedModel("y ~ 1 + (1 | r) + (1 | c)", likelihood="bernoulli")
    design, layout = model.design(crossed_answers(generator(key), (1.0, 0.3)))
    likelihood = likelihood_of("bernoulli", None)
    found = fit_large(design, layout, likelihood, seed=0)
    assert found["on_lattice"]
    given = model_of(design, layout, likelihood)
    plain = Integration(gap=lambda model, theta, _: np.zeros(len(theta)))(given).lattice
    gaps = Gap()(given, plain.points, SiteFit(*plain.kept))
    more = float(special.logsumexp(gaps, b=plain.weights))
    assert more > 0.01
    assert found["log_evidence"] == pytest.approx(plain.log_integral + more, abs=0.1 * more)
    rest, weights = found["rest"], found["weights"]
    mean, sd = weighted_moments(rest, weights)
    scaled = (rest - mean) / sd
    correlations = (scaled * weights[:, None]).T @ scaled
    assert np.abs(correlations[1:, 1:] - np.eye(len(sd) - 1)).max() < 0.6
    low, high = (weighted_quantile(rest, weights, level) for level in (0.05, 0.95))
    np.testing.assert_allclose((high - low) / sd, 3.29, rtol=0.3)
    assert np.median((high - low) / sd) == pytest.approx(3.29, rel=0.05)


def test_factors_that_rows_hardly_tell_apart_are_named(key):
    frame = crossed_answers(generator(key), (1.8, 1.0))
    frame["x"] = np.arange(len(frame)) % 7.0
    model = MixedModel("y ~ 1 + (1 + x | r) + (1 | c)", likelihood="bernoulli")
    design, layout = model.design(frame)
    theta = np.zeros((5, layout.size))
    wide = {"r": [0, 1, 2], "c": [3]}
    for name, places in wide.items():
        for place in places:
            moved = theta.copy()
            moved[1:3, place] = 1.2, -1.2
            assert _hardly_known(design, layout, np.full(5, 0.2), moved) == [name]
    assert _hardly_known(design, layout, np.full(5, 0.2), theta) == []
