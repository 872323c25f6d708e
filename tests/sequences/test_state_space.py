"""State-space models against the Kalman smoother, dense Gaussians and direct maximisation."""

import functools
import math

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

import curvi
from curvi._core import threads
from curvi.latent import Iteration, SiteModel, integrate
from curvi.likelihoods import Gaussian, likelihood_of
from curvi.sequences import _series
from curvi.sequences._series import Parts, Series, as_series, model_for
from tests.families.kalman import LinearGaussian, smoothed

pytestmark = pytest.mark.float64_only


def generator(key):
    return np.random.default_rng(int(jax.random.bits(key)))


MEAN, FIRST_SEASON, COEFFICIENT = 3.0, 3.0, 2.5  # prior sds, in the units of the series


def model_of(y, likelihood, parts, *, X=None, offset=0.0, scale=1.0):
    X = np.zeros((len(y), 0)) if X is None else X
    series = Series(y, X, np.ones(X.shape[1]), scale, offset, y)
    scales = {"level": 1.0, "trend": 0.5, "season": 0.7, "noise": 1.0}
    return model_for(series, parts, likelihood_of(likelihood), scales)


def dense_prior(parts, steps, theta):
    """The covariance of the predictor without regression, by hand."""
    time = np.arange(steps)
    total = np.zeros((steps, steps))
    if parts.level == "walk":
        total += 100.0 + theta["level"] ** 2 * np.minimum.outer(time, time)
    elif parts.level == "ar":
        lag = np.abs(np.subtract.outer(time, time))
        total += theta["level"] ** 2 / (1 - theta["phi"] ** 2) * theta["phi"] ** lag
    if parts.level != "walk":
        total += MEAN**2
    if parts.season:
        moves = np.tri(steps) - np.tri(steps, k=-parts.season)
        moves[: parts.season - 1] = np.eye(steps)[: parts.season - 1]
        sds = np.full(steps, theta["season"])
        sds[: parts.season - 1] = FIRST_SEASON
        total += np.linalg.inv(moves.T @ np.diag(sds**-2.0) @ moves)
    return total


def test_with_gaussian_noise_the_bound_is_the_evidence_and_q_the_kalman_smoother(key):
    """A local linear trend with missing observations."""
    rng, scale = generator(key), 1.5
    y = np.cumsum(rng.normal(size=40)) + rng.normal(size=40)
    y[[0, 7, 8, 9, 39]] = np.nan
    theta = rng.normal(size=(3, 3)) * 0.5
    model = model_of(y, "gaussian", Parts(trend=True), offset=0.3, scale=scale)
    posterior = model.completed(theta, model.fit(theta))
    for k, (level, trend, noise) in enumerate(np.exp(theta)):
        oracle = LinearGaussian(
            transition=np.asarray([[1.0, 1.0], [0.0, 1.0]]),
            process=np.diag([level**2, trend**2]),
            emission=np.asarray([[1.0, 0.0]]),
            noise=np.asarray([[noise**2]]),
            start=np.diag([(10 * scale) ** 2, scale**2]),
        )
        means, covariances, evidence = smoothed(oracle, (y - 0.3)[:, None])
        assert posterior.bound[k] == pytest.approx(evidence, abs=1e-8)
        np.testing.assert_allclose(posterior.mean[k], means[:, 0] + 0.3, atol=1e-8)
        np.testing.assert_allclose(posterior.variance[k], covariances[:, 0, 0], rtol=1e-8)


@pytest.mark.parametrize("level", ["walk", "ar", None])
def test_seasons_and_regressions_agree_with_the_dense_gaussian(level, key):
    rng = generator(key)
    y, X = rng.normal(size=13), rng.normal(size=(13, 2))
    y[[3, 4]] = np.nan
    parts = Parts(level, season=4)
    model = model_of(y, "gaussian", parts, X=X)
    theta = 0.3 * rng.normal(size=(1, model.assembly.dimension))
    natural = {name: values[0] for name, values in model.assembly.natural(theta).items()}
    covariance = dense_prior(parts, 13, natural) + COEFFICIENT**2 * X @ X.T
    seen = np.isfinite(y)
    total = covariance[np.ix_(seen, seen)] + natural["noise"] ** 2 * np.eye(seen.sum())
    evidence = scipy.stats.multivariate_normal(np.zeros(seen.sum()), total).logpdf(y[seen])
    gain = np.linalg.solve(total, covariance[seen]).T
    posterior = model.completed(theta, model.fit(theta))
    assert posterior.bound[0] == pytest.approx(evidence, abs=1e-8)
    np.testing.assert_allclose(posterior.mean[0], gain @ y[seen], atol=1e-8)
    variance = np.diag(covariance - gain @ covariance[seen])
    np.testing.assert_allclose(posterior.variance[0], variance, rtol=1e-7)


