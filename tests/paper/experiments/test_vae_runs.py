"""Timed runs of auto-encoders: kept files, tuning, and how much sooner a bound was reached."""

import numpy as np
import pytest

import curvi
from curvi._core.errors import Outcome
from curvi.paper.experiments import _vae, _vae_runs
from curvi.paper.experiments._vae_runs import CANDIDATES, Case, Finished, Images, Job, Model

pytestmark = pytest.mark.float64_only
CASE, MODEL = Case("toy", 2, 4, "bernoulli", 1.0), Model(None, 1e-4, 4)


def toy_images(shape=(3, 4)):
    X = np.random.default_rng(0).random((90, shape[0] * shape[1])).astype(np.float32)
    return Images(X[:60], X[60:75], X[75:], shape)


def finished_with(bounds):
    seconds = np.arange(1.0, 1 + len(bounds))
    history = {"step": seconds, "epoch": seconds, "seconds": seconds, "elbo": np.asarray(bounds),
               "validation_elbo": np.asarray(bounds)}  # fmt: skip
    return Finished(history, -1.0, 0.1, {})


def test_a_bound_is_reached_at_its_first_evaluation_and_numbers_that_are_none_count_for_nothing():
    run = finished_with([np.nan, -9.0, -4.0, -6.0, -3.0])
    assert run.best == -3.0
    assert run.seconds_to(-5.0) == 3.0
    assert run.seconds_to(-1.0) is None
    assert finished_with([np.nan]).best == -np.inf


def test_times_sooner_is_the_rivals_time_to_where_it_ends_over_ours_to_the_same():
    runs = {
        ("c", "adagrad", 0): finished_with([-9.0, -8.0, -4.5, -5.0]),
        ("c", "fast", 0): finished_with([-4.0, -2.0]),
        ("c", "slow", 0): finished_with([-9.0, -6.0]),
    }
    assert _vae._times_sooner(runs, "c", "fast", 0) == 3.0
    assert _vae._times_sooner(runs, "c", "slow", 0) is None


def test_where_a_run_ends_is_the_mean_of_its_last_looks_and_nothing_finite_is_no_end():
    run = finished_with([*np.linspace(-40.0, -20.0, 27), -5.0, -3.0, -4.0])
    assert run.end == -4.0
    assert run.last_rise > 10.0
    assert finished_with([-3.0, np.nan]).end == -np.inf


def test_a_finished_run_is_read_from_its_file_and_other_settings_are_not(tmp_path, monkeypatch):
    calls = []

    def fake(job, data):
        calls.append(job)
        objective = curvi.vae.MLPObjective()
        params = curvi.VAE(latent=2, hidden=(4,))._first_params(objective.likelihood, data.train, 0)
        history = finished_with([-3.0]).history
        return _vae_runs.Trained(objective, params, 0, Outcome.BUDGET, history, 1, 1.0, {})

    monkeypatch.setattr(_vae_runs, "trained", fake)
    data = toy_images()
    job = Job(CASE, MODEL, "kfac", CANDIDATES["kfac"][0], 0, 1.0)
    first = _vae_runs.finished(job, data, tmp_path)
    again = _vae_runs.finished(job, data, tmp_path)
    assert len(calls) == 1
    assert again.test_bound == first.test_bound
    np.testing.assert_array_equal(again.history["validation_elbo"], [-3.0])
    _vae_runs.finished(Job(CASE, MODEL, "kfac", CANDIDATES["kfac"][0], 1, 1.0), data, tmp_path)
    assert len(calls) == 2


def test_tuning_takes_the_best_validation_bound_of_the_pilot_seed(tmp_path, monkeypatch):
    bounds = dict(zip(("rate 0.001", "rate 0.003", "rate 0.01"), (-5.0, -3.0, -4.0), strict=True))

    def fake(job, data, folder, paint=None):
        assert job.seed == _vae_runs.PILOT_SEED
        assert job.seconds == _vae_runs.PILOT * CASE.seconds_of("adagrad", 1.0)
        return finished_with([bounds.get(job.candidate.name, -np.inf)])

    monkeypatch.setattr(_vae_runs, "finished", fake)
    chosen = _vae_runs.tuned(CASE, MODEL, "adagrad", toy_images(), tmp_path, 1.0)
    assert chosen.trial.name == "rate 0.003"
    assert {trial.name for trial, _ in chosen.pilots} >= set(bounds)


def test_a_rate_at_the_edge_of_its_grid_makes_the_grid_grow(tmp_path, monkeypatch):
    def fake(job, data, folder, paint=None):
        rate = _vae_runs._rate(job.candidate)
        return finished_with([-abs(np.log(rate / 2.7))])

    monkeypatch.setattr(_vae_runs, "finished", fake)
    chosen = _vae_runs.tuned(CASE, MODEL, "adagrad", toy_images(), tmp_path, 1.0)
    assert chosen.trial.name == "rate 2.7"


def test_a_setting_that_diverges_is_not_chosen_for_its_best_look(tmp_path, monkeypatch):
    def fake(job, data, folder, paint=None):
        steady = job.candidate.name == "Gauss-Newton, batch 500"
        return finished_with([-9.0, -4.0, -4.0] if steady else [-9.0, -1.0, -1e30])

    monkeypatch.setattr(_vae_runs, "finished", fake)
    chosen = _vae_runs.tuned(CASE, MODEL, "hfsgvi", toy_images(), tmp_path, 1.0)
    assert chosen.trial.name == "Gauss-Newton, batch 500"
    ends = [float(row["bound at the end [nats]"]) for row in _vae._readings(chosen)]
    assert sorted(ends)[-2:] == [-1e30, -4.0]


def test_adagrad_trains_for_longer_and_copies_of_one_image_have_no_variance():
    assert CASE.seconds_of("kfac", 3.0) == 3.0
    assert CASE.seconds_of("adagrad", 3.0) == 3.0 * CASE.rival > 3.0
    data = toy_images()
    sheets = {"kfac": {"10": data.train}, "hfsgvi": {"10": np.tile(data.train[0], (100, 1))}}
    own, copied = (row["share_of_the_variance_of_the_data"] for row in _vae._spreads(data, sheets))
    np.testing.assert_allclose([own, copied], [1, 0], atol=1e-6)


@pytest.mark.slow
def test_an_experiment_writes_its_tables_and_figures_and_leaves_no_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(_vae.CASES, "frey", Case("frey", 2, 8, "gaussian", 1.0))
    monkeypatch.setattr(_vae, "images", lambda name, rows: toy_images())
    written = _vae.run("frey", tmp_path, seeds=[0], quick=True, report=lambda _: None, seconds=0.5)
    names = {path.name for path in written}
    assert {"frey.md", "frey_convergence.png", "frey_manifold_hfsgvi_10.png"} <= names
    assert all(path.stat().st_size > 0 for path in written)
    assert not (tmp_path / "frey" / "runs").exists()
    assert "Quick settings" in (tmp_path / "frey" / "frey.md").read_text()
