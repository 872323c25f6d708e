"""Where files are looked for, what is refused, and what a download may leave behind."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import requests

from curvi import datasets
from curvi._core.errors import CurviError, InputError
from curvi.datasets import _lookup as lookup
from curvi.datasets._content import DataFormatError, DataNotFoundError, digest
from curvi.datasets._libsvm import parse_libsvm
from curvi.datasets._registry import ENTRIES, DataFile, Entry
from tests.datasets import toys

pytestmark = pytest.mark.float64_only

TRANSFER = lookup.transfer  # before the fixture forbids it
URLS = ("https://example.org/first/toy", "https://example.org/second/toy")
PARSE = partial(parse_libsvm, **toys.LIBSVM_SHAPE)
TOY = DataFile("libsvm/toy.bz2", PARSE, digest(PARSE(toys.LIBSVM, "toy")), URLS)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    """A data set of one file, and no CURVI_DATA unless a test asks for it."""
    monkeypatch.delenv("CURVI_DATA", raising=False)
    monkeypatch.setitem(ENTRIES, "toy", Entry("A toy of four rows", (TOY,)))


def put(folder, name="libsvm/toy.bz2", data=None):
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(toys.PACKERS["bzip2"](toys.LIBSVM) if data is None else data)
    return place


def serve(monkeypatch, answers):
    """Answer downloads from a dictionary; return the addresses asked for."""
    asked = []

    def transfer(url, output):
        asked.append(url)
        for chunk in answers[url]:
            if isinstance(chunk, Exception):
                raise chunk
            output.write(chunk)

    monkeypatch.setattr(lookup, "transfer", transfer)
    return asked


def files_below(folder):
    return [place for place in folder.rglob("*") if place.is_file()]


def test_the_named_folder_comes_before_the_cache(toy, cache, folder):
    second = put(cache)
    assert datasets.path("toy") == [second]
    first = put(folder)
    assert datasets.path("toy") == [first]


def test_the_cache_alone_is_enough(cache):
    place = put(cache)
    assert datasets.path("toy") == [place]
    X, y = datasets.load("toy").train
    assert X.shape == (4, 3)
    assert y.tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize("suffix", ["", ".bz2", ".gz"])
@pytest.mark.parametrize("packer", toys.PACKERS)
def test_any_compression_under_any_name_has_the_same_checksum(folder, suffix, packer):
    put(folder, f"libsvm/toy{suffix}", toys.PACKERS[packer](toys.LIBSVM))
    data = datasets.load("toy")
    assert data.name == "toy"
    assert data.description == "A toy of four rows"
    assert data.test is None
    assert data.feature_names is None
    assert data.image_shape is None


def test_a_wrong_checksum_is_refused_with_both_values(folder):
    changed = toys.LIBSVM.replace(b"0.5", b"0.6")
    place = put(folder, data=changed)
    with pytest.raises(DataFormatError) as caught:
        datasets.load("toy")
    for part in (str(place), TOY.sha256, digest(PARSE(changed, "toy")), "replace the file"):
        assert part in str(caught.value)


def test_a_damaged_file_is_not_passed_over_for_a_good_one(folder, cache):
    place = put(folder, data=b"nonsense")
    put(cache)
    with pytest.raises(DataFormatError, match="line 1: the label is not") as caught:
        datasets.load("toy")
    assert str(place) in str(caught.value)


def test_a_missing_file_is_named_with_its_place(folder, cache):
    with pytest.raises(DataNotFoundError) as caught:
        datasets.load("toy", download=False)
    message = str(caught.value)
    assert f"libsvm/toy.bz2 is not in {folder} and {cache}; " in message
    assert f"put the file at {folder / 'libsvm/toy.bz2'}" in message
    assert isinstance(caught.value, CurviError)
    assert isinstance(caught.value, FileNotFoundError)


def test_without_a_folder_the_cache_is_the_place_to_put_a_file(cache):
    with pytest.raises(DataNotFoundError) as caught:
        datasets.path("toy")
    assert "(CURVI_DATA is not set); load() downloads it; " in str(caught.value)
    assert f"put the file at {cache / 'libsvm/toy.bz2'}" in str(caught.value)


def test_a_set_without_a_public_address_asks_for_its_file(folder):
    with pytest.raises(DataNotFoundError, match="no public address") as caught:
        datasets.load("leukemia-raw")
    assert "golub/data_set_ALL_AML_train.csv.gz" in str(caught.value)
    with pytest.raises(DataNotFoundError, match="no public address"):
        datasets.path("leukemia-raw")


@pytest.mark.parametrize("call", [datasets.names, partial(datasets.load, "toy")])
def test_a_folder_that_does_not_exist_is_refused(monkeypatch, tmp_path, call):
    monkeypatch.setenv("CURVI_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataNotFoundError, match="which is not a folder; set it to"):
        call()


@pytest.mark.parametrize("call", [datasets.load, datasets.path])
@pytest.mark.parametrize("name", ["a10a", "", "../a9a"])
def test_an_unknown_name_is_refused_with_the_known_ones(call, name):
    with pytest.raises(InputError, match="choose one of 'a9a'"):
        call(name)


def test_names_tell_what_is_present(folder):
    before = {entry.name: entry.present for entry in datasets.names()}
    assert set(before) == set(ENTRIES)
    assert not any(before.values())
    put(folder)
    put(folder, "mnist/train-images-idx3-ubyte", b"")
    after = [entry.name for entry in datasets.names() if entry.present]
    assert after == ["toy"]  # one file of four is not MNIST


def test_every_description_is_one_line():
    for entry in datasets.names():
        assert 10 < len(entry.description) < 110
        assert "\n" not in entry.description


def test_a_download_is_verified_and_kept_in_the_cache(monkeypatch, cache):
    asked = serve(monkeypatch, {URLS[0]: [toys.LIBSVM[:9], toys.LIBSVM[9:]]})
    first = datasets.load("toy")
    assert asked == [URLS[0]]
    assert files_below(cache) == datasets.path("toy") == [cache / "libsvm/toy"]
    again = datasets.load("toy")
    assert asked == [URLS[0]]
    np.testing.assert_array_equal(first.train[0], again.train[0])


BROKEN = {
    "interrupted": [toys.LIBSVM[:9], OSError("connection reset")],
    "truncated": [toys.LIBSVM[:20]],
    "something else": [b"<html>moved</html>"],
    "changed": [toys.LIBSVM.replace(b"0.5", b"0.6")],
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_a_broken_download_leaves_nothing_and_the_next_mirror_is_asked(
    monkeypatch, cache, folder, answer
):
    asked = serve(monkeypatch, dict.fromkeys(URLS, answer))
    with pytest.raises(DataNotFoundError) as caught:
        datasets.load("toy")
    assert asked == list(URLS)
    assert all(url in str(caught.value) for url in URLS)
    assert f"put the file at {folder / 'libsvm/toy.bz2'}" in str(caught.value)
    assert files_below(cache) == []
    serve(monkeypatch, {URLS[0]: answer, URLS[1]: [toys.LIBSVM]})
    assert datasets.load("toy").train[0].shape == (4, 3)
    assert files_below(cache) == [cache / "libsvm/toy"]


def test_nothing_is_left_when_a_download_is_stopped_by_hand(monkeypatch, cache):
    def transfer(url, output):
        output.write(b"+1 1:")
        raise KeyboardInterrupt

    monkeypatch.setattr(lookup, "transfer", transfer)
    with pytest.raises(KeyboardInterrupt):
        datasets.load("toy")
    assert files_below(cache) == []


def test_an_endless_download_is_cut_off(monkeypatch, cache):
    monkeypatch.setattr(lookup, "MAX_BYTES", 1000)
    serve(monkeypatch, dict.fromkeys(URLS, (bytes(100) for _ in range(10**9))))
    with pytest.raises(DataNotFoundError, match="sends more than 1000 bytes"):
        datasets.load("toy")
    assert files_below(cache) == []


def test_a_cache_that_cannot_be_written_is_explained(cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(DataNotFoundError, match=r"the download from .* failed"):
        datasets.load("toy")


def test_pooch_fills_the_bounded_writer(monkeypatch, cache):
    class Answer:
        def __init__(self, status):
            self.status, self.headers = status, {}

        def raise_for_status(self):
            if self.status != 200:
                raise requests.HTTPError(f"status {self.status}")

        def iter_content(self, chunk_size):
            yield toys.LIBSVM[:9]
            yield toys.LIBSVM[9:]

    def get(url, *, timeout, stream):
        assert timeout
        assert stream
        return Answer(403 if url == URLS[0] else 200)

    monkeypatch.setattr(requests, "get", get)
    monkeypatch.setattr(lookup, "transfer", TRANSFER)
    assert datasets.load("toy").train[0].shape == (4, 3)
    assert (cache / "libsvm/toy").read_bytes() == toys.LIBSVM


def test_every_registered_file_is_well_described():
    files = [file for entry in ENTRIES.values() for file in entry.files]
    assert len({file.path for file in files}) == len(files)
    assert len({file.sha256 for file in files}) == len(files)
    for file in files:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert all(url.startswith("https://") for url in file.urls)
        # what is downloaded must be found again
        stem = file.path.rsplit("/", 1)[-1].removesuffix(".bz2").removesuffix(".gz")
        names = {stem, f"{stem}.bz2", f"{stem}.gz"}
        assert {url.rsplit("/", 1)[-1] for url in file.urls} <= names


def test_the_checksum_is_compared_wherever_a_file_comes_from(cache):
    place = put(cache)
    with pytest.raises(DataFormatError, match="0000 is expected"):
        lookup.read(replace(TOY, sha256="0" * 64), place)
