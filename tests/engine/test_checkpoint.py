"""A run that is cut short resumes to the bits of one that never was."""

from __future__ import annotations

import errno
import os
import signal
import threading
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.engine import Progress, _checkpoint, opened
from curvi.vae._stopping import EarlyStopping
from tests.adversarial.test_interrupts import build, simulate
from tests.engine import kill_worker
from tests.engine.runs import CutError, bits, cut_after, fit, log_density

pytestmark = pytest.mark.float64_only

COMPILED = ("softmax", "hfsgvi")
ROOT = Path(__file__).parents[2]


WAYS = {
    "eager": {},
    "natural": {"method": curvi.NaturalGradient()},
    "sparse": {"family": curvi.SparsePrecision(), "method": curvi.NaturalGradient()},
    "compiled": {"execution": "compiled"},
}
SLOW = {"compiled", "sparse"}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way in SLOW)) for way in WAYS]
)
def test_a_fit_that_crashed_anywhere_resumes_to_the_same_bits(tmp_path, way):
    whole = fit(**WAYS[way])
    policy = curvi.Checkpoint(tmp_path / "fit", every_seconds=0)
    for count in (2, 7):
        with pytest.raises(CutError):
            fit(policy, on_step=cut_after(count), **WAYS[way])
    assert bits(fit(policy, **WAYS[way])) == bits(whole)
    steps = []
    again = fit(policy, on_step=steps.append, **WAYS[way])
    assert bits(again) == bits(whole)
    assert again.elbo == whole.elbo
    assert not steps  # everything was in the log
    assert [path.name for path in tmp_path.iterdir()] == ["fit"]


def test_more_steps_go_on_from_where_a_budget_ended(tmp_path):
    short = kill_worker.minimum(tmp_path / "run", 30)
    assert short.outcome is curvi.Outcome.BUDGET
    long = kill_worker.minimum(tmp_path / "run", 90)
    whole = kill_worker.minimum(None, 90)
    assert bits(long) == bits(whole)


@pytest.mark.filterwarnings("ignore:The budget of steps")
def test_natural_gradients_go_on_from_where_a_budget_ended(tmp_path):
    options, steps = {"method": curvi.NaturalGradient(), "num_starts": 1}, []
    short = fit(tmp_path / "run", max_steps=3, **options)
    assert short.outcome is curvi.Outcome.BUDGET
    long = fit(tmp_path / "run", max_steps=90, on_step=steps.append, **options)
    whole = fit(max_steps=90, **options)
    assert bits(long) == bits(whole)
    assert len(steps) == len(whole.trace["step"]) - 3  # none of them twice


@pytest.mark.parametrize(
    "model", ["newton", "ard", *(pytest.param(m, marks=pytest.mark.slow) for m in COMPILED)]
)
def test_estimators_resume_to_the_same_bits(tmp_path, model, monkeypatch):
    generator = np.random.default_rng(3)
    X = generator.normal(size=(80, 3))
    y = (X[:, 0] + generator.normal(size=80) > 0).astype(int) + (
        (X[:, 1] > 1) if model == "softmax" else 0
    )
    options = {
        "newton": {}, "ard": {"prior": "ard"}, "softmax": {},
        "hfsgvi": {"method": "hfsgvi", "max_iter": 30},
    }[model]  # fmt: skip

    def fitted(**more):
        estimator = curvi.BayesianLogisticRegression(random_state=0, **options)
        return estimator.fit(X, y, **more)

    with warnings.catch_warnings(action="ignore"):
        whole = fitted()
        policy = curvi.Checkpoint(tmp_path / "fit", every_seconds=0)
        left = [3]

        def failing(session):
            left[0] -= 1
            if not left[0]:
                raise CutError
            return original(session)

        original = _checkpoint.Session.save
        monkeypatch.setattr(_checkpoint.Session, "save", failing)
        with pytest.raises(CutError):
            fitted(checkpoint=policy)
        monkeypatch.undo()
        resumed = fitted(checkpoint=policy)
    assert resumed.coef_.tobytes() == whole.coef_.tobytes()
    assert resumed.elbo_ == whole.elbo_
    assert resumed.n_iter_ == whole.n_iter_


@pytest.mark.slow
def test_a_vae_resumes_with_its_early_stopping_and_goes_on_when_it_is_warm(tmp_path, monkeypatch):
    X = np.random.default_rng(0).uniform(size=(40, 3))

    def model():
        method = curvi.DSVI(learning_rate=1e-3)
        return curvi.VAE(
            1, (2,), batch_size=4, max_epochs=12, method=method, random_state=0, patience=3,
            validation_fraction=0.3,
        )  # fmt: skip

    whole = model().fit(X)
    original, left = _checkpoint.Session.save, [3]

    def failing(session):
        left[0] -= 1
        if not left[0]:
            raise CutError
        return original(session)

    policy = curvi.Checkpoint(tmp_path / "vae", every_seconds=0)
    monkeypatch.setattr(_checkpoint.Session, "save", failing)
    with pytest.raises(CutError):
        model().fit(X, checkpoint=policy)
    monkeypatch.undo()
    resumed = model().fit(X, checkpoint=policy)
    assert bits(resumed.result_) == bits(whole.result_)
    assert resumed.history_["validation_elbo"].tolist() == (
        whole.history_["validation_elbo"].tolist()
    )
    first = resumed.params_.encoder[0].copy()
    resumed.set_params(max_epochs=1, batch_size=28).fit(X, warm_start=True)
    assert 0 < np.abs(resumed.params_.encoder[0] - first).max() < 0.1
    with pytest.raises(curvi.InputError, match="the network that is asked for"):
        resumed.set_params(hidden=(3,)).fit(X, warm_start=True)


