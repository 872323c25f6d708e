"""Every file that curvi knows: how it is read, what is in it, and where it comes from.

Only checksums and addresses are kept here, never data. A checksum covers the parsed arrays (see
`curvi.datasets._content.digest`), so that it holds for any compression of the same data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from curvi.datasets._golub import parse_intensities, parse_labels
from curvi.datasets._idx import parse_idx
from curvi.datasets._libsvm import parse_libsvm
from curvi.datasets._mat import parse_mat

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_FACES = "https://cs.nyu.edu/~roweis/data/"
_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class DataFile:
    """One file: its usual place below the data folder, its parser, its checksum, its origins.

    The file may also be stored without compression or with another one (see `lookup.find`).
    """

    path: str
    parse: Callable[[bytes, str], Arrays]
    sha256: str
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One data set: a line about it, its files in the order of `assemble`, and their assembly."""

    description: str
    files: tuple[DataFile, ...]
    assemble: str


def _libsvm(
    stored: str, rows: int, features: int, sha256: str, *, origin: str | None = None
) -> DataFile:
    parse = partial(parse_libsvm, num_rows=rows, num_features=features)
    return DataFile(f"libsvm/{stored}", parse, sha256, (_LIBSVM + (origin or stored),))


def _idx(stored: str, shape: tuple[int, ...], sha256: str) -> DataFile:
    urls = tuple(mirror + stored for mirror in _MNIST)
    return DataFile(f"mnist/{stored}", partial(parse_idx, shape=shape), sha256, urls)


def _face(stored: str, variable: str, shape: tuple[int, int], sha256: str) -> DataFile:
    parse = partial(parse_mat, variable=variable, shape=shape)
    return DataFile(f"faces/{stored}", parse, sha256, (_FACES + stored,))


def _golub(part: str, patients: range, sha256: str) -> DataFile:
    parse = partial(parse_intensities, patients=patients, num_genes=7129)
    return DataFile(f"golub/data_set_ALL_AML_{part}.csv.gz", parse, sha256)


