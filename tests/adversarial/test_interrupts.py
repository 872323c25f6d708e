"""Ctrl-C and exceptions out of the user's code: what was computed is returned, or carried."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import curvi
from curvi.engine import _drivers as drivers
from curvi.paper.experiments import _runs as runs
from tests.adversarial.outcomes import warned

pytestmark = [
    pytest.mark.float64_only,
    pytest.mark.filterwarnings("ignore::curvi.MisfitWarning"),
]
QUICK = {"execution": "eager", "progress": False, "family": curvi.MeanField()}


def skewed(z):
    return jnp.sum(z - jnp.exp(z)) - 0.1 * jnp.sum(z**2)


def correlated(z):
    """Mean field has a relative ESS of about 0.2 on it, and so other starts are tried."""
    return -0.5 * (z[0] ** 2 + z[1] ** 2 - 1.98 * z[0] * z[1]) / 0.02


def fit(density=skewed, **options):
    return curvi.fit(density, jnp.zeros(2), **QUICK, **options)


def ctrl_c(*_):
    signal.raise_signal(signal.SIGINT)


def interrupt(monkeypatch, place, calls=1):
    """Ctrl-C in place of the call with this number; those after it are counted."""
    module, _, name = place.rpartition(".")
    whole, count = getattr(importlib.import_module(module), name), []

    def cut(*arguments, **options):
        count.append(None)
        if len(count) == calls:
            ctrl_c()
        return whole(*arguments, **options)

    monkeypatch.setattr(place, cut)
    return count


@pytest.mark.parametrize(
    ("place", "calls", "options", "words"),
    [
        ("curvi.engine._loop.make_driver", 1, {}, ("Interrupted by the user",)),
        (
            "curvi.inference._initial.evaluate",
            1,
            {"num_starts": 3},
            ("among 3 starts", "best state"),
        ),
        (
            "curvi.inference._initial.best_width",
            2,
            {"density": correlated},
            ("search for other starts", "q does not match"),
        ),
        ("curvi.inference._growth.descend_from_saddle", 1, {}, ("saddle point", "are unknown")),
        ("curvi.diagnostics._monte_carlo.draws_of", 3, {}, ("Monte-Carlo error", "is missing")),
        ("curvi.inference._fit.evaluate_all", 1, {}, ("bound was evaluated", "unjudged")),
    ],
    ids=["run", "starts", "search", "saddle", "replicates", "evaluation"],
)
def test_the_first_ctrl_c_returns_what_there_is_and_says_what_is_missing(
    place, calls, options, words, monkeypatch
):
    interrupt(monkeypatch, place, calls)
    result = warned(
        lambda: fit(on_failure="return", **options),
        curvi.NotConvergedWarning,
        "INTERRUPTED",
        *words,
    )
    assert result.interrupted
    assert result.converged is ("is missing" in words)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


def test_replicates_that_are_done_before_ctrl_c_are_used(monkeypatch):
    interrupt(monkeypatch, "curvi.diagnostics._monte_carlo.draws_of", 12)
    result = warned(fit, curvi.NotConvergedWarning, "INTERRUPTED", "is that of 11 of them")
    assert result.converged
    assert len(result.replicates.rows) == 11
    assert 0 < result.mc_error < 0.05


def test_a_second_ctrl_c_raises_and_carries_the_result(monkeypatch):
    interrupt(monkeypatch, "curvi.inference._fit.evaluate_all")
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(on_step=lambda info: ctrl_c() if info.step == 1 else None)
    assert caught.value.result.steps == 2
    assert caught.value.result.outcome is curvi.Outcome.INTERRUPTED


def test_an_interrupted_fit_does_not_reach_the_next_one_of_a_loop():
    def interrupted(info):
        if info.step == 1:
            ctrl_c()

    first = warned(lambda: fit(on_step=interrupted), curvi.NotConvergedWarning, "INTERRUPTED")
    second = fit()
    third = warned(lambda: fit(on_step=interrupted), curvi.NotConvergedWarning, "INTERRUPTED")
    assert [r.interrupted for r in (first, second, third)] == [True, False, True]
    assert second.converged


def test_ctrl_c_is_seen_while_a_chunk_is_under_way(monkeypatch):
    """A blocking read of the device would see it when the chunk ends, minutes later."""

    class Pending:
        def is_ready(self):
            return False

    monkeypatch.setattr(drivers.time, "sleep", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        drivers._wait(Pending(), float("inf"))


LEFT_IN_A_COMPILATION = """
import os, signal, threading, time, warnings
import jax.numpy as jnp
import curvi

