"""The real files: shapes, counts and values that were established independently of this code."""

from __future__ import annotations

import gzip
import io
from functools import cache

import numpy as np
import pytest
from scipy.io import loadmat
from sklearn.datasets import load_svmlight_file

from curvi import datasets
from curvi.datasets import _lookup as lookup
from curvi.datasets._content import DataFormatError, inflate
from curvi.datasets._golub import standardise
from curvi.datasets._registry import ENTRIES

pytestmark = [pytest.mark.float64_only, pytest.mark.data, pytest.mark.usefixtures("data_dir")]

# name: features, then rows of class +1 and of class -1 for training and for test
TABLES = {
    "a9a": (123, (7841, 24720), (3846, 12435)),
    "a1a": (123, (395, 1210), None),
    "duke": (7129, (22, 16), (0, 4)),
    "duke-all": (7129, (23, 21), None),
    "leukemia": (7129, (27, 11), (20, 14)),
    "leukemia-raw": (7129, (27, 11), (20, 14)),
    "colon-cancer": (2000, (22, 40), None),
    "german": (24, (300, 700), None),
    "ionosphere": (34, (225, 126), None),
    "heart": (13, (120, 150), None),
    "australian": (14, (307, 383), None),
    "diabetes": (8, (500, 268), None),
}

# rows, a group column, its levels, the response
GROUPED = {
    "sleepstudy": (180, "Subject", 18, "Reaction"),
    "radon": (919, "county", 85, "log_radon"),
    "epil": (236, "subject", 59, "y"),
    "verbagg": (7584, "item", 24, "r2"),
    "ohio": (2148, "id", 537, "resp"),
    "penicillin": (144, "plate", 24, "diameter"),
}


@cache
def load(name):
    """Loaded once for all tests of this module; none of them changes the arrays."""
    return datasets.load(name, download=False)


@cache
def raw(name, index=0):
    """The arrays of one file."""
    return lookup.read(ENTRIES[name].files[index], datasets.path(name)[index])


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_its_rows_features_and_classes(name):
    features, *counts = TABLES[name]
    data = load(name)
    assert data.image_shape is None
    for rows, expected in zip((data.train, data.test), counts, strict=True):
        if expected is None:
            assert rows is None
            continue
        X, y = rows
        assert X.shape == (sum(expected), features)
        assert X.dtype == np.float64
        assert X.flags.c_contiguous
        assert np.isfinite(X).all()
        assert y.dtype == np.int64
        assert (np.sum(y == 1), np.sum(y == -1)) == expected


@pytest.mark.parametrize("name", [name for name in TABLES if name != "leukemia-raw"])
def test_every_libsvm_number_agrees_with_scikit_learn(name):
    data, places = load(name), datasets.path(name)
    pairs = [data.train] if data.test is None else [data.train, data.test]
    for (X, y), place in zip(pairs, places, strict=True):
        text = io.BytesIO(inflate(place.read_bytes(), place.name))
        expected, labels = load_svmlight_file(text, n_features=X.shape[1], zero_based=False)
        np.testing.assert_array_equal(X, expected.toarray())
        np.testing.assert_array_equal(y, labels)


def test_all_known_sets_are_covered_here():
    music = {"jsb", "nottingham", "piano_midi", "musedata"}  # see test_music.py
    images = {"frey", "olivetti", "mnist"}
    known = {*TABLES, *GROUPED, *images, *music}
    assert {entry.name for entry in datasets.names()} == known
    assert all(entry.present for entry in datasets.names())


def test_a9a_is_binary_and_its_last_feature_is_in_training_only():
    data = load("a9a")
    assert np.count_nonzero(data.train[0]) == 451592
    assert set(np.unique(data.train[0])) == {0.0, 1.0}
    assert data.train[0][:, 122].any()
    assert not data.test[0][:, 122].any()


def test_every_row_of_a1a_is_a_row_of_a9a():
    small, large = load("a1a").train, load("a9a").train
    known = {(row.tobytes(), label) for row, label in zip(*large, strict=True)}
    assert all((row.tobytes(), label) in known for row, label in zip(*small, strict=True))


def test_duke_is_standardised_over_all_rows_and_its_parts_are_rows_of_it():
    X, y = load("duke-all").train
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(X.std(axis=0, ddof=1), 1, atol=1e-5)
    data = load("duke")
    kept = [*range(6), *range(8, 40)]
    np.testing.assert_array_equal(data.train[0], X[kept])
    np.testing.assert_array_equal(data.train[1], y[kept])
    np.testing.assert_array_equal(data.test[0], X[40:])
    np.testing.assert_array_equal(data.test[1], y[40:])


