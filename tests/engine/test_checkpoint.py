"""A run that is cut short resumes to the bits of one that never was."""

from __future__ import annotations

import errno
import os
import signal
import threading
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.meshes import place_rows, sharded
from curvi._core.trees import usual_promotion
from curvi.engine import Progress, _checkpoint
from curvi.engine._identity import _shared_digest
from curvi.engine._recording import restored_tree
from curvi.vae._stopping import EarlyStopping
from tests.engine import kill_worker, mesh_worker

pytestmark = pytest.mark.float64_only

COMPILED = ("softmax", "hfsgvi")
ROOT = Path(__file__).parents[2]


def log_density(z, shift=1.0):
    return -jnp.sum(jnp.cosh(0.5 * z - shift)) - 0.05 * jnp.sum(z) ** 2


def fit(checkpoint=None, **options):
    given = {"family": curvi.FullRank(), "execution": "eager", "num_starts": 2, **options}
    return curvi.fit(log_density, jnp.zeros(3), progress=False, checkpoint=checkpoint, **given)


def bits(result):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.params)] + [
        result.trace[name].tobytes() for name in sorted(result.trace) if name != "seconds"
    ]


class CutError(Exception):
    """Ends a run like a crash."""


def cut_after(count):
    """A callback that fails at a step."""
    seen = []

    def on_step(info):
        seen.append(info)
        if len(seen) == count:
            raise CutError

    return on_step


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


def test_a_checkpoint_of_something_else_is_refused_with_what_differs(tmp_path, monkeypatch):
    path = tmp_path / "fit"
    fit(path)
    for change, name in (
        ({"seed": 1}, "seed"),
        ({"family": curvi.MeanField()}, "family"),
        ({"method": curvi.TrustRegion(cg_steps=7)}, "method"),
        ({"mc_tolerance": 0.1}, "mc_tolerance"),
    ):
        with pytest.raises(curvi.InputError, match=f"another call: {name} was .* and is"):
            fit(path, **change)
    given = {"family": curvi.FullRank(), "execution": "eager", "num_starts": 2, "progress": False}
    for target, position, name in (
        (lambda z: log_density(z, 1.1), jnp.zeros(3), "model"),
        (log_density, jnp.ones(3), "start"),
        (log_density, jnp.zeros(4), "position"),
        (log_density, jnp.zeros(3, jnp.float32), "position"),
    ):
        with pytest.raises(curvi.InputError, match=f"another call: {name} was .* and is"):
            curvi.fit(target, position, checkpoint=path, **given)
    before = path.read_bytes()
    monkeypatch.setitem(vars(curvi), "__version__", "99.0")
    with pytest.raises(curvi.InputError, match=r"version of curvi was .* and is 99\.0 now"):
        fit(path)
    assert path.read_bytes() == before


def test_other_data_of_the_same_shape_are_refused(tmp_path):
    def fitted(rows, **options):
        target = curvi.DataTarget(
            lambda z, y: -0.5 * (y - z) ** 2, rows, lambda z: -0.5 * z**2, jnp.zeros(())
        )
        return curvi.fit(target, progress=False, checkpoint=tmp_path / "fit", **options)

    rows = jnp.arange(5.0)
    fitted(rows)
    with pytest.raises(curvi.InputError, match="another call: data was"):
        fitted(rows.at[3].set(3.5))


@pytest.mark.slow
def test_other_data_are_refused_where_held_out_sequences_came_first(tmp_path):
    rng = np.random.default_rng(0)
    held_out, music = (
        [rng.integers(0, 2, (4, 3)).astype(float) for _ in range(count)] for count in (3, 5)
    )

    def fitted(sequences):
        model = curvi.DeepMarkovModel(2, 4, max_epochs=2, annealing=1, random_state=0)
        path = tmp_path / "markov"
        with usual_promotion():  # optax multiplies counts by numbers
            return model.fit(sequences, validation_sequences=held_out, checkpoint=path)

    fitted(music)
    with pytest.raises(curvi.InputError, match="another call: data was"):
        fitted([1 - part for part in music])


def test_a_saved_result_is_no_checkpoint_and_a_checkpoint_no_result(tmp_path):
    result = fit(tmp_path / "checkpoint")
    result.save(tmp_path / "result")
    with pytest.raises(curvi.InputError, match="no checkpoint"):
        fit(tmp_path / "result")
    with pytest.raises(curvi.InputError, match="pass it as checkpoint="):
        curvi.load(tmp_path / "checkpoint")
    assert bits(fit(curvi.Checkpoint(tmp_path / "result", resume=False))) == bits(result)


def test_estimators_without_a_seed_and_paths_that_are_none_are_refused(tmp_path):
    with pytest.raises(curvi.InputError, match="random_state"):
        curvi.BayesianLinearRegression().fit([[1.0], [2.0]], [1, 2], checkpoint=tmp_path / "fit")
    with pytest.raises(curvi.InputError, match="path of a file"):
        fit(7)
    with pytest.raises(OSError, match="missing"):
        fit(tmp_path / "missing" / "fit")


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
    @_checkpoint.resumable
    def call(checkpoint=None):
        os.kill(os.getpid(), number)
        return 5

    with warnings.catch_warnings(record=True, action="always") as said:
        try:
            found = call(checkpoint=tmp_path / "run")
        except curvi.Terminated as ended:
            found = ended.result
    assert found == 5
    assert "came after the last step" in str(said[0].message)
    assert said[0].filename == __file__


def test_a_run_on_other_devices_is_refused_by_name(tmp_path):
    target = mesh_worker.target(jnp.float64)
    options = {"family": curvi.MeanField(), "progress": False, "checkpoint": tmp_path / "fit"}
    with pytest.warns(curvi.NotConvergedWarning):
        curvi.fit(target, max_steps=1, on_failure="return", **options)
    with pytest.raises(curvi.InputError, match="layout was no mesh, and is devices 1, processes 1"):
        curvi.fit(target, mesh=curvi.data_mesh(1), **options)


def test_what_a_run_has_found_is_restored_to_all_devices():
    mesh, tree = curvi.data_mesh(1), {"mean": jnp.zeros(2), "key": jax.random.key(1)}
    leaves = [jax.random.key(2), np.ones(2)]
    found = sharded(restored_tree)(tree, leaves, mesh=mesh)
    assert {leaf.sharding.mesh for leaf in jax.tree.leaves(found)} == {mesh}
    assert found["mean"].tolist() == [1.0, 1.0]
    assert found["key"] == leaves[0]


def test_processes_that_do_not_find_the_same_checkpoint_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_checkpoint, "of_all_processes", lambda own: own + own[::-1])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(curvi.InputError, match="a disk that all of them share"):
        _checkpoint.Session(curvi.Checkpoint(tmp_path / "run"), {})
    monkeypatch.setattr(_checkpoint, "of_all_processes", lambda own: own + own)
    _checkpoint.Session(curvi.Checkpoint(tmp_path / "run"), {})


def test_rows_that_processes_share_are_known_by_their_numbers():
    rows = np.arange(256.0)
    tables = (rows, rows + 0.0, rows + (rows == 9))
    first, same, other = (_shared_digest(place_rows(t, curvi.data_mesh(1))) for t in tables)
    assert first == same
    assert first != other


def test_a_call_in_another_thread_has_checkpoints_and_leaves_signals_alone(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(tmp_path / "fit")))
    thread.start()
    thread.join()
    assert bits(found[0]) == bits(fit())


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
