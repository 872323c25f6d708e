"""Gaussian responses from sums: what their rows say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from curvi.latent import Assembly, Covariance, Fixed, Groups, RowSums, SummedModel, level_columns
from curvi.likelihoods import likelihood_of

from .models import generator, site_model

pytestmark = pytest.mark.float64_only
BAR = (Covariance(("Intercept", "x"), (1.0, 1.0)),)


def parts(X, g, h, mean):
    return [
        Fixed(X, prior_scale=3.0, prior_mean=(mean, 0.0)),
        Groups(g, X, "g", bars=BAR, levels=6),
        Groups(h, name="h", levels=4),
    ]


def models(rng, mean=0.5):
    """The same one with rows, and with sums of two blocks of them."""
    rows, likelihood = 50, likelihood_of("gaussian")
    X = np.column_stack([np.ones(rows), rng.normal(size=rows)])
    g, h, y = rng.integers(0, 6, rows), rng.integers(0, 4, rows), 0.3 + rng.normal(size=rows)
    whole = Assembly(parts(X, g, h, mean), likelihood.extras, [1.0])
    cut = slice(0, 20), slice(20, None)
    one, other = (RowSums.of(whole.A[some], y[some] - 0.3) for some in cut)
    sums = one + other
    bare = Assembly(parts(X[:0], g[:0], h[:0], mean), likelihood.extras, [1.0], gram=sums.gram)
    return site_model(whole, likelihood, y, 0.3), SummedModel.given(bare, likelihood, sums)


def test_sums_say_of_gaussian_responses_what_their_rows_say(key):
    rng = generator(key)
    full, short = models(rng)
    theta = 0.4 * rng.normal(size=(3, full.assembly.dimension))
    expected, found = full.fit(theta), short.fit(theta)
    np.testing.assert_allclose(found.bound, expected.bound, atol=1e-9)
    slopes = full.gradient(theta, expected)
    np.testing.assert_allclose(short.gradient(theta, found), slopes, atol=1e-6)
    for mine, theirs in zip(
        short.effects(theta, found), full.effects(theta, expected), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-9)
    noise = rng.normal(size=(1, full.assembly.size, 2))
    drawn = full.draw(theta, expected, noise)
    np.testing.assert_allclose(short.draw(theta, found, noise), drawn, atol=1e-9)


def test_the_gradient_is_that_of_the_evidence(key):
    rng = generator(key)
    _, model = models(rng)
    theta = 0.4 * rng.normal(size=(1, model.assembly.dimension))
    fitted, slopes = model.with_gradient(theta)
    assert fitted.bound == pytest.approx(model.fit(theta).bound, abs=1e-12)
    for j, slope in enumerate(slopes[0]):
        step = 1e-4 * np.eye(theta.shape[1])[j]
        up, down = (model.fit(theta + s).bound[0] for s in (step, -step))
        assert slope == pytest.approx((up - down) / 2e-4, abs=1e-5)


def test_a_prior_mean_far_away_costs_no_digits(key):
    rng = generator(key)
    _, model = models(rng, mean=1e6)
    theta, sums, pattern = (
        np.zeros((1, model.assembly.dimension)),
        model.sums,
        model.assembly.pattern,
    )
    fitted = model.fit(theta)
    Q = pattern.dense(model.assembly.precision(theta).values)[0]
    pull = sums.target + Q @ model.assembly.prior_mean
    expected = np.linalg.solve(Q + sums.gram.toarray(), pull)
    np.testing.assert_allclose(model.effects(theta, fitted).mean[0], expected, rtol=1e-7)
    exact = -25 * np.log(2 * np.pi) - 0.5 * sums.square + 0.5 * np.linalg.slogdet(Q)[1]
    exact += -0.5 * np.linalg.slogdet(Q + sums.gram.toarray())[1]
    residual = 0.5 * (pull @ expected - 1e12 / 9)
    assert fitted.bound[0] == pytest.approx(exact + residual, rel=1e-10)


def test_sums_of_turned_columns_are_those_of_the_turned_rows(key):
    rng = generator(key)
    full, model = models(rng)
    turn = np.eye(full.assembly.size) + 0.1 * rng.normal(size=(full.assembly.size,) * 2)
    y = full.y - full.offset
    expected = RowSums.of(sparse.csr_array(full.assembly.A @ turn), y / 2.0)
    found = model.sums.turned(sparse.csr_array(turn), 2.0)
    np.testing.assert_allclose(found.gram.toarray(), expected.gram.toarray(), atol=1e-10)
    np.testing.assert_allclose(found.target, expected.target, atol=1e-10)
    assert found.square == pytest.approx(expected.square)


def test_traces_from_draws_of_many_levels_are_nearly_exact(key):
    rng = generator(key)
    rows, levels, likelihood = 6000, 1500, likelihood_of("gaussian")
    codes = [rng.integers(0, levels, rows) for _ in range(2)]
    y = sum(rng.normal(size=levels)[code] for code in codes) + rng.normal(size=rows)
    bare = [Groups(np.zeros(0, int), name=name, levels=levels) for name in "gh"]
    A = sparse.hstack([level_columns(code, np.ones((rows, 1)), levels) for code in codes])
    sums = RowSums.of(sparse.csr_array(A), y)
    assembly = Assembly(bare, likelihood.extras, [1.0], gram=sums.gram)
    theta = np.zeros((1, 3))
    exact = SummedModel.given(assembly, likelihood, sums).with_gradient(theta)[1]
    drawn = SummedModel.given(assembly, likelihood, sums, probes=32).with_gradient(theta)[1]
    # A trace of v over n levels has an error of v sqrt(2 n / 32), about 5; an sd of theta is a
    # change of the gradient by sqrt(2 n), about 55.
    np.testing.assert_allclose(drawn, exact, atol=6 * 0.5 * np.sqrt(2 * levels / 32))
    assert not np.array_equal(drawn, exact)