def test_early_stopping_goes_on_with_its_table_and_best_parameters():
    def stopping():
        return EarlyStopping(lambda p: float(p[0]), lambda p: -float((p[0] - 2) ** 2), 2, 1)

    def stops(hook, value):
        return hook(Progress(1, 9, 0.5, [], lambda run: (jnp.asarray(value),), ended=False))

    whole, first = stopping(), stopping()
    for value in (0.0, 2.0):
        assert stops(whole, value) is None
        assert stops(first, value) is None
    resumed = stopping()
    resumed.restore(first.state(), (jnp.zeros(()),))
    for value, expected in ((5.0, None), (6.0, curvi.Outcome.CONVERGED)):
        assert stops(whole, value) is expected
        assert stops(resumed, value) is expected
    assert resumed.table == whole.table
    assert float(resumed.best[0]) == 2.0


def test_processor_time_that_was_spent_is_not_forgotten():
    def stopping():
        return EarlyStopping(lambda p: 0.0, None, 2, 1, clock=(0.0, 50.0))

    def at(seconds):
        return Progress(1, 9, seconds, [], lambda run: (), ended=False)

    first, resumed = stopping(), stopping()
    assert first(at(40.0)) is None
    resumed.restore(first.state(), ())
    assert resumed(at(41.0)) is None
    assert 40.0 <= resumed.table[-1][1] < 49.0
    resumed.spent += 10.0
    assert resumed(at(51.0)) is curvi.Outcome.BUDGET


def test_a_full_disk_ends_the_run_and_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    policy, full = curvi.Checkpoint(tmp_path / "fit", every_seconds=0), []

    def fsync(handle):
        full.append(handle)
        if len(full) > 8:
            raise OSError(errno.ENOSPC, "No space left on device")

    whole = fit()
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=f"No space left.*{tmp_path / 'fit'}"):
        fit(policy)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["fit"]
    assert bits(fit(policy)) == bits(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_says_where(tmp_path, number):
    whole, before = fit(), signal.getsignal(number)
    policy = curvi.Checkpoint(tmp_path / "fit", every_seconds=1000)

    def once(info, sent=[]):  # noqa: B006  remembers that it was called
        if info.step == 2 and not sent:
            sent.append(os.kill(os.getpid(), number))

    with warnings.catch_warnings(record=True, action="always") as said:
        if number == signal.SIGTERM:
            with pytest.raises(curvi.Terminated) as ended:
                fit(policy, on_step=once)
            assert ended.value.code == 143
            cut = ended.value.result
        else:
            cut = fit(policy, on_step=once)
    assert any(str(tmp_path / "fit") in str(warning.message) for warning in said)
    assert cut.interrupted
    assert cut.steps < whole.steps
    assert signal.getsignal(number) is before
    assert bits(fit(policy)) == bits(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_after_the_last_step_is_not_passed_over_in_silence(tmp_path, number):
    def call(checkpoint=None):
        with opened(locals(), "call") as run:
            os.kill(os.getpid(), number)
            return run.returned(5)

    with warnings.catch_warnings(record=True, action="always") as said:
        try:
            found = call(checkpoint=tmp_path / "run")
        except curvi.Terminated as ended:
            found = ended.result
    assert found == 5
    assert "came after the last step" in str(said[0].message)
    assert said[0].filename == __file__


def test_a_call_in_another_thread_has_checkpoints_and_leaves_signals_alone(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(tmp_path / "fit")))
    thread.start()
    thread.join()
    assert bits(found[0]) == bits(fit())


def test_a_mode_and_a_calibration_that_are_done_are_found_again(tmp_path):
    seen, options = [], {"progress": False, "on_step": lambda info: seen.append(info.step)}
    modes = [
        curvi.laplace(log_density, jnp.zeros(3), checkpoint=tmp_path / "mode", **options)
        for _ in range(2)
    ]
    assert seen == list(range(modes[0].steps))
    np.testing.assert_array_equal(modes[0].mode, modes[1].mode)
    np.testing.assert_array_equal(modes[0].covariance, modes[1].covariance)
    options |= {"num_simulations": 10, "family": curvi.MeanField(), "execution": "eager"}
    seen.clear()
    first, count = (
        curvi.calibrate(simulate, build, checkpoint=tmp_path / "all", **options),
        len(seen),
    )
    again = curvi.calibrate(simulate, build, checkpoint=tmp_path / "all", **options)
    assert len(seen) == count > 10
    np.testing.assert_array_equal(first.probabilities, again.probabilities)


def test_a_fit_goes_on_from_an_earlier_one():
    first = fit(max_steps=300)
    again = fit(init=first, num_starts=1)
    assert again.steps < first.steps
    assert np.allclose(again.mean, first.mean, atol=1e-4)
    other = fit(init=first, family=curvi.MeanField(), num_starts=1)
    assert np.allclose(other.mean, first.mean, atol=0.1)
    plain = curvi.fit(log_density, init=first, progress=False)  # which has no position
    assert np.allclose(plain.mean, first.mean, atol=0.1)
    with pytest.raises(curvi.InputError, match="3 dimensions"):
        curvi.fit(lambda z: -jnp.sum(z**2), jnp.zeros(2), init=first, progress=False)