def deep(z):  # takes several seconds to compile
    for i in range(120):
        z = jnp.sin(z) @ (jnp.eye(3) + i)
    return -jnp.sum(z**2)

def ctrl_c():
    for seconds in {delays}:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)

warnings.simplefilter("ignore")
threading.Thread(target=ctrl_c, daemon=True).start()
curvi.fit(deep, jnp.zeros(3), execution="compiled", progress=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("delays", [(1.5, 0.3), (3.0, 0.3)])
def test_a_process_that_ends_during_a_compilation_does_not_crash(delays):
    script = LEFT_IN_A_COMPILATION.format(delays=delays)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    # 0 where a Ctrl-C comes during a garbage collection, whose callbacks let none pass.
    assert ended.returncode in (0, 1, 128 + signal.SIGINT, -signal.SIGINT), ended.stderr
    assert "pure virtual" not in ended.stderr


def simulate(key):
    z = jax.random.normal(key, (2,))
    return z, z + jax.random.normal(jax.random.fold_in(key, 1), (2,))


def prior(z):
    return -0.5 * jnp.sum(z**2)


def likelihood(z, rows):
    return -0.5 * jnp.sum((rows - z[None]) ** 2, axis=1)


def build(data):
    return curvi.DataTarget(likelihood, data[None], prior, jnp.zeros(2))


def broken(raised, calls):
    """A simulator that fails at the call with this number."""
    count = []

    def failing(key):
        count.append(None)
        if len(count) == calls:
            raised()
        return simulate(key)

    return failing


def fault():
    raise ZeroDivisionError("of the user")


@pytest.mark.parametrize(
    ("raised", "error", "attribute"),
    [(ctrl_c, KeyboardInterrupt, "result"), (fault, ZeroDivisionError, "curvi_result")],
)
def test_calibration_stops_at_once_and_keeps_finished_simulations(raised, error, attribute):
    with pytest.raises(error) as caught:
        curvi.calibrate(broken(raised, 4), build, num_simulations=20, **QUICK)
    done = getattr(caught.value, attribute)
    assert len(done.probabilities) == 3
    assert done.failures == 0
    assert "from 3 simulations" in done.summary()


def test_calibration_stops_where_one_of_its_fits_is_interrupted(monkeypatch):
    interrupt(monkeypatch, "curvi.inference._growth.replicates", 3)
    with pytest.raises(curvi.Interrupted, match="after 2 of 20 simulations") as caught:
        curvi.calibrate(simulate, build, num_simulations=20, **QUICK)
    assert len(caught.value.result.probabilities) == 2


def test_a_second_ctrl_c_in_a_calibration_keeps_finished_simulations(monkeypatch):
    interrupt(monkeypatch, "curvi.inference._calibrate.sign_flip_test")
    with pytest.raises(curvi.Interrupted, match=r"after 3 of 20 .* without p-values") as caught:
        curvi.calibrate(broken(ctrl_c, 4), build, num_simulations=20, **QUICK)
    done = caught.value.result
    assert len(done.probabilities) == 3
    assert not done.calibrated
    assert done.summary().startswith("NOT TESTED")


def test_a_calibration_without_a_finished_simulation_has_no_result():
    with pytest.raises(curvi.Interrupted, match=r"after 0 of 20 .* is None") as caught:
        curvi.calibrate(broken(ctrl_c, 1), build, num_simulations=20, **QUICK)
    assert caught.value.result is None


def test_ctrl_c_on_the_way_to_a_mode_raises():
    with pytest.raises(curvi.Interrupted, match="Interrupted by the user"):
        curvi.laplace(skewed, jnp.full(2, -40.0), progress=False, on_step=lambda info: ctrl_c())


def table():
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 3))
    return X, (random.random(60) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)


SMALL = {"latent": 1, "hidden": (3,), "likelihood": "gaussian", "method": "lbfgs"}


