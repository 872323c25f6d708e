"""No test of this stage reaches the network, and none sees the cache of the person who runs it."""

from __future__ import annotations

import pooch
import pytest

from curvi.datasets import _lookup as lookup


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache folder, for this test alone."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(pooch, "os_cache", lambda project: folder)
    return folder


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(url, output):
        raise AssertionError(f"a test tried to download {url}")

    monkeypatch.setattr(lookup, "transfer", refuse)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that CURVI_DATA names."""
    place = tmp_path / "data"
    place.mkdir()
    monkeypatch.setenv("CURVI_DATA", str(place))
    return place
