"""NaturalGradient: exact on Gaussians, and on what a conditional family can be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError


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
