"""NaturalGradient: exact on Gaussians, and on what a conditional family can be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError
from curvi.solvers._natural_gradient import _lifted_root


def gaussian(key, dimension, dtype):
    root = jnp.eye(dimension) + 0.5 * jax.random.normal(key, (dimension, dimension))
    precision = (root @ root.T).astype(dtype)
    centre = 3 * jax.random.normal(jax.random.fold_in(key, 1), (dimension,), dtype)
    return (lambda x: -0.5 * (x - centre) @ precision @ (x - centre)), centre, precision


def test_a_gaussian_target_is_fitted_exactly(key, dtype):
    target, centre, precision = gaussian(key, 5, dtype)
    result = curvi.fit(
        target,
        jnp.zeros(5, dtype),
        family=curvi.FullRank(),
        method=curvi.NaturalGradient(),
        mc_tolerance=None,
        progress=False,
    )
    assert result.converged
    assert result.steps < 40
    covariance = np.linalg.inv(np.asarray(precision, np.float64))
    tight = {"rtol": 1e-3, "atol": 1e-3 * covariance.max()}
    if dtype == jnp.float64:
        tight = {"rtol": 1e-4, "atol": 1e-4 * covariance.max()}
    np.testing.assert_allclose(result.params.mean, centre, atol=1e-2 * covariance.max() ** 0.5)
    np.testing.assert_allclose(result.covariance(), covariance, **tight)


@pytest.mark.float64_only
def test_a_funnel_is_fitted_by_the_family_that_it_belongs_to(key):
    strength = float(jax.random.uniform(key, minval=0.2, maxval=0.5))

    def funnel(p):
        spread = jnp.exp(strength * p["g"] - strength**2)
        local = -0.5 * jnp.sum((p["x"] / spread) ** 2) - 3 * jnp.log(spread)
        return -0.5 * p["g"] ** 2 + local - 2 * jnp.log(2 * jnp.pi)

    result = curvi.fit(
        funnel,
        {"g": jnp.ones(()), "x": jnp.ones(3)},
        family=curvi.Conditional(("g",)),
        method=curvi.NaturalGradient(),
        num_draws=2048,
        draws="whitened",
        mc_tolerance=None,
        progress=False,
    )
    assert result.converged
    # An entry of B has the error of a third moment of the draws, about 0.016.
    np.testing.assert_allclose(result.params.scale_params["warp"], strength, atol=0.12)
    assert abs(result.elbo) < 0.02 + 5 * result.elbo_se  # the density is normalised


@pytest.mark.float64_only
@pytest.mark.parametrize("family", [curvi.MeanField(), curvi.LowRank(1), curvi.StudentT(5.0)])
def test_other_families_are_refused(family):
    with pytest.raises(InputError, match="NaturalGradient steps on the host"):
        curvi.fit(
            lambda x: -0.5 * jnp.sum(x**2),
            jnp.zeros(3),
            family=family,
            method=curvi.NaturalGradient(),
            progress=False,
        )


def test_a_precision_with_huge_and_negative_eigenvalues_has_a_root(key):
    """It is finite next to eigenvalues forty powers of ten larger, and keeps all others."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    vectors = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    for values in ([1e40, 3.0, 0.5, -2.0], [2.0, 1.0, 0.7, -1e-3]):
        root = _lifted_root((vectors * values) @ vectors.T)
        np.testing.assert_array_equal(root, np.tril(root))
        assert np.all(np.diagonal(root) > 0)
        assert np.all(np.isfinite(root))
    lifted = vectors.T @ np.linalg.inv(root @ root.T) @ vectors
    np.testing.assert_allclose(np.diagonal(lifted)[:3], values[:3], rtol=1e-9)
    assert 0 < lifted[3, 3] < 0.7


@pytest.mark.float64_only
def test_slopes_whose_squares_overflow_end_a_run_and_raise_nothing():
    target = curvi.Target(lambda z: -1e200 * jnp.sum(z**2), jnp.ones(2))
    with pytest.warns(curvi.NotConvergedWarning):
        result = curvi.fit(
            target, family=curvi.FullRank(), method=curvi.NaturalGradient(), on_failure="warn",
        )  # fmt: skip
    assert not result.converged