def test_a_season_repeats_where_its_innovations_vanish():
    model = curvi.StateSpace(None, season=3, prior_scales={"season": 1e-3, "noise": 0.1})
    y = np.tile([1.0, -2.0, 4.0], 8) + 0.01 * np.arange(24) % 0.03
    ahead = model.fit(y).forecast(6)
    np.testing.assert_allclose(ahead.mean, np.tile([1.0, -2.0, 4.0], 2), atol=0.1)


LABELS = {"poisson": (0.0, 2.0, 5.0, 1.0), "bernoulli": (1.0, -1.0, -1.0, 1.0),
          "volatility": (0.3, -1.2, 2.0, 0.0)}  # fmt: skip


@pytest.mark.parametrize("likelihood", LABELS)
def test_no_gaussian_has_a_higher_bound(likelihood):
    """Every mean and covariance of four steps is free, and the expectations are quadratures."""
    y = np.asarray(LABELS[likelihood])
    model = model_of(y, likelihood, Parts("ar"))
    theta = np.asarray([[math.log(0.8), 0.6]])
    prior = dense_prior(Parts("ar"), 4, {"level": 0.8, "phi": math.tanh(0.6)})
    precision, nodes = np.linalg.inv(prior), np.polynomial.hermite_e.hermegauss(60)
    weights = nodes[1] / nodes[1].sum()
    densities = {
        "poisson": lambda t: y[:, None] * t - np.exp(t) - scipy.special.gammaln(y + 1)[:, None],
        "bernoulli": lambda t: -np.logaddexp(0, -y[:, None] * t),
        "volatility": lambda t: -0.5 * (math.log(2 * math.pi) + t + y[:, None] ** 2 * np.exp(-t)),
    }

    def negative_bound(vector):
        mean, root = vector[:4], np.zeros((4, 4))
        root[np.tril_indices(4)] = vector[4:]
        covariance = root @ root.T
        sd = np.sqrt(np.diag(covariance))
        rows = densities[likelihood](mean[:, None] + sd[:, None] * nodes[0]) @ weights
        divergence = np.trace(precision @ covariance) - 4 + mean @ precision @ mean
        divergence += np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1]
        return 0.5 * divergence - rows.sum()

    start = np.concatenate([np.zeros(4), (0.5 * np.eye(4))[np.tril_indices(4)]])
    best = scipy.optimize.minimize(negative_bound, start, method="BFGS", options={"gtol": 1e-6})
    assert model.fit(theta).bound[0] == pytest.approx(-best.fun, abs=2e-7)


def test_a_lattice_integrates_skewed_densities():
    """The logarithm of a gamma variable beside a correlated Gaussian one: both are known."""
    shape = 3.0

    def log_density(points):
        x, z = points.T
        gamma = shape * x - np.exp(x) - scipy.special.gammaln(shape)
        normal = -0.5 * (z - 0.5 * x) ** 2 - 0.5 * math.log(2 * math.pi)
        return gamma + normal, np.exp(x)

    lattice = integrate(log_density, np.asarray([3.0, -2.0]), cutoff=12.0)
    assert lattice.complete
    assert lattice.log_integral == pytest.approx(0.0, abs=1e-4)
    assert lattice.weights @ lattice.kept == pytest.approx(shape, rel=1e-4)
    mean = scipy.special.digamma(shape)
    np.testing.assert_allclose(lattice.weights @ lattice.points, [mean, 0.5 * mean], atol=1e-3)
    few = integrate(log_density, np.asarray([3.0, -2.0]), most=9)
    assert not few.complete
    assert len(few.weights) <= 9


