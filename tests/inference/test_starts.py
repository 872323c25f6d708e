"""Several starts, Laplace, saddles and gradients that are broken from the start."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError, NumericalError
from curvi.engine import run
from tests.solvers.problems import generator, linear, logistic, seed_of


def hole(position):
    """A Gaussian with a lower mode at 6, and nothing at all beyond 5.5 in the other coordinate."""
    x, y = position
    mixture = jnp.logaddexp(-0.5 * x**2 - 8, -0.5 * (x - 6) ** 2)
    return jnp.where(jnp.abs(y) < 5.5, mixture - 0.5 * y**2, jnp.nan)


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
@pytest.mark.float64_only
def test_the_best_start_wins_and_a_failed_one_does_not_disturb_the_others(key, dtype):
    """From (2, 5.3) starts go to either mode, and those that begin beyond 5.5 fail (42 % each)."""
    start = jnp.asarray([2.0, 5.3], dtype)
    options = {"num_draws": 32, "seed": seed_of(key), "on_failure": "return"}
    result = curvi.fit(curvi.Target(hole, start), num_starts=26, **options)
    bounds = result.start_elbos
    assert bounds.shape == (26,)
    assert 1 <= np.isnan(bounds).sum() <= 23  # one in a million: none of 25, or more
    assert result.elbo == pytest.approx(np.nanmax(bounds), abs=1e-6)
    np.testing.assert_allclose(result.mean, [6.0, 0.0], atol=0.02)
    assert any("starts failed" in sentence for sentence in result.warnings)


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
@pytest.mark.slow
def test_one_start_more_or_less_leaves_the_optimum_alone(key, dtype):
    target = logistic(generator(key), dtype)
    one = curvi.fit(target, seed=7)
    many = curvi.fit(target, seed=7, num_starts=3)
    np.testing.assert_allclose(many.mean, one.mean, atol=1e-4)
    assert many.converged
    with pytest.raises(InputError, match="num_starts is 0"):
        curvi.fit(target, num_starts=0)


def test_laplace_is_exact_on_a_gaussian(key, dtype):
    model = linear(generator(key))
    found = curvi.laplace(model.target(dtype))
    # A gain of 1e-8 nats (1e-5 in float32) that is left is a distance of sqrt(2e-8) sds.
    limit = 2e-4 if dtype == jnp.float64 else 1e-2
    sd = np.sqrt(np.diag(model.covariance))
    assert np.abs((np.asarray(found.mean) - model.mean) / sd).max() < limit
    np.testing.assert_allclose(found.sd, sd, rtol=limit)
    assert found.log_evidence == pytest.approx(model.log_evidence, abs=limit * 10)


def positive(position):
    """A gamma variable with shape 5 in the user's space, its logarithm inside."""
    return 5 * position - jnp.exp(position)


@pytest.mark.float64_only
def test_laplace_answers_in_the_users_space(dtype):
    """At the mode log 5 the curvature is 5: the user reads moments of exp(N(log 5, 1/5))."""
    found = curvi.laplace(curvi.Target(positive, jnp.zeros((), dtype), constrain=jnp.exp))
    assert float(found.mode[0]) == pytest.approx(np.log(5), abs=1e-4)
    mean = 5 * np.exp(0.1)
    assert float(found.mean) == pytest.approx(mean, rel=2e-3)
    assert float(found.sd) == pytest.approx(mean * np.sqrt(np.exp(0.2) - 1), rel=2e-2)
    assert np.asarray(found.sample(100)).min() > 0


@pytest.mark.float64_only
def test_laplace_follows_a_float64_target_where_the_default_is_float32():
    target = curvi.Target(lambda x: -0.5 * jnp.sum((x - 8) ** 2 / 0.2), jnp.zeros(2))
    with jax.enable_x64(False):
        found = curvi.laplace(target)
        mean, sd = found.mean, found.sd
    assert mean.dtype == sd.dtype == jnp.float64
    np.testing.assert_allclose(mean, 8, atol=1e-4)
    np.testing.assert_allclose(sd, np.sqrt(0.2), rtol=1e-12)


@pytest.mark.float64_only
def test_laplace_refuses_a_flat_direction_by_name(dtype):
    start = {"u": jnp.ones((), dtype), "v": jnp.zeros((), dtype), "w": jnp.ones((), dtype)}
    with pytest.raises(NumericalError, match=r"not positive definite along [uv] and [uv]:"):
        curvi.laplace(lambda p: -((p["u"] + p["v"]) ** 2) - p["w"] ** 2, start)


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
@pytest.mark.slow
@pytest.mark.parametrize("family", [curvi.MeanField(), curvi.FullRank()], ids=str)
def test_a_start_from_laplace_reaches_the_same_optimum_in_fewer_steps(family, key, dtype):
    target = logistic(generator(key), dtype)
    plain = curvi.fit(target, family=family, seed=1)
    started = curvi.fit(target, family=family, seed=1, init="laplace")
    np.testing.assert_allclose(started.mean, plain.mean, atol=1e-4)
    np.testing.assert_allclose(started.sd, plain.sd, rtol=1e-3)
    assert started.steps <= plain.steps
    with pytest.raises(InputError, match="init is 'mode'"):
        curvi.fit(target, init="mode")


