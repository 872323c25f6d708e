"""Fixed effects: linear regression by dense algebra, and what cannot be columns."""

import numpy as np
import pytest
import scipy.stats
from scipy import sparse

import curvi
from curvi.latent import Assembly, Fixed
from curvi.likelihoods import likelihood_of
from tests.latent.models import generator, site_model

pytestmark = pytest.mark.float64_only


@pytest.mark.parametrize("given", [np.asarray, sparse.csr_array])
def test_coefficients_have_the_posterior_of_dense_algebra(given, key):
    rng = generator(key)
    X, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    mean, sd = np.asarray([0.5, -1.0, 0.0]), np.asarray([2.0, 0.3, 1.0])
    fixed = Fixed(given(X), prior_scale=sd, prior_mean=mean, labels=("a", "b", "c"))
    likelihood = likelihood_of("gaussian")
    model = site_model(Assembly([fixed], likelihood.extras, [1.0]), likelihood, y)
    theta = np.asarray([[-0.4], [0.7]])
    fitted = model.fit(theta)
    effects = model.effects(theta, fitted)
    for k, noise in enumerate(np.exp(theta[:, 0])):
        total = X @ np.diag(sd**2) @ X.T + noise**2 * np.eye(20)
        evidence = scipy.stats.multivariate_normal(X @ mean, total).logpdf(y)
        assert fitted.bound[k] == pytest.approx(evidence, abs=1e-8)
        covariance = np.linalg.inv(X.T @ X / noise**2 + np.diag(sd**-2))
        expected = covariance @ (X.T @ y / noise**2 + mean / sd**2)
        np.testing.assert_allclose(effects.mean[k], expected, atol=1e-10)
        np.testing.assert_allclose(effects.variance[k], np.diag(covariance), rtol=1e-10)
    np.testing.assert_allclose(fixed.columns_for(X[:4]).toarray(), X[:4])
    assert fixed.labels() == ["a", "b", "c"]
    assert Fixed(X, "x").labels() == ["x[0]", "x[1]", "x[2]"]


REFUSED = {
    "scale": (lambda X: Fixed(X, prior_scale=[1.0, -1.0]), "prior_scale of 'fixed'"),
    "mean": (lambda X: Fixed(X, prior_mean=np.nan), "prior_mean of 'fixed'"),
    "labels": (lambda X: Fixed(X, labels=["a"]), "2 columns and 1 labels"),
    "axes": (lambda X: Fixed(X[0]), "two axes"),
    "new rows": (lambda X: Fixed(X).columns_for(X[:, :1]), "2 columns and new rows 1"),
}


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_are_no_columns_is_refused(call, sentence):
    with pytest.raises(curvi.InputError, match=sentence):
        call(np.ones((3, 2)))
