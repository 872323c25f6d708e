"""A checkpoint belongs to one call: its model, data, seed, versions, devices and processes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.meshes import place_rows
from curvi._core.run import within
from curvi._core.trees import usual_promotion
from curvi.engine import _checkpoint
from curvi.engine._identity import _shared_digest
from curvi.engine._recording import restored_tree
from tests.engine import mesh_worker
from tests.engine.runs import bits, fit, log_density

pytestmark = pytest.mark.float64_only


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
    with within(mesh=mesh):
        found = restored_tree(tree, leaves)
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
