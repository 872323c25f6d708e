"""Where hyperparameters are best, and a design of points around it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from curvi.latent import Ascent, Assembly, Fixed, GivenRest, Groups, Star
from curvi.likelihoods import likelihood_of

from .models import RESPONSES, generator, site_model
from .test_summed import models

pytestmark = pytest.mark.float64_only


def crossed(rng, name="poisson"):
    likelihood, rows = likelihood_of(name), 120
    g, h = rng.integers(0, 12, rows), rng.integers(0, 8, rows)
    t = 0.5 + rng.normal(size=12)[g] + 0.7 * rng.normal(size=8)[h]
    parts = [
        Fixed(np.ones((rows, 1)), prior_scale=3.0),
        Groups(g, name="g", levels=12),
        Groups(h, name="h", levels=8),
    ]
    return site_model(Assembly(parts, likelihood.extras), likelihood, RESPONSES[name](rng, t))


def test_an_ascent_ends_where_an_optimiser_of_values_alone_does(key):
    rng = generator(key)
    for model in (crossed(rng), models(rng)[1]):
        start = model.assembly.start()

        def loss(theta, model=model):
            point = theta[None]
            return -float(model.fit(point).bound[0] + model.assembly.log_prior(point)[0])

        mode = Ascent(tolerance=1e-7).mode(model, start)
        oracle = optimize.minimize(loss, mode.theta + 0.1, method="Nelder-Mead", tol=1e-8,
                                   options={"maxiter": 4000, "maxfev": 4000})  # fmt: skip
        assert mode.converged
        assert -mode.value <= oracle.fun + 1e-5
        hessian = Ascent(difference=1e-2).hessian(model, mode)
        for j, move in enumerate(1e-2 * np.eye(len(start))):
            ends = loss(mode.theta + move) + loss(mode.theta - move) - 2 * loss(mode.theta)
            assert hessian[j, j] == pytest.approx(-ends / 1e-4, rel=2e-2, abs=2e-2)


def test_an_ascent_that_knows_the_covariance_needs_one_look_at_the_mode(key):
    model = models(generator(key))[1]
    mode = Ascent(tolerance=1e-7).mode(model, model.assembly.start())
    covariance = np.eye(len(mode.theta))
    again = Ascent(tolerance=1e-3).mode(model, mode.theta, covariance)
    np.testing.assert_array_equal(again.theta, mode.theta)
    np.testing.assert_array_equal(again.covariance, covariance)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_star_has_the_moments_of_a_normal_density_and_sees_where_it_lies(key, size):
    rng = generator(key)
    root = np.tril(rng.normal(size=(size, size))) + 2 * np.eye(size)
    inverse, mode = np.linalg.inv(root), rng.normal(size=size)
    seen = []

    def normal(theta, near):
        seen.append(near)
        white = inverse @ (theta - mode)
        return -0.5 * float(white @ white), theta

    star = Star(normal)
    kept, thetas, values, parabolas = star.points(mode, root)
    assert not parabolas.far(1e-6)
    assert seen[0] is None
    assert all(near is kept[0] for near in seen[1:])
    weights = star.weights(values)
    np.testing.assert_allclose(weights @ thetas, mode, atol=1e-10)
    spread = (weights[:, None] * (thetas - mode)).T @ (thetas - mode)
    np.testing.assert_allclose(spread, root @ root.T, atol=1e-9)
    # Elsewhere, with axes of half the length, parabolas say where to go and how far to reach.
    away = star.points(mode - 0.3 * root[:, 0], 0.5 * root)[3]
    np.testing.assert_allclose(away.shift, np.append(0.6, np.zeros(size - 1)), atol=1e-9)
    np.testing.assert_allclose(away.sds, 2.0, atol=1e-9)
    assert away.far(0.25)


def test_levels_given_all_other_effects_are_those_of_the_dense_normal(key):
    rng = generator(key)
    model = models(rng)[1]
    assembly, theta = model.assembly, 0.3 * rng.normal(size=(1, model.assembly.dimension))
    fitted, factor, mean = model.with_factor(theta)
    values, pull = model.values(theta, fitted), model.pull(theta, fitted)
    np.testing.assert_allclose(factor.solve(pull), mean, atol=1e-10)
    given = GivenRest(assembly.pattern, assembly.effects[1], 2)
    rest = rng.normal(size=(3, len(given.rest)))
    means, covariances = given.moments(values[0], pull[0], rest)
    P = assembly.pattern.dense(values)[0]
    levels = np.arange(assembly.size)[assembly.effects[1]]
    block = P[np.ix_(levels, levels)]
    expected = np.linalg.solve(
        block, (pull[0, levels, None] - P[np.ix_(levels, given.rest)] @ rest.T)
    ).T
    np.testing.assert_allclose(means.reshape(3, -1), expected, atol=1e-9)
    whole = np.linalg.inv(block)
    for level, covariance in enumerate(covariances):
        some = slice(2 * level, 2 * level + 2)
        np.testing.assert_allclose(covariance, whole[some, some], atol=1e-9)