ENTRIES: dict[str, Entry] = {
    "a9a": Entry(
        "Adult: income above 50,000 from 123 binary features; 32561 training and 16281 test rows",
        (
            _libsvm(
                "a9a.bz2",
                32561,
                123,
                "2f5857c7fbec42f6249dafd94ee247346d5de01bd7e49fa3dff10cdfbe08b7de",
                origin="a9a",
            ),
            # feature 123 never occurs in the test file
            _libsvm(
                "a9a.t.bz2",
                16281,
                123,
                "2632ccb08ad1d83cdd3c8c469bcbf89265fc59ac65acb887ba39113f0f0a4be3",
                origin="a9a.t",
            ),
        ),
        "rows",
    ),
    "a1a": Entry(
        "Adult, the first subset of a9a: 1605 rows, the same 123 binary features",
        # the last four features do not occur; they are kept so that a1a and a9a share columns
        (
            _libsvm(
                "a1a.bz2",
                1605,
                123,
                "20abba29bed71d31d10ee46ff23f73e6ebe802d9395e30463b04b39be9584cb9",
                origin="a1a",
            ),
        ),
        "rows",
    ),
    "duke": Entry(
        "Duke breast cancer: 7129 genes, 38 training rows and 4 test rows, all of one class",
        (
            _libsvm(
                "duke.tr.bz2",
                38,
                7129,
                "cd3742a8d67d4e72fe157a1b0dbb2038045c6b174a85a182dfbcc1f3fd65af08",
            ),
            _libsvm(
                "duke.val.bz2",
                4,
                7129,
                "d3464fe3e31e1bec5a8b14de6441c164da693f44616c2c2910e9113bd2ffd1b7",
            ),
        ),
        "rows",
    ),
    "duke-all": Entry(
        "Duke breast cancer: 7129 genes, all 44 rows, for leave-one-out",
        (
            _libsvm(
                "duke.bz2",
                44,
                7129,
                "c154147c3bab26bbc5643f8a6d94021c5c2ce1d92d66cacc78742f0d6208aa40",
            ),
        ),
        "rows",
    ),
    "leukemia": Entry(
        "Leukemia, ALL (+1) or AML (-1): 7129 genes, 38 training and 34 test rows, standardised "
        "together",
        (
            _libsvm(
                "leu.bz2",
                38,
                7129,
                "77621ae7a86402eb2643a86e048688f059f3f8b324f3b9d674edbb3913cbfe81",
            ),
            _libsvm(
                "leu.t.bz2",
                34,
                7129,
                "56c62b5b103f917d4fdc89ee2157bbf539b17e88ec0e9e88d2c14d428e514f19",
            ),
        ),
        "rows",
    ),
    "leukemia-raw": Entry(
        "Leukemia from its raw intensities, standardised with the 38 training patients only",
        (
            _golub(
                "train",
                range(1, 39),
                "9cf05a29b9116bc184bcdeb1a93bb937c04cba57c97f3f4e79cfd15d032ec315",
            ),
            _golub(
                "independent",
                range(39, 73),
                "488c503841e2b45c410cfa84ea99535d5f8b982c30d5a0a321ba7c9fb3df8d11",
            ),
            DataFile(
                "golub/actual.csv",
                partial(parse_labels, num_patients=72),
                "3065db958560e151ae0fbc7f53aab91af3256ffee97980ce98e7784ca0a32f36",
            ),
        ),
        "golub",
    ),
    "colon-cancer": Entry(
        "Colon cancer: 2000 genes, 62 rows",
        (
            _libsvm(
                "colon-cancer.bz2",
                62,
                2000,
                "f0d4f3dd84650038fbe0e37db7eab2c3bbb3358528ca60b5e8fd55105499b798",
            ),
        ),
        "rows",
    ),
    "german": Entry(
        "German credit: 24 numeric features, 1000 rows, not scaled",
        (
            _libsvm(
                "german.numer.bz2",
                1000,
                24,
                "a353a182f5a937c76f332bc4c07e75595e282143b7cdd3a6b533a383fa4f11fc",
                origin="german.numer",
            ),
        ),
        "rows",
    ),
    "ionosphere": Entry(
        "Ionosphere radar returns: 34 features in [-1, 1], 351 rows",
        (
            _libsvm(
                "ionosphere_scale.bz2",
                351,
                34,
                "232ae1c302305a52da49af00f548fd3bf7b243ab2a9ee3e8f83de02871167958",
                origin="ionosphere_scale",
            ),
        ),
        "rows",
    ),
    "heart": Entry(
        "Statlog heart disease: 13 features, 270 rows, not scaled",
        (
            _libsvm(
                "heart.bz2",
                270,
                13,
                "50e1ee3039bed257a50dee9ac2a2e6815e29867ea26fc0e3cd4dc66f68e777fd",
                origin="heart",
            ),
        ),
        "rows",
    ),
    "australian": Entry(
        "Australian credit approval: 14 features, 690 rows, not scaled",
        (
            _libsvm(
                "australian.bz2",
                690,
                14,
                "1e5bc9b729c7d7fe6d648066ce753d3951b9627de126b2f8ee8127dea75e4482",
                origin="australian",
            ),
        ),
        "rows",
    ),
    "diabetes": Entry(
        "Pima diabetes: 8 features, 768 rows, not scaled",
        (
            _libsvm(
                "diabetes.bz2",
                768,
                8,
                "08b5e3ce577f51964b0715e80f3e2eb87a44169cdc02bafa9866188be6b04221",
                origin="diabetes",
            ),
        ),
        "rows",
    ),
    "frey": Entry(
        "Frey faces: 1965 grey images of 28 x 20 pixels, one person, no labels",
        (
            _face(
                "frey_rawface.mat",
                "ff",
                (560, 1965),
                "f3619f5e15285b3d0dec021468f14a87ac788ca50577e6daf8272358bd44067f",
            ),
        ),
        "frey",
    ),
    "olivetti": Entry(
        "Olivetti faces: 400 grey images of 64 x 64 pixels, ten each of 40 people",
        (
            _face(
                "olivettifaces.mat",
                "faces",
                (4096, 400),
                "99897e9fda3b0be84fee0fc44a357b89c970ea8b20d4cad18d5d72049079db12",
            ),
        ),
        "olivetti",
    ),
    "mnist": Entry(
        "MNIST digits: 60000 training and 10000 test images of 28 x 28 pixels, ten classes",
        (
            _idx(
                "train-images-idx3-ubyte.gz",
                (60000, 28, 28),
                "7966334e0a62e21aeecb36c594d601b1545b48a7cfcd636d924be8f23bea61a7",
            ),
            _idx(
                "train-labels-idx1-ubyte.gz",
                (60000,),
                "7cae198257dc3f40dd3f471fb4eb7e4a2d866d3b9709469d2624ce09ba884ca5",
            ),
            _idx(
                "t10k-images-idx3-ubyte.gz",
                (10000, 28, 28),
                "3e0c14618a662036c0bd667aa23f8d52269db4b32c4aae88e8c4671bd516fa70",
            ),
            _idx(
                "t10k-labels-idx1-ubyte.gz",
                (10000,),
                "76ba51f7d0e782ba9dbef10071337cc0af4a587046c8f71c38920af74747b571",
            ),
        ),
        "mnist",
    ),
}