@pytest.mark.parametrize(
    ("estimator", "chunks"),
    [
        pytest.param(curvi.BayesianLogisticRegression(), 1, id="logistic"),
        pytest.param(curvi.VAE(max_epochs=9, num_draws=1, **SMALL), 2, id="vae"),
        pytest.param(curvi.VAE(**SMALL), 0, id="vae, pilot epoch", marks=pytest.mark.slow),
        pytest.param(
            curvi.SemiSupervisedVAE(**{**SMALL, "method": curvi.LBFGS()}),
            1,
            id="semi-supervised",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_estimators_raise_and_keep_what_was_fitted(estimator, chunks, monkeypatch):
    estimator, (X, y), count = clone(estimator), table(), []

    def cut(advance):
        def counted(*arguments):
            count.append(None)
            if len(count) > chunks:
                ctrl_c()
            return advance(*arguments)

        return counted

    for driver in (drivers.CompiledDriver, drivers.EagerDriver):
        monkeypatch.setattr(driver, "advance", cut(driver.advance))
    with pytest.raises(KeyboardInterrupt, match=r"is kept|keeps what was"):
        estimator.fit(X, y)
    assert len(count) == chunks + 1  # no step follows
    assert estimator.result_.outcome is curvi.Outcome.INTERRUPTED
    used = estimator.predict_proba if hasattr(estimator, "predict_proba") else estimator.transform
    assert np.isfinite(used(X)).all()


def test_ctrl_c_in_the_judgement_of_a_stochastic_regression_keeps_the_fit(monkeypatch):
    interrupt(monkeypatch, "curvi.engine._loop.make_driver", 2)
    estimator = curvi.BayesianLogisticRegression(method="hfsgvi", max_iter=3, random_state=0)
    with pytest.raises(KeyboardInterrupt, match="after 3 steps"):
        estimator.fit(*table())
    assert np.isfinite(estimator.coef_).all()


def test_a_reproduction_stops_at_ctrl_c(monkeypatch):
    interrupt(monkeypatch, "curvi.engine._loop.make_driver")
    setting, (X, y) = runs.Setting(curvi.DSVI(), max_steps=2), table()
    with pytest.raises(KeyboardInterrupt):
        runs.run_setting(setting, X, 2 * y - 1, seed=0, seconds=1.0)


def test_cross_validation_stops_at_ctrl_c(monkeypatch):
    count = interrupt(monkeypatch, "curvi.glm._full_newton.run_driver", 2)
    with pytest.raises(KeyboardInterrupt):
        cross_val_score(curvi.BayesianLogisticRegression(), *table(), cv=5)
    assert len(count) == 2


def late(info):
    if info.step == 2:
        raise ZeroDivisionError("of the user")


@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_an_exception_of_a_callback_keeps_its_type_and_carries_the_result(execution):
    options = {"execution": execution, "progress": False, "on_step": late}
    with pytest.raises(ZeroDivisionError, match="of the user") as caught:
        curvi.fit(skewed, jnp.zeros(2), **options)
    result = caught.value.curvi_result
    assert isinstance(result, curvi.FitResult)
    assert result.steps >= 3
    assert "Cut short by ZeroDivisionError" in result.message
    assert "NOT CONVERGED" in result.summary()
    assert "curvi_result" in "".join(caught.value.__notes__)
    with pytest.raises(ZeroDivisionError) as caught:
        curvi.minimise(
            lambda p, batch, key: -skewed(p), jnp.full(2, 5.0), fixed_key=True, **options
        )
    assert isinstance(caught.value.curvi_result, curvi.OptimiseResult)
    assert len(caught.value.curvi_result.trace["value"]) >= 3


def test_an_exception_after_convergence_carries_the_converged_run(monkeypatch):
    def callback(info):
        if info.run > 0:
            raise ZeroDivisionError

    whole = fit(correlated)
    with pytest.raises(ZeroDivisionError) as caught:
        fit(correlated, on_step=callback)  # a step of another start
    kept = caught.value.curvi_result
    np.testing.assert_allclose(kept.mean, whole.mean, atol=1e-3)
    monkeypatch.setattr("curvi.inference._growth.replicates", lambda *a, **o: fault())
    with pytest.raises(ZeroDivisionError) as caught:
        fit()
    monkeypatch.undo()
    np.testing.assert_array_equal(caught.value.curvi_result.mean, fit().mean)