def mirrored(position):
    return jnp.logaddexp(-0.5 * jnp.sum((position - 2) ** 2), -0.5 * jnp.sum((position + 2) ** 2))


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
@pytest.mark.float64_only
def test_an_exact_saddle_is_not_called_converged(key, dtype):
    """Between two mirrored modes pairs of draws make the gradient of the mean exactly zero."""
    result = curvi.fit(
        mirrored, jnp.zeros(2, dtype), draws=curvi.Draws("antithetic", 256), seed=seed_of(key)
    )
    assert result.converged
    # On some draws the middle is a true optimum; on these it must not be one.
    if np.abs(np.asarray(result.mean)).max() < 0.5:
        result.covariance(linear_response=True)
    else:
        np.testing.assert_allclose(np.abs(result.mean), 2, atol=0.3)


def test_a_broken_gradient_at_the_start_is_named(dtype):
    def log_density(position):
        return -0.5 * jnp.sum(position["a"] ** 2) - jnp.sqrt(jnp.sum(0 * position["b"]))

    start = {"a": jnp.zeros(2, dtype), "b": jnp.ones(1, dtype)}
    with pytest.raises(NumericalError, match=r"its gradient in b\[0\] is not"):
        curvi.fit(log_density, start)


@pytest.mark.float64_only
def test_a_regression_in_its_own_units_is_fitted_from_far_away(key):
    """Pounds against inches: from zero the optimum is a million sds of the first q away."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    inches = rng.normal(67, 4, size=200)
    pounds = -60_000 + 1_300 * inches + 19_000 * rng.normal(size=200)
    X = jnp.stack([jnp.ones(200), jnp.asarray(inches)], axis=1)
    y = jnp.asarray(pounds)

    def log_density(z):
        return -0.5 * jnp.sum((y - X @ z["beta"]) ** 2) * jnp.exp(-2 * z["s"]) - 200 * z["s"]

    result = curvi.fit(log_density, {"beta": jnp.zeros(2), "s": jnp.zeros(())}, progress=False)
    best, residual, _, _ = np.linalg.lstsq(X, y, rcond=None)
    # With a flat prior on log sigma the slopes are Student t with 198 degrees of freedom.
    sd = np.sqrt(np.diag(np.linalg.inv(X.T @ X)) * residual[0] / 196)
    assert result.converged
    assert not result.alarms
    np.testing.assert_allclose((np.asarray(result.mean["beta"]) - best) / sd, 0.0, atol=0.05)
    np.testing.assert_allclose(result.sd["beta"] / sd, 1.0, atol=0.05)


@pytest.mark.float64_only
@pytest.mark.parametrize("size", [2, 5])
def test_a_target_without_an_end_is_called_improper_however_far_it_is_followed(size):
    result = curvi.fit(
        lambda x: x[0] - 0.5 * jnp.sum(x[1:] ** 2), jnp.zeros(size), progress=False,
        on_failure="return",
    )  # fmt: skip
    assert not result.converged
    assert "improper along x[0]" in result.message


@pytest.mark.float64_only
def test_the_trust_region_takes_over_where_natural_gradients_do_not_arrive(monkeypatch):
    monkeypatch.setattr(curvi.NaturalGradient, "default_max_steps", property(lambda _: 2))

    def log_density(x):
        return -0.5 * jnp.sum((x - 30.0) ** 2) - jnp.sum(jnp.exp(0.1 * (x - 30.0)))

    result = curvi.fit(log_density, jnp.zeros(2), progress=False, on_failure="return")
    assert result.converged
    assert isinstance(result.method, curvi.TrustRegion)
    assert result.steps == len(result.trace["step"]) > 2
    np.testing.assert_allclose(result.mean, 29.9, atol=0.05)


@pytest.mark.float64_only
@pytest.mark.filterwarnings("ignore::curvi.NotConvergedWarning")
def test_a_fallback_that_raises_leaves_the_first_run(monkeypatch):
    """It may need what a user's function does not have, such as second derivatives."""
    monkeypatch.setattr(curvi.NaturalGradient, "default_max_steps", property(lambda _: 2))

    def run_without_hessians(problem, method, *given, **options):
        if isinstance(method, curvi.TrustRegion):
            raise TypeError("no second derivatives")
        return run(problem, method, *given, **options)

    monkeypatch.setattr("curvi.inference._initial.run", run_without_hessians)
    result = curvi.fit(
        lambda x: -0.5 * jnp.sum((x - 3e3) ** 2), jnp.zeros(2), progress=False, on_failure="return"
    )
    assert result.outcome is curvi.Outcome.BUDGET
    assert isinstance(result.method, curvi.NaturalGradient)
