"""Groups with correlated effects: precisions and priors against dense algebra and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from scipy import linalg

import curvi
from curvi.latent import Assembly, Covariance, Fixed, Groups
from curvi.likelihoods import likelihood_of

from .models import RESPONSES, generator, site_model

pytestmark = pytest.mark.float64_only
BARS = (
    Covariance(("Intercept", "x", "z"), (1.0, 0.5, 2.0)),
    Covariance(("a", "b"), (1.0, 1.0), correlated=False),
)


def covariance_of_a_level(theta):
    """By hand: sds, and the matrix of correlations from canonical partial ones."""
    sds, partial = np.exp(theta[:3]), np.tanh(theta[3:6])
    r12, r13 = partial[0], partial[1]
    r23 = partial[2] * np.sqrt((1 - r12**2) * (1 - r13**2)) + r12 * r13
    R = np.array([[1, r12, r13], [r12, 1, r23], [r13, r23, 1]])
    return linalg.block_diag(sds[:, None] * R * sds, np.diag(np.exp(2 * theta[6:8])))


def test_the_precision_of_a_level_is_the_inverse_of_its_covariance(key):
    rng = generator(key)
    groups = Groups(rng.integers(0, 4, 9), rng.normal(size=(9, 5)), "g", bars=BARS, levels=4)
    theta = 0.5 * rng.normal(size=(2, 8))
    found = groups.precision(theta)
    for point, values, log_det in zip(theta, *found, strict=True):
        dense = np.zeros((20, 20))
        dense[groups.rows, groups.columns] = dense[groups.columns, groups.rows] = values
        whole = linalg.block_diag(*[covariance_of_a_level(point)] * 4)
        np.testing.assert_allclose(dense @ whole, np.eye(20), atol=1e-10)
        assert log_det == pytest.approx(-np.linalg.slogdet(whole)[1], abs=1e-10)
    natural = groups.natural(theta)
    for k, point in enumerate(theta):
        whole = covariance_of_a_level(point)
        assert natural["sd z|g"][k] == pytest.approx(np.sqrt(whole[2, 2]))
        expected = whole[1, 2] / np.sqrt(whole[1, 1] * whole[2, 2])
        assert natural["correlation x, z|g"][k] == pytest.approx(expected)
    assert list(natural) == list(groups.names)


def test_priors_are_half_normal_sds_and_lkj_correlations(key):
    theta = 0.5 * generator(key).normal(size=(3, 8))
    groups = Groups([0], np.ones((1, 5)), "g", bars=BARS)
    assert groups.log_prior(groups.start()[None]).shape == (1,)
    for point, value in zip(theta, groups.log_prior(theta), strict=True):
        scales = [1.0, 0.5, 2.0, 1.0, 1.0]
        logs = np.append(point[:3], point[6:])
        expected = (scipy.stats.halfnorm.logpdf(np.exp(logs), scale=scales) + logs).sum()
        # Canonical partial correlations under LKJ(2): beta(b, b), b falls by half with depth.
        for partial, b in zip(point[3:6], (2.5, 2.5, 2.0), strict=True):
            p = np.tanh(partial)
            expected += scipy.stats.beta.logpdf(0.5 * (1 + p), b, b) + np.log(0.5 * (1 - p**2))
        assert value == pytest.approx(expected, abs=1e-9)


def test_nested_and_crossed_factors_have_the_evidence_of_the_dense_normal(key):
    rng = generator(key)
    rows, likelihood = 40, likelihood_of("gaussian")
    x = rng.normal(size=rows)
    columns = np.column_stack([np.ones(rows), x])
    village, item = rng.integers(0, 5, rows), rng.integers(0, 4, rows)
    mother = village * 3 + rng.integers(0, 3, rows)  # three in every village
    parts = [
        Fixed(columns, prior_scale=(2.0, 1.0), prior_mean=(0.5, 0.0)),
        Groups(mother, name="mother", levels=15),
        Groups(village, columns, "village", bars=(Covariance(("Intercept", "x"), (1.0, 1.0)),)),
        Groups(item, name="item", levels=4),
    ]
    y = RESPONSES["gaussian"](rng, rng.normal(size=rows))
    model = site_model(Assembly(parts, likelihood.extras, [1.0]), likelihood, y)
    theta = 0.4 * rng.normal(size=(2, model.assembly.dimension))
    for point, bound in zip(theta, model.fit(theta).bound, strict=True):
        s = np.exp(point)
        R = np.array([[1, np.tanh(point[3])], [np.tanh(point[3]), 1]])
        V = s[5] ** 2 * np.eye(rows) + columns @ np.diag([4.0, 1.0]) @ columns.T
        V += s[0] ** 2 * np.equal.outer(mother, mother) + s[4] ** 2 * np.equal.outer(item, item)
        V += np.equal.outer(village, village) * (
            columns @ (np.outer(s[1:3], s[1:3]) * R) @ columns.T
        )
        oracle = scipy.stats.multivariate_normal.logpdf(y, np.full(rows, 0.5), V)
        assert bound == pytest.approx(oracle, abs=1e-8)


def test_rows_of_no_level_see_nothing_and_wrong_columns_are_refused():
    groups = Groups([0, 1, 1], np.ones((3, 2)), "g", bars=(Covariance(("a", "b"), (1.0, 1.0)),))
    new = groups.columns_for(([-1, 1], np.array([[1.0, 2.0], [3.0, 4.0]])))
    np.testing.assert_array_equal(new.toarray(), [[0, 0, 0, 0], [0, 0, 3, 4]])
    assert groups.labels() == ["a|g[0]", "b|g[0]", "a|g[1]", "b|g[1]"]
    with pytest.raises(curvi.InputError, match="one column for each of 2 effects"):
        groups.columns_for(([0], None))
    with pytest.raises(curvi.InputError, match="levels 0 to 1, not 2"):
        groups.columns_for(([2], np.ones((1, 2))))
