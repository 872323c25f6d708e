"""The ways in which users copy objects, for tests that every one of them gives the same object."""

from __future__ import annotations

import copy
import pickle

import pytest


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))  # noqa: S301  it was written a moment ago


each_copy = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
