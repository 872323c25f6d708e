"""The integral over hyperparameters: against quadrature, in few and in many dimensions."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.special
import scipy.stats

from curvi._core.errors import Interrupted, Outcome
from curvi._core.run import OutOfTime
from curvi.latent import (
    Assembly,
    Fixed,
    FromPrecision,
    Gap,
    Integration,
    Iteration,
    RandomWalk,
    SiteModel,
)  # fmt: skip
from curvi.latent._integral import Rule
from curvi.latent._priors import half_normal
from curvi.likelihoods import likelihood_of
from tests.latent.models import RESPONSES, generator, site_model

pytestmark = pytest.mark.float64_only


def groups(rng, count, rows=6, levels=3):
    """Independent groups of effects, each with its own rows and its own sd."""
    total = count * rows
    components, y = [], np.zeros(total)
    for j in range(count):
        A = np.zeros((total, levels))
        at = np.arange(j * rows, (j + 1) * rows)
        A[at, np.arange(rows) % levels] = 1.0
        components.append(FromPrecision(A, np.eye(levels), f"sd {j}"))
        y[at] = (A @ rng.normal(size=levels))[at] + 0.5 * rng.normal(size=rows)
    likelihood = likelihood_of("gaussian")
    return site_model(Assembly(components, likelihood.extras, [1.0]), likelihood, y)


def by_quadrature(model, count, rows=6, levels=3):
    """Log evidence, and means of the logarithms: given the noise the sds are independent."""
    grid = np.linspace(-9.0, 2.5, 461)
    noise = np.linspace(-2.5, 1.5, 161)
    of_noise = half_normal(noise, 1.0)
    means = np.zeros((len(noise), count))
    same = np.equal.outer(np.arange(rows) % levels, np.arange(rows) % levels)
    values, vectors = np.linalg.eigh(same.astype(float))
    for j in range(count):
        y = vectors.T @ model.y[j * rows : (j + 1) * rows]
        variance = np.exp(2 * grid)[:, None] * values + np.exp(2 * noise)[:, None, None]
        logs = -0.5 * (y**2 / variance + np.log(2 * np.pi * variance)).sum(axis=-1)
        logs = logs + half_normal(grid, 1.0)
        of_noise = of_noise + scipy.special.logsumexp(logs, axis=1) + np.log(grid[1] - grid[0])
        means[:, j] = scipy.special.softmax(logs, axis=1) @ grid
    weights = scipy.special.softmax(of_noise)
    evidence = scipy.special.logsumexp(of_noise) + np.log(noise[1] - noise[0])
    return evidence, np.append(weights @ means, weights @ noise)


def test_two_hyperparameters_are_those_of_brute_force_quadrature(key):
    model = groups(generator(key), 1, rows=60, levels=20)
    evidence, means = by_quadrature(model, 1, rows=60, levels=20)
    fine = Integration(lattices=(Rule(1.0, 14.0, 1000),) * 2)
    for integration, error in ((fine, 1e-5), (Integration(), 1e-3)):
        found = integration(model)
        assert found.outcome is Outcome.CONVERGED
        assert found.lattice.complete
        assert found.lattice.khat is None
        assert found.lattice.log_integral == pytest.approx(evidence, abs=error)
        off = found.lattice.weights @ found.lattice.points - means
        np.testing.assert_allclose(off, 0.0, atol=10 * error)


@pytest.mark.parametrize("count", [5, 11])
def test_many_hyperparameters_are_those_of_quadrature_too(count, key):
    """Six, and twelve: importance sampling from a proposal that is fitted to them."""
    model = groups(generator(key), count, rows=24, levels=8)
    found = Integration()(model).lattice
    evidence, means = by_quadrature(model, count, rows=24, levels=8)
    assert found.points.shape[1] == count + 1
    assert found.complete
    assert found.khat is not None
    effective = 1 / np.sum(found.weights**2)
    assert effective > 0.5 * len(found.weights)
    assert found.log_integral == pytest.approx(evidence, abs=4 / np.sqrt(effective))
    centred = found.points - found.weights @ found.points
    sd = np.sqrt(found.weights @ centred**2)
    off = (found.weights @ found.points - means) / sd
    assert np.abs(off).max() < 5 / np.sqrt(effective)


def test_a_lattice_and_importance_weights_agree(key):
    rng = generator(key)
    likelihood = likelihood_of("poisson")
    at = np.arange(30)
    y = rng.poisson(np.exp(1 + np.sin(at / 5))).astype(float)
    parts = [RandomWalk(at, "walk", first_sd=3.0), FromPrecision(np.eye(30), np.eye(30), "row")]
    model = site_model(Assembly(parts), likelihood, y)
    lattice, drawn = (Integration(**o)(model).lattice for o in ({}, {"lattices": ()}))
    assert lattice.complete
    assert drawn.complete
    assert drawn.log_integral == pytest.approx(lattice.log_integral, abs=0.05)
    sd = np.sqrt(lattice.weights @ (lattice.points - lattice.weights @ lattice.points) ** 2)
    off = (drawn.weights @ drawn.points - lattice.weights @ lattice.points) / sd
    assert np.abs(off).max() < 0.15


def test_without_hyperparameters_there_is_one_point(key):
    rng = generator(key)
    X = rng.normal(size=(12, 2))
    model = site_model(Assembly([Fixed(X)]), likelihood_of("poisson"), rng.poisson(2.0, 12))
    found = Integration()(model).lattice
    assert found.weights.tolist() == [1.0]
    assert found.complete
    assert found.log_integral == pytest.approx(model.fit(np.zeros((1, 0))).bound[0], abs=1e-9)


def test_the_gap_is_what_the_bound_lacks_of_the_evidence(key):
    """Independent effects that counts are seen through: integrals over one number each."""
    rng = generator(key)
    y = rng.poisson(4.0, size=60).astype(float)
    model = site_model(
        Assembly([FromPrecision(np.eye(60), np.eye(60))]), likelihood_of("poisson"), y, 1.0
    )
    theta = np.log([[0.1], [0.5], [1.5]])
    fitted = model.fit(theta)
    u = np.linspace(-9, 9, 2001)[:, None]
    logs = y * (1 + u) - np.exp(1 + u) - scipy.special.gammaln(y + 1)
    evidence = [
        scipy.special.logsumexp(logs + scipy.stats.norm.logpdf(u, 0, sd), axis=0)
        for sd in np.exp(theta[:, 0])
    ]
    missing = np.sum(evidence, axis=1) + 60 * np.log(u[1] - u[0]) - fitted.bound
    gap = Gap(draws=4096)(model, theta, fitted)
    assert missing[2] > 0.2
    np.testing.assert_allclose(gap, missing, atol=0.25 * missing[2])


def cut(monkeypatch, error, calls):
    """A model whose fits end after so many calls."""
    real, made = SiteModel.fit, []

    def fit(self, *given):
        made.append(1)
        if len(made) > calls:
            raise error
        return real(self, *given)

    monkeypatch.setattr(SiteModel, "fit", fit)


@pytest.mark.parametrize(
    ("error", "outcome"), [(OutOfTime, Outcome.BUDGET), (KeyboardInterrupt, Outcome.INTERRUPTED)]
)
def test_what_is_left_early_is_the_best_point_until_then(error, outcome, key, monkeypatch):
    model = groups(generator(key), 1)
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, error, 2)
        found = Integration()(model)
    assert found.outcome is outcome
    assert not found.lattice.complete
    assert "best ones until then" in found.lattice.shortcoming
    posterior = found.posterior(model)
    assert posterior.weights.tolist() == [1.0]
    assert np.isfinite(posterior.predictors().sd).all()
    cut(monkeypatch, error, 0)
    wrong = Interrupted if error is KeyboardInterrupt else Exception
    with pytest.raises(wrong, match="before the first evaluation"):
        Integration()(model)


@pytest.mark.parametrize("name", RESPONSES)
def test_every_likelihood_is_integrated(name, key):
    rng = generator(key)
    at = np.arange(40)
    y = np.asarray(RESPONSES[name](rng, np.sin(at / 6)), float)
    likelihood = likelihood_of(name)
    start = likelihood.extra_start(y)
    assembly = Assembly([RandomWalk(at, first_sd=3.0)], likelihood.extras, start)
    model = site_model(assembly, likelihood, y, trials=4.0 if name == "binomial" else 1.0)
    found = Integration()(model).lattice
    assert np.isfinite(found.log_integral)
    assert found.weights.sum() == pytest.approx(1.0)
    assert set(assembly.natural(found.points)) == {"walk", *(e.name for e in likelihood.extras)}


@pytest.mark.parametrize(("rounds", "stands"), [(2, False), (200, True)])
def test_effects_that_did_not_converge_are_no_answer(rounds, stands, key):
    at, rng = np.arange(40), generator(key)
    y = rng.poisson(np.exp(1.5 * np.sin(at / 6)))
    walk = Assembly([RandomWalk(at, first_sd=3.0)])
    model = site_model(walk, likelihood_of("poisson"), y)
    found = Integration()(replace(model, iteration=Iteration(rounds=rounds))).lattice
    assert found.complete is stands
    assert ("did not converge" in found.shortcoming) is not stands
