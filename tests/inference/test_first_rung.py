"""The first run of the ladder: its family by cost, and its draws."""

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from tests.solvers.problems import seed_of


@pytest.fixture
def rng(key):
    return np.random.default_rng(seed_of(key))


@pytest.mark.float64_only
def test_a_run_that_takes_all_its_steps_begins_again_on_more_draws(key, monkeypatch):
    def two(method):
        return 2

    monkeypatch.setattr(curvi.NaturalGradient, "default_max_steps", property(two))

    def log_density(z):
        return -jnp.sum(jnp.cosh(z - 4.0))

    calls = {"progress": False, "on_failure": "return", "seed": seed_of(key)}
    with pytest.warns(curvi.NotConvergedWarning):
        result = curvi.fit(log_density, jnp.zeros(40), **calls)
    np.testing.assert_array_equal(result.trace["num_draws"], [128, 128, 512, 512])
    assert result.draws.num_draws == 512
    elbos = result.trace["elbo"]
    assert elbos[2] == pytest.approx(elbos[0], rel=0.2)  # from where the first run began
    with pytest.warns(curvi.NotConvergedWarning):
        limited = curvi.fit(log_density, jnp.zeros(40), max_steps=2, **calls)
    assert limited.steps == 2
    steps = []

    def press(info):
        steps.append(info)
        if len(steps) == 3:
            raise KeyboardInterrupt

    with pytest.warns(curvi.NotConvergedWarning):
        cut = curvi.fit(log_density, jnp.zeros(40), on_step=press, **calls)
    assert cut.outcome is curvi.Outcome.INTERRUPTED
    np.testing.assert_array_equal(cut.params.mean, limited.params.mean)  # not one step of another


@pytest.mark.slow
@pytest.mark.float64_only
def test_a_dense_hessian_above_a_thousand_coordinates_has_a_full_covariance(key, rng):
    dimension = 1_050
    X = rng.normal(size=(1_500, dimension)) / 30 + rng.normal(size=(1_500, 1)) / 10
    y = rng.normal(size=1_500)
    seen, given = jnp.asarray(X), jnp.asarray(y)

    def log_density(z):
        return -0.5 * jnp.sum((given - seen @ z) ** 2) - 0.5 * jnp.sum(z**2)

    result = curvi.fit(log_density, jnp.zeros(dimension), progress=False, seed=seed_of(key))
    covariance = np.linalg.inv(X.T @ X + np.eye(dimension))
    sd = np.sqrt(np.diag(covariance))
    assert isinstance(result.family, curvi.FullRank)
    assert result.warnings == ()
    np.testing.assert_allclose(result.mean, covariance @ X.T @ y, atol=1e-3 * sd.max())
    np.testing.assert_allclose(result.sd, sd, rtol=1e-3)
