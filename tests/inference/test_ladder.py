"""family="auto": right where a Gaussian is not, the same in any form, and never silent."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.diagnostics._correction import Correction
from curvi.inference import HMC, LADDER, FreshStart
from curvi.inference.ladder._search import Search

pytestmark = pytest.mark.float64_only

SCHOOLS = jnp.asarray([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = jnp.asarray([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(centred, order=slice(None)):
    """Eight schools with the logarithm of tau as a coordinate, in either form."""

    def effects(p):
        return p["effect"] if centred else p["mu"] + jnp.exp(p["log_tau"]) * p["effect"]

    def log_density(p):
        tau = jnp.exp(p["log_tau"])
        prior = -0.5 * (p["mu"] / 5) ** 2 - jnp.log1p((tau / 5) ** 2) + p["log_tau"]
        scaled = (p["effect"] - p["mu"]) / tau if centred else p["effect"]
        local = -0.5 * jnp.sum(scaled**2) - (8 * p["log_tau"] if centred else 0.0)
        data = -0.5 * jnp.sum(((SCHOOLS[order] - effects(p)) / ERRORS[order]) ** 2)
        return prior + local + data

    def constrain(p):
        return {"mu": p["mu"], "tau": jnp.exp(p["log_tau"]), "effects": effects(p)}

    start = {"mu": jnp.zeros(()), "log_tau": jnp.ones(()), "effect": jnp.zeros(8)}
    return curvi.Target(log_density, start, constrain)


def seed_of(key):
    return int(jax.random.randint(key, (), 0, 2**30))


def test_a_gaussian_is_answered_by_the_first_rung(key):
    scale = jnp.asarray([1.0, 10.0, 0.1])
    target = curvi.Target(lambda x: -0.5 * jnp.sum((x / scale - 1.0) ** 2), jnp.zeros(3))
    result = curvi.fit(target, progress=False, seed=seed_of(key))
    assert result.converged
    assert [rung.name for rung in result.rungs] == [
        "full rank",
        "importance weights",
        "search for other modes",
    ]
    assert isinstance(result.family, curvi.FullRank)
    np.testing.assert_allclose(result.mean / scale, 1.0, atol=1e-4)
    np.testing.assert_allclose(result.sd / scale, 1.0, atol=1e-4)
    assert result.warnings == ()


def test_centred_and_not_centred_models_give_one_answer(key):
    """The centred one is flagged at most seeds, for some trajectories diverge in its neck."""
    one, other = (_quietly(schools(centred), seed_of(key)) for centred in (True, False))
    # Each is known to its Monte-Carlo error; five of them, for ten means and any seed.
    error = 5 * np.hypot(one.mc_error, other.mc_error) + 0.05
    for name, sd in other.sd.items():
        gap = np.abs(np.asarray(one.mean[name]) - np.asarray(other.mean[name])) / np.asarray(sd)
        assert gap.max() < error or one.misfit, (name, gap)
    assert other.correction is not None
    assert len(other.rungs) >= 2


def test_a_correction_is_what_the_result_answers_with(key):
    result = curvi.fit(schools(False), progress=False, seed=seed_of(key))
    corrected = result.correction
    assert corrected is not None
    assert "answer" in result.summary()
    flat = corrected.covariance()
    np.testing.assert_allclose(result.covariance(), flat, rtol=1e-6)
    draws = result.sample(64, seed=1)
    again = result.sample(64, seed=1)
    other = result.sample(64, seed=2)
    np.testing.assert_array_equal(draws["tau"], again["tau"])
    assert not np.array_equal(draws["tau"], other["tau"])
    assert (np.asarray(draws["tau"]) > 0).all()
    many = result.sample(4 * len(corrected.draws))
    spread = 8 * (len(corrected.draws) ** -0.5)
    np.testing.assert_allclose(
        np.mean(many["mu"]), result.mean["mu"], atol=spread * float(result.sd["mu"])
    )


def test_tails_that_no_draw_of_q_reaches_are_not_weighted(key):
    """Weights of draws within 4 sds would miss a third of the sd of a t with 3 degrees."""
    target = curvi.Target(lambda x: -2.0 * jnp.sum(jnp.log1p(x**2 / 3.0)), jnp.zeros(2))
    result = _quietly(target, seed_of(key))
    assert result.correction.kind == "hmc"
    assert (np.asarray(result.sd) > 0.7 * 3.0**0.5).all()


def test_a_mode_that_no_draw_came_near_is_part_of_the_answer(key):
    def log_density(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 4.0) ** 2), -0.5 * jnp.sum((x + 4.0) ** 2))

    result = curvi.fit(log_density, jnp.ones(2), progress=False, seed=seed_of(key))
    assert result.correction.joins
    # Five Monte-Carlo errors of the 400 effective draws that mc_tolerance promises.
    np.testing.assert_allclose(result.mean, 0.0, atol=0.25 * 17**0.5)
    np.testing.assert_allclose(result.sd, 17**0.5, rtol=0.1)
    np.testing.assert_allclose([mode.weight for mode in result.modes], 0.5, atol=0.05)


def test_a_time_budget_that_ends_during_the_correction_is_no_convergence(monkeypatch):
    climb = HMC.climb

    def late(self, state):
        monkeypatch.setattr(type(state.budget), "left", lambda self: 0.0)
        return climb(self, state)

    monkeypatch.setattr(HMC, "climb", late)
    with pytest.warns(curvi.NotConvergedWarning, match="time budget ended"):
        result = curvi.fit(schools(False), progress=False, time_budget=1e6)
    assert result.outcome is curvi.Outcome.BUDGET


def test_the_same_seed_gives_the_same_bits():
    one, other = (curvi.fit(schools(False), progress=False, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.mean["tau"], other.mean["tau"])
    np.testing.assert_array_equal(one.correction.draws, other.correction.draws)


def test_a_posterior_that_does_not_converge_is_never_silent(key):
    """A funnel of nine locals whose neck no step resolves: flagged, or right."""

    def log_density(p):
        return (
            -0.5 * (p["v"] / 3) ** 2 - 0.5 * jnp.sum(p["x"] ** 2) * jnp.exp(-p["v"]) - 4.5 * p["v"]
        )

    start = {"v": jnp.zeros(()), "x": jnp.zeros(9)}
    with np.errstate(all="ignore"):
        result = _quietly(curvi.Target(log_density, start), seed_of(key))
    right = abs(float(result.mean["v"])) < 0.6 and 2.4 < float(result.sd["v"]) < 3.75
    assert right or result.misfit


def _quietly(target, seed):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return curvi.fit(target, progress=False, seed=seed, on_failure="return")


def test_what_was_chosen_is_not_overridden():
    def target(x):
        return -0.5 * jnp.sum(x**2)

    chosen = curvi.fit(target, jnp.ones(2), family=curvi.MeanField(), progress=False)
    assert isinstance(chosen.family, curvi.MeanField)
    assert chosen.rungs == ()
    by_method = curvi.fit(target, jnp.ones(2), method=curvi.TrustRegion(), progress=False)
    assert isinstance(by_method.family, curvi.MeanField)
    with pytest.raises(curvi.InputError, match="family is 'best'; give a family such as"):
        curvi.fit(target, jnp.ones(2), family="best", progress=False)


def test_one_interruption_ends_the_climb_and_keeps_what_it_has(monkeypatch):
    from curvi.inference.ladder import _corrections

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_corrections, "run_hmc", interrupted)
    with pytest.warns(curvi.NotConvergedWarning, match="INTERRUPTED: .*corrected"):
        result = curvi.fit(schools(True), progress=False)
    assert result.interrupted
    assert not result.converged
    assert np.isfinite(result.elbo)
    assert result.rungs[0].name == "full rank"
    assert np.isfinite(result.mean["tau"])


def test_an_interrupted_search_for_other_modes_keeps_the_corrected_answer(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "places", interrupted)
    with pytest.warns(curvi.NotConvergedWarning, match="INTERRUPTED: .*other modes"):
        result = curvi.fit(lambda x: -0.5 * jnp.sum(x**2), jnp.ones(2), progress=False)
    assert result.interrupted
    assert result.correction.trusted


def test_a_file_keeps_the_summary_of_a_corrected_answer(tmp_path):
    result = curvi.fit(schools(False), progress=False, mc_tolerance=0.02)
    assert result.correction is not None
    assert result.mc_error <= 0.02
    result.save(tmp_path / "fit.curvi")
    assert curvi.load(tmp_path / "fit.curvi").summary() == result.summary()


def test_a_fit_that_goes_on_from_a_climb_climbs_again():
    first = curvi.fit(schools(False), progress=False)
    again = curvi.fit(schools(False), progress=False, init=first)
    error = abs(float(again.mean["tau"] - first.mean["tau"])) / float(first.sd["tau"])
    assert again.correction is not None
    assert error < 6 * (first.mc_error + again.mc_error)


def test_weights_without_a_variance_are_not_enough(key):
    """Ratios with a Pareto tail of shape one, rare enough to leave a high relative ESS."""
    from curvi.inference.ladder._state import Candidate

    rng = np.random.default_rng(seed_of(key))
    even = rng.normal(size=16384) * 0.1
    heavy = np.where(np.arange(16384) < 400, rng.exponential(size=16384), even)
    one, other = (Candidate(curvi.FullRank(), None, 0.0, 0.0, logs) for logs in (even, heavy))
    assert one.close
    assert other.tail_shape > 0.5
    assert not other.close


def test_a_rung_of_ones_own_is_climbed_where_it_applies(key):
    @dataclasses.dataclass(frozen=True)
    class Shifted:
        """A note, and a mean that is off by one."""

        def applies(self, state):
            return state.correction is None

        def climb(self, state):
            draws = np.random.default_rng(0).normal(size=(1000, 2)) + 1.0
            correction = Correction("hmc", draws, None, 1000.0, trusted=True)
            return dataclasses.replace(state, correction=correction).noted("shifted", "corrected")

    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    options = {"progress": False, "seed": seed_of(key)}
    result = curvi.fit(log_density, jnp.ones(2), ladder=(Shifted(), *LADDER), **options)
    assert [rung.name for rung in result.rungs][:2] == ["full rank", "shifted"]
    np.testing.assert_allclose(result.mean, 1.0, atol=0.2)
    plain = curvi.fit(log_density, jnp.ones(2), ladder=(), **options)
    assert plain.correction is None
    assert [rung.name for rung in plain.rungs] == ["full rank"]
    with pytest.raises(curvi.InputError, match="ladder"):
        curvi.fit(log_density, jnp.ones(2), ladder=("HMC",), **options)


def network(seed):
    """A small Bayesian network on noisy sines: far more weights than few draws can fit."""
    rng = np.random.default_rng(seed)
    grid = np.linspace(-1, 1, 100)
    X = jnp.asarray(np.stack([np.ones(100), grid, grid**2], axis=1))
    y = jnp.asarray(np.sin(4 * grid) * (0.5 + grid) ** 2 + 0.05 * rng.normal(size=100))

    def log_density(p):
        hidden = jnp.tanh(jnp.tanh(X @ p["first"]) @ p["second"])
        left = y - (hidden @ p["third"])[:, 0]
        prior = -0.5 * sum(jnp.sum(p[name] ** 2) for name in ("first", "second", "third"))
        rate = jnp.exp(p["log_rate"])
        prior = prior + 3 * p["log_rate"] - rate
        return prior + 50 * p["log_rate"] - 0.5 * rate * jnp.sum(left**2)

    shapes = {"first": (3, 5), "second": (5, 5), "third": (5, 1), "log_rate": ()}
    return curvi.Target(log_density, {name: jnp.zeros(shape) for name, shape in shapes.items()})


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
def test_where_the_first_q_is_lost_another_start_answers(key):
    seed = seed_of(key)
    with pytest.raises(curvi.NumericalError, match="Diverged"):
        curvi.fit(network(seed), progress=False, seed=seed, ladder=())
    result = curvi.fit(network(seed), progress=False, seed=seed, ladder=(FreshStart(), HMC()))
    assert result.rungs[0].note == "failed"
    assert result.correction is not None
    assert "The first q was lost (DIVERGED)" in result.message
    # The noise is known whatever the weights do: 100 rows with a sd of 0.05 and Gamma(3, 1).
    assert 20 < float(np.exp(result.mean["log_rate"])) < 60
    if not result.correction.trusted:
        assert any("not converged" in sentence for sentence in result.alarms)


def test_an_improper_density_is_refused_and_not_tried_again(key):
    with pytest.raises(curvi.NumericalError, match="improper"):
        curvi.fit(lambda x: 0.1 * jnp.sum(x), jnp.zeros(3), progress=False, seed=seed_of(key))
