"""Ten thousand damaged files per format: refused with a DataFormatError, or read as sane arrays."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from curvi.datasets._content import DataFormatError, inflate
from curvi.datasets._golub import parse_intensities, parse_labels
from curvi.datasets._images import parse_idx, parse_mat
from curvi.datasets._libsvm import parse_libsvm
from tests.datasets import toys

pytestmark = pytest.mark.float64_only

COUNT = 10_000


def survivors(key, data, parse):
    """What the parser makes of the damaged copies that it accepts; any other error is ours."""
    accepted, messages = [], []
    for copy in toys.damaged(toys.generator(key), data, COUNT):
        try:
            accepted.append(parse(copy))
        except DataFormatError as error:
            messages.append(str(error))
    assert messages
    assert [text for text in messages if not text.startswith("toy") or "; " not in text] == []
    return accepted


def test_damaged_libsvm_text_is_refused_or_has_the_right_shape(key):
    def parse(copy):
        return parse_libsvm(copy, "toy", **toys.LIBSVM_SHAPE)

    for X, y in survivors(key, toys.LIBSVM, parse):
        assert X.shape == (4, 3)
        assert np.isfinite(X).all()
        assert y.shape == (4,)
        assert set(y) <= {-1, 1}


def test_damaged_idx_is_refused_or_has_the_right_shape(key):
    for (array,) in survivors(
        key, toys.idx(toys.GREY), lambda copy: parse_idx(copy, "toy", shape=(3, 4))
    ):
        assert array.shape == (3, 4)
        assert array.dtype == np.uint8


def packed(element):
    body = zlib.compress(element, 1)
    return struct.pack("<II", 15, len(body)) + body


MAT_HEADER, MAT_VARIABLE = toys.mat()[:128], toys.mat()[128:]
MAT_DAMAGE = {
    "anywhere": (MAT_HEADER + MAT_VARIABLE, lambda copy: copy),
    "in the variable": (MAT_VARIABLE, lambda copy: MAT_HEADER + copy),
    "in the compressed variable": (packed(MAT_VARIABLE), lambda copy: MAT_HEADER + copy),
    "before compression": (MAT_VARIABLE, lambda copy: MAT_HEADER + packed(copy)),
}


@pytest.mark.parametrize(("data", "wrap"), MAT_DAMAGE.values(), ids=MAT_DAMAGE)
def test_a_damaged_mat_file_is_refused_or_has_the_right_shape(key, data, wrap):
    def parse(copy):
        return parse_mat(wrap(copy), "toy", variable="faces", shape=(3, 4), max_bytes=10_000)

    for (array,) in survivors(key, data, parse):
        assert array.shape == (3, 4)
        assert array.dtype == np.uint8


def test_damaged_intensities_are_refused_or_have_the_right_shape(key):
    def parse(copy):
        return parse_intensities(copy, "toy", **toys.INTENSITIES_SHAPE)

    for values, genes in survivors(key, toys.INTENSITIES, parse):
        assert values.shape == (2, 2)
        assert genes.shape == (2,)
        assert len(set(genes)) == 2


def test_damaged_labels_are_refused_or_have_the_right_shape(key):
    for (labels,) in survivors(
        key, toys.LABELS, lambda copy: parse_labels(copy, "toy", num_patients=3)
    ):
        assert labels.shape == (3,)
        assert set(labels) <= {-1, 1}


@pytest.mark.parametrize("packer", ["gzip", "bzip2"])
def test_damaged_compression_is_refused_or_stays_within_its_bound(key, packer):
    data = toys.PACKERS[packer](toys.LIBSVM * 5)
    for content in survivors(key, data, lambda copy: inflate(copy, "toy", max_bytes=300)):
        assert len(content) <= 300