def counts(key, steps=60):
    rng = generator(key)
    return rng.poisson(np.exp(1 + np.cumsum(0.2 * rng.normal(size=steps)))).astype(float)


def test_what_nobody_has_seen_changes_nothing(key):
    y = counts(key)
    model, longer = (
        curvi.StateSpace(likelihood="poisson").fit(s) for s in (y, np.append(y, [np.nan] * 5))
    )
    # The draws behind the weights of the hyperparameters fall otherwise: a fiftieth of an sd.
    off = (longer.smooth().mean[:-5] - model.smooth().mean) / model.smooth().sd
    assert np.abs(off).max() < 0.02
    assert longer.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-5)
    ahead = model.simulate(4000, 5)
    rate = longer.smooth(response=True).mean[-5:]
    # The rate has an sd of its own; eight standard errors of the mean of 4,000 futures.
    error = 8 * ahead.std(axis=0) / math.sqrt(len(ahead))
    assert (np.abs(ahead.mean(axis=0) - rate) < error + 0.02 * rate).all()


@pytest.mark.parametrize("counted", [0, 1])
def test_a_series_of_zeros_says_that_rates_are_low(counted):
    """Steps far too long once passed for good ones: the bound was rounding."""
    y = np.zeros(50)
    y[20] = counted
    model = curvi.StateSpace(likelihood="poisson").fit(y)
    mean, sd = model.hyperparameters_["level"]
    assert 0.1 < sd < 1  # hardly more than the half-normal prior of scale one is known
    assert mean < 1
    assert model.smooth(response=True).mean.max() < 0.3
    assert model.forecast(2).upper.max() <= 1


def test_the_unit_of_a_series_does_not_matter(key):
    rng = generator(key)
    y = np.cumsum(rng.normal(size=50)) + rng.normal(size=50)
    plain, scaled = (curvi.StateSpace().fit(s) for s in (y, 1000 * y - 7))
    np.testing.assert_allclose(scaled.smooth().lower, 1000 * plain.smooth().lower - 7, rtol=1e-5)
    np.testing.assert_allclose(
        scaled.forecast(4).mean, 1000 * plain.forecast(4).mean - 7, rtol=1e-5
    )


def test_bands_hold_the_probability_that_they_state(key):
    """Quantiles of the mixture over hyperparameters, checked on draws from it."""
    model = curvi.StateSpace(likelihood="poisson").fit(counts(key))
    lattice, band = model.lattice_, model.smooth(interval=0.8)
    rng = generator(key)
    chosen = rng.choice(len(lattice.weights), 20_000, p=lattice.weights)
    drawn = rng.normal(lattice.kept.mean[chosen], np.sqrt(lattice.kept.variance[chosen]))
    np.testing.assert_allclose(
        ((drawn > band.lower) & (drawn < band.upper)).mean(0), 0.8, atol=0.02
    )
    np.testing.assert_allclose(drawn.mean(axis=0), band.mean, atol=0.05)


def test_components_add_up_to_the_signal(key):
    rng = generator(key)
    y = np.cumsum(0.3 * rng.normal(size=48)) + np.tile([1.0, 0.0, -1.0, 0.0], 12)
    X = rng.normal(size=(48, 1))
    model = curvi.StateSpace(season=4).fit(y + 0.5 * X[:, 0], X)
    parts = model.smooth("level").mean + model.smooth("season").mean + X @ model.coef_
    np.testing.assert_allclose(parts, model.smooth().mean, atol=1e-8)
    assert abs(model.coef_[0] - 0.5) < 6 * model.coef_sd_[0]
    assert model.forecast(3, X=np.zeros((3, 1))).mean.shape == (3,)


@pytest.mark.parametrize("likelihood", ["gaussian", "volatility"])
def test_a_fitted_series_can_be_drawn(likelihood, key):
    model = curvi.StateSpace(likelihood=likelihood).fit(generator(key).normal(size=30))
    assert len(model.plot(5).axes) == 1


Y = np.arange(6.0)
YEARS = np.arange("1990", "1997", dtype="datetime64[Y]").astype("datetime64[ns]")


