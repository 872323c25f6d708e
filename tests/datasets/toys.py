"""Tiny valid files of every format, and random damage to them."""

from __future__ import annotations

import bz2
import gzip
import io
import struct
from collections.abc import Iterator

import jax
import numpy as np
from scipy.io import savemat

LIBSVM = b"+1 1:0.5 3:-2.25\n-1 2:1e-1 3:4\n-1.000000\n1 1:7 2:.5 3:1.\n"
LIBSVM_SHAPE = {"num_rows": 4, "num_features": 3}
GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
INTENSITIES = (
    b"Gene Description,Gene Accession Number,3,call,2,call\r\n"
    b'"a ""quoted"", gene",G1_at,-7,A,12,P\r\n'
    b"another,G2_at,0,M,30000,A\r\n"
)
INTENSITIES_SHAPE = {"patients": range(2, 4), "num_genes": 2}
LABELS = b"patient,cancer\n2,AML\n1,ALL\n3,ALL\n\n"


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def mat(*, compress: bool = False, **variables: object) -> bytes:
    stream = io.BytesIO()
    savemat(stream, variables or {"faces": GREY}, do_compression=compress)
    return stream.getvalue()


PACKERS = {
    "plain": lambda data: data,
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "bzip2": lambda data: bz2.compress(data, 1),
}


def generator(key: jax.Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def damaged(rng: np.random.Generator, data: bytes, count: int) -> Iterator[bytes]:
    """Copies of the data with one to three random edits each."""
    alphabet = np.frombuffer(data, np.uint8)
    for _ in range(count):
        copy = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            _edit(rng, copy, alphabet)
        yield bytes(copy)


def _edit(rng: np.random.Generator, copy: bytearray, alphabet: np.ndarray) -> None:
    at = int(rng.integers(0, len(copy) + 1))
    length = int(rng.integers(1, 17))
    match int(rng.integers(0, 7)):
        case 0:  # flip one bit
            if at < len(copy):
                copy[at] ^= 1 << int(rng.integers(0, 8))
        case 1:  # another byte, any
            if at < len(copy):
                copy[at] = int(rng.integers(0, 256))
        case 2:  # another byte, of those that the format uses
            if at < len(copy):
                copy[at] = int(rng.choice(alphabet))
        case 3:  # the end is lost
            del copy[at:]
        case 4:  # something is lost in between
            del copy[at : at + length]
        case 5:  # something is inserted
            copy[at:at] = rng.integers(0, 256, length, dtype=np.uint8).tobytes()
        case _:  # something is repeated
            copy[at:at] = copy[at : at + length]