def test_raw_intensities_standardised_together_give_the_libsvm_numbers():
    (train, genes), (test, genes_of_test) = raw("leukemia-raw", 0), raw("leukemia-raw", 1)
    np.testing.assert_array_equal(genes, genes_of_test)
    (together,) = standardise(np.vstack([train, test]))
    libsvm = load("leukemia")
    expected = np.vstack([libsvm.train[0], libsvm.test[0]])
    np.testing.assert_allclose(together, expected, rtol=0, atol=5.0001e-6)


def test_raw_leukemia_is_standardised_on_the_training_patients_only():
    data, libsvm = load("leukemia-raw"), load("leukemia")
    np.testing.assert_allclose(data.train[0].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(data.train[0].std(axis=0, ddof=1), 1)
    assert np.abs(data.test[0].mean(axis=0)).max() > 0.5
    assert len(set(data.feature_names)) == 7129
    assert data.feature_names[0] == "AFFX-BioB-5_at"
    for ours, theirs in ((data.train, libsvm.train), (data.test, libsvm.test)):
        np.testing.assert_array_equal(ours[1], theirs[1])


IMAGES = {
    "frey": ("ff", 1965, (28, 20), 154.4609, (8, 238)),
    "olivetti": ("faces", 400, (64, 64), 132.3843, (0, 242)),
}


@pytest.mark.parametrize("name", IMAGES)
def test_faces_are_upright_and_scaled(name):
    variable, count, shape, mean, (lowest, highest) = IMAGES[name]
    data = load(name)
    X, y = data.train
    assert data.test is None
    assert data.image_shape == shape
    assert X.shape == (count, shape[0] * shape[1])
    assert X.dtype == np.float32
    assert 255 * X.mean(dtype=np.float64) == pytest.approx(mean, abs=1e-4)
    np.testing.assert_allclose([255 * X.min(), 255 * X.max()], [lowest, highest], rtol=1e-6)
    columns = loadmat(datasets.path(name)[0])[variable]
    if name == "frey":
        assert y is None
        upright = columns.T.reshape(-1, 28, 20)
    else:
        np.testing.assert_array_equal(y, np.repeat(np.arange(40), 10))
        upright = columns.T.reshape(-1, 64, 64).transpose(0, 2, 1)
    np.testing.assert_allclose(X.reshape(-1, *shape) * 255, upright, atol=1e-4)


def test_mnist_has_its_known_means_and_labels():
    data = load("mnist")
    assert data.image_shape == (28, 28)
    known = (
        (
            data.train,
            0.130660,
            [5, 0, 4, 1, 9],
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        ),
        (
            data.test,
            0.132515,
            [7, 2, 1, 0, 4],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
    )
    for (X, y), mean, first, histogram in known:
        assert X.shape == (sum(histogram), 784)
        assert X.dtype == np.float32
        assert (X.min(), X.max()) == (0, 1)
        assert X.mean(dtype=np.float64) == pytest.approx(mean, abs=1e-6)
        assert y.dtype == np.int64
        assert y[:5].tolist() == first
        assert np.bincount(y).tolist() == histogram


def test_a_repacked_copy_is_accepted_and_a_changed_digit_is_not(tmp_path, monkeypatch):
    text = inflate(datasets.path("heart")[0].read_bytes(), "heart")
    copy = tmp_path / "libsvm" / "heart.gz"
    copy.parent.mkdir()
    copy.write_bytes(gzip.compress(text))
    before = datasets.load("heart").train
    monkeypatch.setenv("CURVI_DATA", str(tmp_path))
    assert datasets.path("heart") == [copy]
    np.testing.assert_array_equal(datasets.load("heart").train[0], before[0])
    copy.write_bytes(gzip.compress(text.replace(b"1:70", b"1:71", 1)))
    with pytest.raises(DataFormatError, match="the checksum of its content is sha256"):
        datasets.load("heart")


@pytest.mark.parametrize("name", GROUPED)
def test_a_table_with_groups_has_its_rows_levels_and_response(name):
    rows, group, levels, response = GROUPED[name]
    data = load(name)
    assert len(data.table) == rows
    assert data.table[group].nunique() == levels
    assert np.array_equal(data.train[1], data.table[response])
    assert data.train[0].shape == (rows, len(data.feature_names))