def dated(times):
    return pd.Series(Y, index=times[:6])


def test_masked_entries_are_missing_and_markets_are_closed_on_weekends():
    y = np.asarray([1.0, 2.0, 99.0, 2.5, 3.0, 2.0])
    masked = curvi.StateSpace().fit(np.ma.masked_greater(y, 50))
    gap = curvi.StateSpace().fit(np.where(y > 50, np.nan, y))
    np.testing.assert_array_equal(masked.smooth().mean, gap.smooth().mean)
    days = pd.Series(Y, index=pd.bdate_range("2024-01-04", periods=6))
    assert len(curvi.StateSpace().fit(days).smooth().mean) == 6


def test_working_days_have_a_season_and_other_days_leave_none_out():
    week = pd.Series(np.tile(Y[:5], 3), index=pd.bdate_range("2024-01-04", periods=15))
    assert len(as_series(week, None, Gaussian(), season=True).y) == 15
    daily = pd.Series(np.tile(Y, 3), index=pd.date_range("2024-01-01", periods=18))
    with pytest.raises(
        curvi.InputError, match=r"leaves out at least one step between y\[2\] and y\[3\]"
    ):
        curvi.StateSpace(season=7).fit(daily.drop(daily.index[3]))


@pytest.mark.parametrize("form", ["to_period", "tz_localize"])
def test_periods_and_time_zones_are_times_too(form):
    months = pd.Series(np.tile(Y, 2), index=pd.date_range("2024-01-01", periods=12, freq="MS"))
    given = months.to_period("M") if form == "to_period" else months.tz_localize("Europe/Rome")
    assert len(as_series(given, None, Gaussian(), season=True).y) == 12
    with pytest.raises(curvi.InputError, match="does not go forward"):
        curvi.StateSpace().fit(given[::-1])
    with pytest.raises(curvi.InputError, match="leaves out"):
        curvi.StateSpace().fit(given.drop(given.index[4]))


