"""Auto-encoders whose rows stay on disk train to the bits of rows in memory."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import curvi
from curvi.io import RowBlocks, _streams
from curvi.vae import _mapped
from curvi.vae._direct import MappedRows

pytestmark = pytest.mark.float64_only
OPTIONS = {"latent": 2, "hidden": (6,), "max_epochs": 3, "random_state": 0}


@pytest.fixture
def images():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(301, 2)) @ generator.normal(size=(2, 9))
    return (1 / (1 + np.exp(-2 * logits))).astype(np.float32)


def saved(X, path):
    np.save(path, X)
    return curvi.io.rows(path)


def same(one, two):
    pairs = zip(jax.tree.leaves(one.params_), jax.tree.leaves(two.params_), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs) and one.elbo_ == two.elbo_


@pytest.mark.parametrize("direct", [True, False])
def test_training_on_a_file_has_the_bits_of_training_in_memory(
    images, tmp_path, monkeypatch, direct
):
    announced, announce = [], _streams.announce
    if not direct:  # as on other devices
        monkeypatch.setattr(MappedRows, "of", lambda rows: None)
    monkeypatch.setattr(_streams, "LARGEST_IN_MEMORY", 0)
    monkeypatch.setattr(
        _streams, "announce", lambda *given: (announced.append(given[1]), announce(*given))
    )
    whole = curvi.VAE(**OPTIONS, method="adagrad").fit(images)
    mapped = curvi.VAE(**OPTIONS, method="adagrad").fit(saved(images, tmp_path / "x.npy"))
    assert same(whole, mapped)
    visited = np.concatenate(announced)
    assert len(np.unique(visited)) > 250  # of 301, some of which are held out
    assert visited.max() < 301


@pytest.mark.parametrize("method", ["kfac", pytest.param("hessian_free", marks=pytest.mark.slow)])
def test_principal_coordinates_of_rows_on_a_file_are_those_in_memory(images, tmp_path, method):
    whole = curvi.VAE(**OPTIONS, method=method).fit(images)
    mapped = curvi.VAE(**OPTIONS, method=method).fit(saved(images, tmp_path / "x.npy"))
    pairs = zip(jax.tree.leaves(whole.params_), jax.tree.leaves(mapped.params_), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert np.isclose(whole.elbo_, mapped.elbo_, rtol=1e-5)


def test_rows_of_a_map_are_gathered_in_place_and_others_by_the_host(images, tmp_path):
    def rows(X):
        np.save(tmp_path / "x.npy", X)
        blocks = curvi.io.rows(tmp_path / "x.npy")
        found = _mapped.all_rows(blocks, lambda X: np.asarray(X, np.float32))
        order = np.arange(0, 301, 3)
        return MappedRows.of(_mapped.picked(_mapped.filled(found, np.zeros(9), None), order))

    found = rows(images.reshape(301, 3, 3))
    taken = found.take(jax.numpy.asarray([2, 0, 100]))
    np.testing.assert_array_equal(taken.x, images[[6, 0, 300]])
    assert taken.features is taken.x
    source = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert found.table.shape == source.shape
    assert found.shape_of(7).x.shape == (7, 9)
    gaps = images.copy()
    gaps[0, 0] = np.nan
    assert rows(gaps) is None
    assert rows(np.asfortranarray(images)) is None
    flags = rows((images > 0.5).astype(np.uint8))
    taken = flags.take(jax.numpy.asarray([1]))
    assert taken.x.dtype == np.float32
    np.testing.assert_array_equal(taken.x[0], images[3] > 0.5)


@pytest.mark.slow
def test_gaps_conditions_and_shapes_come_from_a_file_too(images, tmp_path):
    images[np.random.default_rng(1).random(images.shape) < 0.1] = np.nan
    shaped = images.reshape(-1, 3, 3)
    condition = np.random.default_rng(2).normal(size=(301, 2))
    whole = curvi.VAE(**OPTIONS).fit(shaped, condition=condition)
    file = saved(shaped, tmp_path / "x.npy")
    mapped = curvi.VAE(**OPTIONS).fit(file, condition=condition)
    assert mapped.image_shape_ == (3, 3)
    assert np.isclose(whole.elbo_, mapped.elbo_, rtol=1e-4)


def test_codes_and_bounds_of_a_file_are_computed_some_rows_at_a_time(images, tmp_path, monkeypatch):
    model = curvi.VAE(**OPTIONS).fit(images)
    file = saved(images, tmp_path / "x.npy")
    whole, scores = model.transform(images), model.elbo(images)
    monkeypatch.setattr(_mapped, "_NUMBERS", 90)
    seen, checked = [], curvi.VAE._rows

    def counted(self, X, **options):
        seen.append(len(X))
        return checked(self, X, **options)

    monkeypatch.setattr(curvi.VAE, "_rows", counted)
    assert np.allclose(model.transform(file), whole, atol=1e-6)
    assert max(seen) == 10
    assert abs(model.elbo(file).mean() - scores.mean()) < 0.5
    for refused in (lambda: model.impute(file), lambda: curvi.SemiSupervisedVAE().fit(file, [0])):
        with pytest.raises(curvi.InputError, match=r"takes rows in memory.*np\.load"):
            refused()


def test_a_long_memory_map_is_not_read_whole_and_is_validated(images, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", images)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert _mapped.on_disk(mapped) is None
    monkeypatch.setattr(_streams, "LARGEST_IN_MEMORY", 1000)
    assert _mapped.on_disk(mapped) is mapped
    monkeypatch.setattr(_mapped, "_NUMBERS", 90)
    with pytest.raises(curvi.InputError, match="bernoulli"):
        curvi.VAE(**OPTIONS).fit(saved(images + 0.5, tmp_path / "y.npy"))
    with pytest.raises(curvi.InputError, match="to_npy"):
        curvi.VAE(**OPTIONS).fit(RowBlocks(lambda: iter([(images,)])))
    with pytest.raises(curvi.InputError, match="no mesh"):
        curvi.VAE(**OPTIONS).fit(mapped, mesh=curvi.data_mesh(1))


def test_a_training_on_a_file_resumes_to_the_same_bits(images, tmp_path):
    file = saved(images, tmp_path / "x.npy")
    whole = curvi.VAE(**OPTIONS).fit(file)

    def crash(info):
        if info.step == 5:
            raise RuntimeError

    policy = curvi.Checkpoint(tmp_path / "run", every_seconds=0)
    with pytest.raises(RuntimeError):
        curvi.VAE(**OPTIONS, on_step=crash).fit(file, checkpoint=policy)
    resumed = curvi.VAE(**OPTIONS).fit(file, checkpoint=policy)
    again = curvi.VAE(**OPTIONS).fit(file, checkpoint=policy)  # nothing is left to do
    assert same(whole, resumed)
    assert same(whole, again)
    assert resumed.n_iter_ == again.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(again.history_["elbo"], whole.history_["elbo"])
    assert again.elbo_ == whole.elbo_
