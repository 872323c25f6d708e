"""Series of every likelihood, many hyperparameters, fits that are left early, files that lie."""

import numpy as np
import pytest

import curvi
from curvi._core.run import OutOfTime
from curvi.likelihoods import likelihood_of
from tests.latent.models import generator
from tests.latent.test_integral import cut

pytestmark = pytest.mark.float64_only


def counts(key, steps=60):
    rng = generator(key)
    return rng.poisson(np.exp(1 + np.cumsum(0.2 * rng.normal(size=steps)))).astype(float)


LEVEL = np.sin(np.arange(80) / 9)
DRAWN = {
    "student-t": lambda rng: LEVEL + 0.2 * rng.standard_t(2.0, size=80),
    "negative-binomial": lambda rng: rng.poisson(np.exp(2 + LEVEL) * rng.gamma(4.0, size=80) / 4),
    "gamma": lambda rng: np.exp(LEVEL) * rng.gamma(9.0, size=80) / 9,
    "lognormal": lambda rng: np.exp(LEVEL + 0.3 * rng.normal(size=80)),
    "beta": lambda rng: rng.beta(*(20 / (1 + np.exp(s * LEVEL)) for s in (-1, 1))),
    "exponential": lambda rng: np.exp(LEVEL) * rng.exponential(size=80),
    "weibull": lambda rng: np.exp(LEVEL) * rng.weibull(3.0, size=80),
    "zero-inflated-poisson": lambda rng: rng.poisson(np.exp(2 + LEVEL)) * (rng.random(80) < 0.8),
}


@pytest.mark.parametrize("name", DRAWN)
def test_likelihoods_of_the_table_find_the_level_and_say_what_comes(name, key):
    y = np.asarray(DRAWN[name](generator(key)), float)
    y[[5, 6]] = np.nan
    model = curvi.StateSpace(likelihood=name).fit(y)
    signal = model.smooth()
    assert np.corrcoef(signal.mean, LEVEL)[0, 1] > 0.7
    extras = {extra.name for extra in likelihood_of(name).extras}
    named = {"noise" if extra == "residual sd" else extra for extra in extras}
    assert model.hyperparameters_.keys() == {"level"} | named
    ahead, inside = model.forecast(3), model.smooth(response=True)
    assert (ahead.upper - ahead.lower > (inside.upper - inside.lower)[-1]).all()
    likelihood_of(name).check(model.simulate(20, 2).ravel())


def test_outliers_move_a_level_less_with_student_noise(key):
    y = LEVEL + 0.1 * generator(key).normal(size=80)
    y[40] += 8.0
    robust, plain = (curvi.StateSpace(likelihood=n).fit(y) for n in ("student-t", "gaussian"))
    errors = [np.abs(m.smooth().mean - LEVEL)[35:46].max() for m in (robust, plain)]
    assert errors[0] < 0.3
    assert errors[0] < 0.5 * errors[1]


def test_five_hyperparameters_are_importance_sampled(key):
    rng = generator(key)
    season = np.tile([0.5, 0.0, -0.5, 0.0], 15)
    y = 0.05 * np.arange(60) + season + 0.3 * rng.standard_t(3.0, size=60)
    model = curvi.StateSpace(trend=True, season=4, likelihood="student-t").fit(y)
    assert model.lattice_.complete
    assert model.lattice_.points.shape[1] == 5
    assert model.lattice_.khat is not None
    assert np.abs(model.smooth("season").mean - season).max() < 0.4


@pytest.mark.parametrize("error", [OutOfTime, KeyboardInterrupt])
def test_a_fit_that_is_left_keeps_what_it_has_and_says_so(error, key, monkeypatch, tmp_path):
    y, model = counts(key), curvi.StateSpace(likelihood="poisson")
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, error, 2)
        if error is OutOfTime:
            with pytest.warns(curvi.NotConvergedWarning, match="give more seconds"):
                model.fit(y, time_budget=60.0)
        else:
            with pytest.raises(curvi.Interrupted):
                model.fit(y)
    assert not model.lattice_.complete
    assert np.isfinite(model.smooth().mean).all()
    assert model.hyperparameters_["level"][1] == 0.0
    page = model.report(tmp_path / "report.html", 3).read_text()
    assert "Time was up" in page


def test_a_fit_that_fails_leaves_the_earlier_one_as_it_was(key):
    y = counts(key)
    model = curvi.StateSpace(likelihood="poisson").fit(y)
    before = model.forecast(3).mean
    with pytest.raises(curvi.InputError, match="before the first evaluation"):
        model.fit(np.concatenate([y, y]), time_budget=1e-9)
    np.testing.assert_array_equal(model.forecast(3).mean, before)


def test_a_stored_series_of_other_sites_is_refused(key, tmp_path):
    model = curvi.StateSpace(likelihood="poisson").fit(counts(key))
    kept = model.lattice_.kept
    model.lattice_ = model.lattice_._replace(kept=kept._replace(mean=kept.mean + 0.5))
    model.save(tmp_path / "series")
    with pytest.raises(curvi.InputError, match="other sites, other predictors"):
        curvi.load(tmp_path / "series")


def test_a_run_of_returns_that_are_zero_is_no_answer():
    """Their log variance has no lower end; hyperparameters were NaN, and nothing was said."""
    returns = np.random.default_rng(0).normal(size=150)
    returns[20:40] = 0.0
    words = "exactly zero in a row|did not converge"
    with pytest.raises((curvi.InputError, curvi.NotConvergedWarning), match=words):
        curvi.StateSpace(likelihood="volatility").fit(returns)


def test_large_counts_have_an_sd_with_a_spread():
    """Rounding of their log densities in single precision chose one point of the lattice."""
    steps = np.cumsum(0.05 * np.random.default_rng(1).normal(size=50))
    model = curvi.StateSpace(likelihood="poisson").fit(np.round(1e9 * np.exp(steps)))
    mean, sd = model.hyperparameters_["level"]
    assert mean == pytest.approx(0.05, rel=0.3)
    assert sd / mean == pytest.approx(1 / np.sqrt(2 * 49), rel=0.2)