REFUSED = {
    "rows of X": (
        lambda: curvi.StateSpace().fit(dated(YEARS), X=pd.DataFrame({"x": Y}, index=YEARS[5::-1])),
        "the index of X differs",
    ),
    "two axes": (lambda: curvi.StateSpace().fit(np.ones((3, 2))), "one series of shape"),
    "text": (lambda: curvi.StateSpace().fit(["a", "b"]), "not an array of numbers"),
    "constant": (lambda: curvi.StateSpace().fit(np.ones(5)), "does not vary"),
    "infinity": (lambda: curvi.StateSpace().fit([1.0, np.inf, 2.0]), r"y\[1\] is infinite"),
    "nothing seen": (lambda: curvi.StateSpace().fit([np.nan, 1.0]), "at least 2"),
    "half counts": (lambda: curvi.StateSpace(likelihood="poisson").fit(Y + 0.5), r"y\[0\] is 0.5"),
    "labels": (lambda: curvi.StateSpace(likelihood="bernoulli").fit(Y), r"y\[2\] is 2"),
    "likelihood": (lambda: curvi.StateSpace(likelihood="cauchy").fit(Y), "choose one of"),
    "slope": (lambda: curvi.StateSpace("ar", trend=True).fit(Y), "needs level='walk'"),
    "season": (lambda: curvi.StateSpace(season=1).fit(Y), "at least 2 steps"),
    "part of a season": (lambda: curvi.StateSpace(season=7).fit(Y), "two whole periods are needed"),
    "a long season": (
        lambda: curvi.StateSpace(season=365).fit(np.arange(800.0)), "sines and cosines"),
    "nothing": (lambda: curvi.StateSpace(None).fit(Y), "no process left"),
    "regressors": (lambda: curvi.StateSpace().fit(Y, np.ones((5, 1))), "one row per step"),
    "a constant": (lambda: curvi.StateSpace().fit(Y, np.ones((6, 1))), "is constant"),
    "future": (lambda: curvi.StateSpace().fit(Y, Y[::-1] ** 2).forecast(2), "give X of shape"),
    "far": (lambda: curvi.StateSpace().fit(Y).forecast(10**5), "at most 10000 ahead"),
    "unwanted": (lambda: curvi.StateSpace().fit(Y).forecast(2, X=np.ones((2, 1))), "fit"),
    "not fitted": (lambda: curvi.StateSpace().smooth(), "call fit"),
    "component": (lambda: curvi.StateSpace().fit(Y).smooth("season"), "choose one of"),
    "interval": (lambda: curvi.StateSpace().fit(Y).smooth(interval=1.5), "below 1"),
    "complex": (lambda: curvi.StateSpace().fit(Y + 1j), "complex numbers"),
    "complex frames": (
        lambda: curvi.StateSpace().fit(Y, pd.DataFrame({"a": Y + 1j, "b": Y})), "complex"),
    "dates in frames": (
        lambda: curvi.StateSpace().fit(
            Y, pd.DataFrame({"a": pd.date_range("2020", periods=len(Y)), "b": Y})), "dates"),
    "complex regressors": (lambda: curvi.StateSpace().fit(Y, Y + 1j), "X holds complex numbers"),
    "complex objects": (
        lambda: curvi.StateSpace().fit(Y, [[complex(v, 1)] for v in Y.tolist()]), "complex"),
    "an array of complex objects": (
        lambda: curvi.StateSpace().fit((Y + 1j).astype(object)), "y holds complex numbers"),
    "dated regressors": (lambda: curvi.StateSpace().fit(Y, YEARS[:6]), "X holds dates or times"),
    "one period and a half": (lambda: curvi.StateSpace(season=4).fit(Y), "two whole periods"),
    "a season too dear": (
        lambda: curvi.StateSpace(season=100).fit(np.arange(2000.0)), "the square of the season"),
    "dates": (lambda: curvi.StateSpace().fit(YEARS), "dates or times"),
    "backwards": (lambda: curvi.StateSpace().fit(dated(YEARS[::-1])), r"forward in time at y\[1\]"),
    "a gap": (
        lambda: curvi.StateSpace().fit(dated(YEARS[[0, 1, 2, 4, 5, 6]])), r"between y\[2\] and"),
    "a word": (lambda: curvi.StateSpace(trend="yes").fit(Y), "True or False"),
    "no names": (lambda: curvi.StateSpace(prior_scales="level").fit(Y), "give a dictionary"),
    "prior": (lambda: curvi.StateSpace(prior_scales={"phi": 1.0}).fit(Y), "choose one of"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_fitted_is_refused(call, sentence):
    with pytest.raises(curvi.InputError, match=sentence):
        call()


@pytest.mark.parametrize("steps", [10**7, 10**12])
def test_forecasts_beyond_memory_are_refused_before_any_work(steps):
    model = curvi.StateSpace().fit(Y)
    for ask in (model.forecast, model.plot):
        with pytest.raises(curvi.InputError, match="forecast at most 10000 ahead"):
            ask(steps)
    with pytest.raises(curvi.MemoryBudgetError, match="fewer steps ahead"):
        model.simulate(4000, steps)


def test_more_regressors_than_steps_are_fitted_part_by_part(monkeypatch):
    X, y = np.random.default_rng(0).normal(size=(2, 30, 40))[0], Y[:6].repeat(5) ** 1.5
    whole = curvi.StateSpace().fit(y, X)
    few = functools.partial(SiteModel, iteration=Iteration(numbers_at_once=5000))
    monkeypatch.setattr(_series, "SiteModel", few)
    parts = curvi.StateSpace().fit(y, X)
    np.testing.assert_allclose(parts.coef_sd_, whole.coef_sd_, rtol=1e-6)
    np.testing.assert_allclose(parts.smooth().mean, whole.smooth().mean, rtol=1e-6)
    with curvi.memory_budget("10 KiB"), pytest.raises(curvi.MemoryBudgetError, match="30 rows"):
        curvi.StateSpace().fit(y, X)


def test_the_last_bits_do_not_depend_on_threads_of_the_blas():
    def held(self, *_):
        counts.add(max(pool.num_threads for pool in threads._pools()))
        return real(self, *_)

    counts, real = set(), SiteModel._exact
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteModel, "_exact", held)
        curvi.StateSpace().fit(Y)
    assert counts == {1}
