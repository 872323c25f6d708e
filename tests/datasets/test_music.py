"""Cell arrays of sequences: read as SciPy reads them, and refused by name and place if damaged."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import loadmat

from curvi import datasets
from curvi.datasets._content import DataFormatError
from curvi.datasets._music import parse_cells
from tests.datasets import toys

pytestmark = pytest.mark.float64_only

PIECES = [np.eye(3, 4, dtype=np.uint8), np.ones((1, 4), np.uint8)]
CHOICES = {"variables": {"pieces": 2}, "width": 4, "max_bytes": 10_000}


def cells(pieces=PIECES, *, name="pieces", compress=False, **others):
    array = np.empty((1, len(pieces)), object)
    for index, piece in enumerate(pieces):
        array[0, index] = piece
    return toys.mat(compress=compress, **{name: array}, **others)


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
def test_a_cell_array_is_found_among_other_variables(compress):
    data = cells(compress=compress, other=np.eye(2), text="a")
    steps, lengths = parse_cells(data, "toy", **CHOICES)
    np.testing.assert_array_equal(steps, np.concatenate(PIECES))
    np.testing.assert_array_equal(lengths, [3, 1])
    assert steps.dtype == np.uint8


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"x" * 200, "not the header of a MATLAB 5 file"),
        (cells(name="songs"), "there is no variable 'pieces'"),
        (toys.mat(pieces=np.eye(2)), "pieces is not a cell array of 2 cells"),
        (cells(PIECES[:1]), "pieces is not a cell array of 2 cells"),
        (cells() + cells()[128:], "'pieces' is there twice"),
        (cells()[:-16], "an element of"),
        (cells([PIECES[0], np.ones((1, 3), np.uint8)]), "pieces{2} has the shape (1, 3)"),
        (cells([PIECES[0], np.ones((0, 4), np.uint8)]), "pieces{2} has the shape (0, 4)"),
        (cells([PIECES[0], 2 * PIECES[1]]), "pieces{2} holds a 2, not zeros and ones"),
        (cells([PIECES[0], 0.5 * PIECES[1]]), "pieces{2}[0, 0] is 0.5"),
        (cells([PIECES[0], "text"]), "pieces{2} is not a full matrix of real numbers"),
    ],
)
def test_a_bad_cell_array_is_refused(data, what):
    with pytest.raises(DataFormatError) as caught:
        parse_cells(data, "toy", **CHOICES)
    assert what in str(caught.value)


def test_damaged_cell_arrays_are_refused_or_have_the_right_shape(key):
    messages = []
    for data in (cells(), cells(compress=True)):
        for copy in toys.damaged(toys.generator(key), data, 3000):
            try:
                steps, lengths = parse_cells(copy, "toy", **CHOICES)
            except DataFormatError as error:
                messages.append(str(error))
                continue
            assert steps.shape == (lengths.sum(), 4)
            assert set(np.unique(steps)) <= {0, 1}
    assert len(messages) > 1000
    assert [text for text in messages if not text.startswith("toy") or "; " not in text] == []


@pytest.mark.data
@pytest.mark.usefixtures("data_dir")
@pytest.mark.parametrize(
    ("name", "steps"),
    [("jsb", 13_807), ("nottingham", 176_561), ("piano_midi", 75_911), ("musedata", 245_202)],
)
def test_every_note_of_the_music_agrees_with_scipy(name, steps):
    data = datasets.load(name, download=False)
    (place,) = datasets.path(name)
    oracle = loadmat(place)
    parts = {"traindata": data.train, "validdata": data.validation, "testdata": data.test}
    for variable, (pieces, labels) in parts.items():
        expected = oracle[variable].ravel()
        assert labels is None
        assert [len(piece) for piece in pieces] == [len(piece) for piece in expected]
        np.testing.assert_array_equal(np.concatenate(pieces), np.concatenate(list(expected)))
    assert sum(len(piece) for piece in data.train[0]) == steps
