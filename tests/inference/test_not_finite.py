"""NaN and infinity, at the start, in the middle and everywhere around."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError, NumericalError
from tests.solvers.problems import seed_of

METHODS = {
    "trust-region": curvi.TrustRegion(),
    "lbfgs": curvi.LBFGS(),
    "hfsgvi": curvi.HFSGVI(),
    "dsvi": curvi.DSVI(0.05),
}


def faulty(params, batch, key):
    """A quadratic that is NaN with a probability, and always outside a ball."""
    broken = jax.random.uniform(key, (), params.dtype) < batch["probability"][0]
    outside = jnp.sum(params**2) > batch["limit"][0]
    return jnp.where(broken | outside, jnp.nan, jnp.sum((params - 1) ** 2))


@pytest.mark.filterwarnings("ignore::curvi.NotConvergedWarning")
@pytest.mark.parametrize("name", METHODS)
def test_runs_with_faults_recover_or_return_a_finite_state_with_its_code(name, key, dtype):
    """A hundred runs over all methods: the fault, the wall and the seed differ, not the code."""
    rng = np.random.default_rng(seed_of(key))
    start = jnp.zeros(2, dtype)
    for probability in (0.0, 0.1, 0.5, 0.97, 1.0):
        for limit in (0.5, 1.5, 2.5, 1e6, 1e30):
            result = curvi.minimise(
                faulty,
                start,
                method=METHODS[name],
                data={
                    "probability": jnp.full(1, probability, dtype),
                    "limit": jnp.full(1, limit, dtype),
                },
                seed=int(rng.integers(2**31)),
                max_steps=120,
                on_failure="return",
            )
            params = np.asarray(result.params)
            assert np.isfinite(params).all()
            assert result.outcome in set(curvi.Outcome) - {curvi.Outcome.RUNNING}
            assert np.sum(params**2) <= 1.001 * limit or not result.converged
            if probability == 1:
                assert result.outcome is curvi.Outcome.NON_FINITE
                np.testing.assert_array_equal(params, start)
            if result.converged:
                assert np.abs(params - 1).max() < 0.5
            if probability <= 0.5 and limit > 2:
                assert np.sum((params - 1) ** 2) < 2  # below where it started: it went on


def walled(position, rows):
    """A Gaussian between two walls; beyond them it is NaN or -inf."""
    inside = jnp.abs(position - rows["centre"]) < rows["limit"]
    beyond = jnp.where(rows["nan"] > 0, jnp.nan, -jnp.inf)
    return jnp.where(inside, -0.5 * ((position - rows["centre"]) / rows["sd"]) ** 2, beyond)


def no_prior(position):
    return jnp.zeros_like(position)


def walled_target(start, dtype, **numbers):
    """All that differs travels as data: one compilation."""
    rows = {name: jnp.full(1, number, dtype) for name, number in numbers.items()}
    return curvi.DataTarget(walled, rows, no_prior, jnp.asarray(start, dtype))


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
@pytest.mark.parametrize("limit", [0.5, 1.0, 1.5, 2.0, 3.0, 8.0, 20.0])
def test_a_density_with_holes_is_fitted_or_refused_but_never_silently_wrong(limit, key, dtype):
    target = walled_target(0.1, dtype, centre=0.0, sd=1.0, limit=limit, nan=1.0)
    options = {"seed": seed_of(key), "family": curvi.MeanField()}
    result = curvi.fit(target, on_failure="return", **options)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    assert np.isfinite(result.elbo) or not result.converged
    if limit >= 8:
        assert result.converged
        np.testing.assert_allclose(result.mean, 0, atol=0.01)
        np.testing.assert_allclose(result.sd, 1, rtol=0.01)
    elif limit <= 2:
        assert result.outcome.is_failure
        with pytest.raises(NumericalError) as caught:
            curvi.fit(target, **options)
        assert np.isfinite(caught.value.result.mean)


def test_a_narrow_support_is_found_by_the_search_over_widths(key, dtype):
    """All draws of the usual width fall outside (0, 0.01), where the log density is -inf."""
    target = walled_target(5.1e-3, dtype, centre=5e-3, sd=2e-4, limit=5e-3, nan=0.0)
    result = curvi.fit(target, seed=seed_of(key))
    assert result.converged
    np.testing.assert_allclose(result.mean, 5e-3, atol=2e-5)
    np.testing.assert_allclose(result.sd, 2e-4, rtol=0.02)


@pytest.mark.parametrize("value", [-np.inf, np.nan], ids=str)
def test_a_start_outside_the_support_is_refused_by_name(value, dtype):
    def log_density(position):
        return jnp.where(position["scale"] > 0, -position["scale"], value) + 0 * position["shift"]

    start = {"scale": jnp.asarray(-1.0, dtype), "shift": jnp.zeros((), dtype)}
    with pytest.raises(InputError, match=f"log_density is {value} at the starting position"):
        curvi.fit(log_density, start)


def test_a_start_that_is_finite_only_at_a_point_is_diagnosed(dtype):
    def log_density(position):
        return jnp.sqrt(-(position["edge"] ** 2)) - jnp.sum(position["free"] ** 2)

    start = {"edge": jnp.zeros((), dtype), "free": jnp.zeros(2, dtype)}
    with pytest.raises(
        NumericalError,
        match=r"is nan at draw \d+ .*only position\['edge'\] moves.*gradient in edge is not",
    ):
        curvi.fit(log_density, start)
