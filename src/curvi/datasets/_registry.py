"""Every data set that curvi knows: its files, how they are read and assembled, where to get them.

Only checksums and addresses are kept here, never data. A checksum covers the parsed arrays (see
`curvi.datasets._content.digest`), so that it holds for any compression of the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from curvi.datasets._golub import parse_intensities, parse_labels, standardise
from curvi.datasets._grouped import as_table, parse_columns
from curvi.datasets._images import parse_idx, parse_mat
from curvi.datasets._libsvm import parse_libsvm
from curvi.datasets._music import parse_cells

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_FACES = "https://cs.nyu.edu/~roweis/data/"
_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_SHA256 = {
    "a9a": "2f5857c7fbec42f6249dafd94ee247346d5de01bd7e49fa3dff10cdfbe08b7de",
    "a9a.t": "2632ccb08ad1d83cdd3c8c469bcbf89265fc59ac65acb887ba39113f0f0a4be3",
    "a1a": "20abba29bed71d31d10ee46ff23f73e6ebe802d9395e30463b04b39be9584cb9",
    "duke.tr": "cd3742a8d67d4e72fe157a1b0dbb2038045c6b174a85a182dfbcc1f3fd65af08",
    "duke.val": "d3464fe3e31e1bec5a8b14de6441c164da693f44616c2c2910e9113bd2ffd1b7",
    "duke": "c154147c3bab26bbc5643f8a6d94021c5c2ce1d92d66cacc78742f0d6208aa40",
    "leu": "77621ae7a86402eb2643a86e048688f059f3f8b324f3b9d674edbb3913cbfe81",
    "leu.t": "56c62b5b103f917d4fdc89ee2157bbf539b17e88ec0e9e88d2c14d428e514f19",
    "colon-cancer": "f0d4f3dd84650038fbe0e37db7eab2c3bbb3358528ca60b5e8fd55105499b798",
    "german.numer": "a353a182f5a937c76f332bc4c07e75595e282143b7cdd3a6b533a383fa4f11fc",
    "ionosphere_scale": "232ae1c302305a52da49af00f548fd3bf7b243ab2a9ee3e8f83de02871167958",
    "heart": "50e1ee3039bed257a50dee9ac2a2e6815e29867ea26fc0e3cd4dc66f68e777fd",
    "australian": "1e5bc9b729c7d7fe6d648066ce753d3951b9627de126b2f8ee8127dea75e4482",
    "diabetes": "08b5e3ce577f51964b0715e80f3e2eb87a44169cdc02bafa9866188be6b04221",
    "train-images-idx3-ubyte": "7966334e0a62e21aeecb36c594d601b1545b48a7cfcd636d924be8f23bea61a7",
    "train-labels-idx1-ubyte": "7cae198257dc3f40dd3f471fb4eb7e4a2d866d3b9709469d2624ce09ba884ca5",
    "t10k-images-idx3-ubyte": "3e0c14618a662036c0bd667aa23f8d52269db4b32c4aae88e8c4671bd516fa70",
    "t10k-labels-idx1-ubyte": "76ba51f7d0e782ba9dbef10071337cc0af4a587046c8f71c38920af74747b571",
    "frey_rawface": "f3619f5e15285b3d0dec021468f14a87ac788ca50577e6daf8272358bd44067f",
    "olivettifaces": "99897e9fda3b0be84fee0fc44a357b89c970ea8b20d4cad18d5d72049079db12",
    "golub train": "9cf05a29b9116bc184bcdeb1a93bb937c04cba57c97f3f4e79cfd15d032ec315",
    "golub independent": "488c503841e2b45c410cfa84ea99535d5f8b982c30d5a0a321ba7c9fb3df8d11",
    "sleepstudy": "adfbef0f822923f5136fc53ab903cc617673d3f4126eca5b5ec1cef831b7e639",
    "radon": "0ccbfb443e2418cebba2c0e75cc0e193c735c97b2fc07e49ef6a02312377d128",
    "epil": "3c2e7577839a8f9505e437ef271fea4419a26019e59cde003b028128826bb40e",
    "VerbAgg": "c15469342bda37852f76aeac7b9d63daa9e5f0c77a8c18af95d02f5ce6dd9bb8",
    "ohio": "d2b1f8a473c829c444cb99c0b1d6e7e55cd0288efd5d56751288cb65b011d72c",
    "Penicillin": "c4be85f277e615f44921bad041b6c8bc52eaa9ecd9ab61b5d548a3fba2faf998",
    "golub actual": "3065db958560e151ae0fbc7f53aab91af3256ffee97980ce98e7784ca0a32f36",
    "JSB_Chorales": "7d30016107430e727e7f981c39079b56ddbb6d5126b537e070a88670d4953a7c",
    "Nottingham": "da9b04ee2b176f1940fe9f368965e2f4468a761b261d516b4937bc2825d7cd2d",
    "Piano_midi": "327da89233ea73512bcf0b7a173471e796847cf61c62642ada744110555d6c84",
    "MuseData": "2de893e15867eba39bf6d07580fa6bab3f89da75ed1e826151f4342473db1842",
}

Arrays = tuple[np.ndarray, ...]
Rows = tuple[Any, np.ndarray | None]


@dataclass(frozen=True)
class Dataset:
    """Rows to train and to test on, and what is known about them.

    Attributes
    ----------
    name
        The name given to `load`.
    description
        One line.
    train
        A pair (X, y). Tables: X dense float64 of shape (rows, features), y int64 of -1 and +1.
        Images: X float32 in [0, 1] of shape (images, pixels), y int64 labels, or None where
        there are none. Sequences: X a tuple of uint8 arrays of shape (steps, notes), y None.
    validation
        The official validation rows in the same form, or None.
    test
        The official test rows in the same form, or None.
    feature_names
        One name per column, or None where the source has none.
    image_shape
        (height, width) of an image: ``X.reshape(-1, *image_shape)`` is upright. None for tables.
    table
        A pandas DataFrame of data with groups, whose response and other numbers ``train`` holds.
        None for everything else.

    Notes
    -----
    Everything is dense. The sparsest set, a9a, takes 32 megabytes, less than it costs to treat
    sparse rows everywhere else.
    """

    name: str
    description: str
    train: Rows
    test: Rows | None = None
    validation: Rows | None = None
    feature_names: tuple[str, ...] | None = None
    image_shape: tuple[int, int] | None = None
    table: Any = None


@dataclass(frozen=True)
class DataFile:
    """One file: its usual place below the data folder, its parser, its checksum, its origins.

    The file may also be stored without compression or with another one (see `lookup.find`).
    """

    path: str
    parse: Callable[[bytes, str], Arrays]
    sha256: str
    urls: tuple[str, ...] = ()


def table(parts: Sequence[Arrays]) -> dict[str, Any]:
    """The fields of `Dataset` from a training file and, if there is one, a test file."""
    pairs = [(X, y) for X, y in parts]
    return dict(zip(("train", "test"), pairs, strict=False))


@dataclass(frozen=True)
class Entry:
    """One data set: a line about it, its files, and how their arrays become fields of Dataset."""

    description: str
    files: tuple[DataFile, ...]
    assemble: Callable[[Sequence[Arrays]], dict[str, Any]] = table


def _leukemia(parts: Sequence[Arrays]) -> dict[str, Any]:
    (train, genes), (test, _), (labels,) = parts
    X, X_test = standardise(train, test)
    names = tuple(str(gene) for gene in genes)
    rows = {"train": (X, labels[: len(X)]), "test": (X_test, labels[len(X) :])}
    return {**rows, "feature_names": names}


def _frey(parts: Sequence[Arrays]) -> dict[str, Any]:
    ((columns,),) = parts
    return {"train": (_grey(columns.T), None), "image_shape": (28, 20)}


def _olivetti(parts: Sequence[Arrays]) -> dict[str, Any]:
    ((columns,),) = parts
    upright = columns.T.reshape(-1, 64, 64).transpose(0, 2, 1)  # stored column by column
    subjects = np.arange(len(upright)) // 10
    return {"train": (_grey(upright), subjects), "image_shape": (64, 64)}


def _digits(parts: Sequence[Arrays]) -> dict[str, Any]:
    (images,), (labels,), (test_images,), (test_labels,) = parts
    train = (_grey(images), labels.astype(np.int64))
    test = (_grey(test_images), test_labels.astype(np.int64))
    return {"train": train, "test": test, "image_shape": (28, 28)}


def _grey(images: np.ndarray) -> np.ndarray:
    """Grey levels 0..255 as float32 rows in [0, 1]."""
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def _libsvm(name: str, rows: int, features: int, *, origin: str = "") -> DataFile:
    """A file of the LIBSVM collection; `origin` is the ending under which it is published."""
    parse = partial(parse_libsvm, num_rows=rows, num_features=features)
    return DataFile(f"libsvm/{name}.bz2", parse, _SHA256[name], (_LIBSVM + name + origin,))


def _mnist(name: str, *shape: int) -> DataFile:
    urls = tuple(f"{mirror}{name}.gz" for mirror in _MNIST)
    return DataFile(f"mnist/{name}.gz", partial(parse_idx, shape=shape), _SHA256[name], urls)


def _face(name: str, variable: str, shape: tuple[int, int]) -> DataFile:
    parse = partial(parse_mat, variable=variable, shape=shape)
    return DataFile(f"faces/{name}.mat", parse, _SHA256[name], (f"{_FACES}{name}.mat",))


def _pieces(parts: Sequence[Arrays]) -> dict[str, Any]:
    (arrays,) = parts
    fields = {}
    for index, name in enumerate(("train", "validation", "test")):
        steps, lengths = arrays[2 * index : 2 * index + 2]
        fields[name] = (tuple(np.split(steps, np.cumsum(lengths)[:-1])), None)
    return fields


def _music(name: str, description: str, *counts: int) -> Entry:
    """Polyphonic music: the 88 keys of a piano, one step per eighth or quarter note."""
    variables = dict(zip(("traindata", "validdata", "testdata"), counts, strict=True))
    parse = partial(parse_cells, variables=variables, width=88)
    what = f"{description}: {counts[0]} / {counts[1]} / {counts[2]} pieces, 88 binary notes a step"
    return Entry(what, (DataFile(f"music/{name}.mat", parse, _SHA256[name]),), _pieces)


def _golub(part: str, patients: range) -> DataFile:
    parse = partial(parse_intensities, patients=patients, num_genes=7129)
    return DataFile(f"golub/data_set_ALL_AML_{part}.csv.gz", parse, _SHA256[f"golub {part}"])


def _grouped(
    description: str, name: str, rows: int, columns: str, response: str | None = None
) -> Entry:
    """A table with groups; ``columns`` reads ``name:kind name:kind``, the response first."""
    pairs = tuple((column, kind) for column, kind in (c.split(":") for c in columns.split()))
    parse = partial(parse_columns, columns=pairs, num_rows=rows)
    file = DataFile(f"mixed/{name}.csv", parse, _SHA256[name])
    named = response or pairs[0][0].replace(".", "_")
    return Entry(description, (file,), partial(as_table, columns=pairs, response=named))


_parse_patients = partial(parse_labels, num_patients=72)
ENTRIES: dict[str, Entry] = {
    "a9a": Entry(
        "Adult: income above 50,000 from 123 binary features; 32561 training and 16281 test rows",
        # feature 123 never occurs in the test file
        (_libsvm("a9a", 32561, 123), _libsvm("a9a.t", 16281, 123)),
    ),
    # the last four features of a1a do not occur; they are kept so that it shares columns with a9a
    "a1a": Entry(
        "Adult, the first subset of a9a: 1605 rows, the same 123 binary features",
        (_libsvm("a1a", 1605, 123),),
    ),
    "duke": Entry(
        "Duke breast cancer: 7129 genes, 38 training rows and 4 test rows, all of one class",
        (
            _libsvm("duke.tr", 38, 7129, origin=".bz2"),
            _libsvm("duke.val", 4, 7129, origin=".bz2"),
        ),
    ),
    "duke-all": Entry(
        "Duke breast cancer: 7129 genes, all 44 rows, for leave-one-out",
        (_libsvm("duke", 44, 7129, origin=".bz2"),),
    ),
    "leukemia": Entry(
        "Leukemia, ALL (+1) or AML (-1): 7129 genes, 38 training and 34 test rows, standardised "
        "together",
        (_libsvm("leu", 38, 7129, origin=".bz2"), _libsvm("leu.t", 34, 7129, origin=".bz2")),
    ),
    "leukemia-raw": Entry(
        "Leukemia from its raw intensities, standardised with the 38 training patients only",
        (
            _golub("train", range(1, 39)),
            _golub("independent", range(39, 73)),
            DataFile("golub/actual.csv", _parse_patients, _SHA256["golub actual"]),
        ),
        _leukemia,
    ),
    "colon-cancer": Entry(
        "Colon cancer: 2000 genes, 62 rows", (_libsvm("colon-cancer", 62, 2000, origin=".bz2"),)
    ),
    "german": Entry(
        "German credit: 24 numeric features, 1000 rows, not scaled",
        (_libsvm("german.numer", 1000, 24),),
    ),
    "ionosphere": Entry(
        "Ionosphere radar returns: 34 features in [-1, 1], 351 rows",
        (_libsvm("ionosphere_scale", 351, 34),),
    ),
    "heart": Entry(
        "Statlog heart disease: 13 features, 270 rows, not scaled", (_libsvm("heart", 270, 13),)
    ),
    "australian": Entry(
        "Australian credit approval: 14 features, 690 rows, not scaled",
        (_libsvm("australian", 690, 14),),
    ),
    "diabetes": Entry(
        "Pima diabetes: 8 features, 768 rows, not scaled", (_libsvm("diabetes", 768, 8),)
    ),
    "frey": Entry(
        "Frey faces: 1965 grey images of 28 x 20 pixels, one person, no labels",
        (_face("frey_rawface", "ff", (560, 1965)),),
        _frey,
    ),
    "olivetti": Entry(
        "Olivetti faces: 400 grey images of 64 x 64 pixels, ten each of 40 people",
        (_face("olivettifaces", "faces", (4096, 400)),),
        _olivetti,
    ),
    "mnist": Entry(
        "MNIST digits: 60000 training and 10000 test images of 28 x 28 pixels, ten classes",
        (
            _mnist("train-images-idx3-ubyte", 60000, 28, 28),
            _mnist("train-labels-idx1-ubyte", 60000),
            _mnist("t10k-images-idx3-ubyte", 10000, 28, 28),
            _mnist("t10k-labels-idx1-ubyte", 10000),
        ),
        _digits,
    ),
    "jsb": _music("JSB_Chorales", "Chorales of J. S. Bach", 229, 76, 77),
    "nottingham": _music("Nottingham", "Folk tunes of Nottingham", 694, 173, 170),
    "piano_midi": _music("Piano_midi", "Classical piano music", 87, 12, 25),
    "musedata": _music("MuseData", "Orchestral and piano music", 524, 135, 124),
    "sleepstudy": _grouped(
        "Reaction times of 18 subjects over ten days without sleep; 180 rows",
        "sleepstudy", 180, "Reaction:real Days:whole Subject:whole",
    ),
    "radon": _grouped(
        "Radon in 919 homes of 85 counties: log level, basement, uranium in the soil",
        "radon", 919,
        "log.radon:real basement:whole uranium:real county:whole county.name:name",
    ),
    "epil": _grouped(
        "Seizure counts of 59 epileptics in four periods under progabide or placebo; 236 rows",
        "epil", 236,
        "y:whole trt:name base:whole age:whole V4:whole subject:whole period:whole lbase:real "
        "lage:real",
    ),
    "verbagg": _grouped(
        "Verbal aggression: answers of 316 persons to 24 items, crossed; 7584 rows, r2 is binary",
        "VerbAgg", 7584,
        "Anger:whole Gender:name item:name resp:name id:whole btype:name situ:name mode:name "
        "r2:name",
        "r2",
    ),
    "ohio": _grouped(
        "Wheezing of 537 children at four ages, and smoking of the mother; 2148 rows",
        "ohio", 2148, "resp:whole id:whole age:whole smoke:whole",
    ),
    "penicillin": _grouped(
        "Diameters of growth inhibition on 24 plates for 6 samples, crossed; 144 rows",
        "Penicillin", 144, "diameter:whole plate:name sample:name",
    ),
}  # fmt: skip
