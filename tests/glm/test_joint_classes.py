"""Sds of correlated coefficients: classes jointly, columns that are nearly equal, long tables."""

import numpy as np
import pytest
from scipy import sparse, special

import curvi
from curvi.likelihoods import Contrasts, contrast_basis, logit_draws


@pytest.fixture
def random():
    return np.random.default_rng(7)


def classes(rng, rows=400, columns=2, count=4):
    X = rng.normal(size=(rows, columns))
    slope = rng.normal(size=(count, columns))
    y = np.argmax(X @ slope.T + rng.gumbel(size=(rows, count)), axis=1)
    return X, y


def twins(rng, rows):
    """Two columns that are correlated at 0.999, and a response of two classes."""
    first = rng.normal(size=rows)
    X = np.column_stack([first, 0.999 * first + 0.0447 * rng.normal(size=rows)])
    return X, rng.logistic(size=rows) < first


def test_terms_of_a_row_are_those_of_many_draws(random):
    """Value, gradient and expected Hessian, against plain Monte Carlo in the space of classes."""
    mean, root = random.normal(size=3), 0.4 * random.normal(size=(3, 3))
    found = Contrasts(3, logit_draws(3, 0, 1024)).terms(
        mean[None], (root @ root.T)[None], np.array([2])
    )
    basis = contrast_basis(4)
    t = (mean + random.normal(size=(200_000, 3)) @ root.T) @ basis.T
    p = special.softmax(t, axis=1)
    value = special.logsumexp(t, axis=1) - t[:, 2]
    hessian = np.diag(p.mean(axis=0)) - p.T @ p / len(p)
    assert found.value[0] == pytest.approx(value.mean(), abs=6 * value.std() / len(t) ** 0.5)
    np.testing.assert_allclose(found.slope[0], p.mean(axis=0) @ basis - basis[2], atol=5e-3)
    np.testing.assert_allclose(found.curvature[0], basis.T @ hessian @ basis, atol=5e-3)


@pytest.mark.parametrize("count", [3, 5])
def test_sds_of_classes_are_those_of_the_posterior(random, count):
    """Against importance sampling from a wider Gaussian, of coefficients that sum to zero."""
    X, y = classes(random, count=count)
    model = curvi.BayesianLogisticRegression(standardize=False).fit(X, y)
    assert model.converged_
    assert model.covariance_ == "full"
    draws = model.sample(40_000, seed=1)
    coefficients = np.concatenate([draws.coef, draws.intercept[:, :, None]], axis=2)
    basis = contrast_basis(count)
    s = np.einsum("kc,dkp->dcp", basis, coefficients).reshape(len(coefficients), -1)
    centre, covariance = s.mean(axis=0), 1.3 * np.cov(s.T)
    root = np.linalg.cholesky(covariance)
    noise = random.normal(size=(20_000, s.shape[1]))
    w = np.einsum("kc,dcp->dkp", basis, (centre + noise @ root.T).reshape(-1, count - 1, 3))
    design = np.column_stack([X, np.ones(len(X))])
    log_density = -0.5 * np.sum(w**2, axis=(1, 2)) + 0.5 * np.sum(noise**2, axis=1)
    for part in np.array_split(np.arange(len(w)), 20):
        t = np.einsum("np,dkp->dnk", design, w[part], optimize=True)
        own = t[:, np.arange(len(y)), y]
        log_density[part] += np.sum(own - special.logsumexp(t, axis=2), axis=1)
    weight = special.softmax(log_density)
    mean = np.tensordot(weight, w, 1)
    sd = np.sqrt(np.tensordot(weight, (w - mean) ** 2, 1))
    ratio = np.column_stack([model.coef_sd_, model.intercept_sd_]) / sd
    assert 1 / np.sum(weight**2) > 2000
    assert np.all((ratio > 0.9) & (ratio < 1.1))
    assert np.all(np.abs(np.column_stack([model.coef_, model.intercept_]) - mean) < 0.15 * sd)


def test_coefficients_sum_to_zero_and_follow_their_labels(random):
    X, y = classes(random)
    names, order = np.array(["d", "b", "a", "c"]), np.argsort(["d", "b", "a", "c"])
    model = curvi.BayesianLogisticRegression().fit(X, y)
    other = curvi.BayesianLogisticRegression().fit(X, names[y])
    np.testing.assert_allclose(model.coef_.sum(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(model.intercept_.sum(), 0, atol=1e-6)
    # The draws of the quadrature have an order of the classes: it moves the last digits.
    np.testing.assert_allclose(other.coef_, model.coef_[order], atol=0.02 * model.coef_sd_.min())
    np.testing.assert_allclose(other.coef_sd_, model.coef_sd_[order], rtol=0.01)
    np.testing.assert_allclose(other.predict_proba(X), model.predict_proba(X)[:, order], atol=0.005)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_columns_nearly_equal_have_wide_sds_by_default_and_a_diagonal_is_flagged(
    random, kind, tmp_path
):
    X, y = twins(random, 30_000)
    model = curvi.BayesianLogisticRegression(standardize=False, prior_scale=10.0).fit(kind(X), y)
    design = np.column_stack([X, np.ones(len(X))])
    p = special.expit(design @ np.append(model.coef_, model.intercept_))
    hessian = (design * (p * (1 - p))[:, None]).T @ design + 0.01 * np.eye(3)
    laplace = np.sqrt(np.diag(np.linalg.inv(hessian)))[:2]
    assert model.covariance_ == "full"
    np.testing.assert_allclose(model.coef_sd_[0], laplace, rtol=0.05)
    narrow = curvi.BayesianLogisticRegression(
        standardize=False, prior_scale=10.0, covariance="diagonal"
    )
    with pytest.warns(curvi.MisfitWarning, match=r"2 of 2 .* fit again with covariance='full'"):
        narrow.fit(kind(X), y)
    assert np.all(narrow.coef_sd_[0] < laplace / 10)
    assert narrow.result_.sd_ratios[0, :2].min() > 10
    page = narrow.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "too small" in page
    assert "too small" not in model.report(tmp_path / "full.html").read_text(encoding="utf-8")
