"""The ways in which users copy objects, for tests that every one of them gives the same object."""

from __future__ import annotations

import copy
import io
import pickle

import joblib
import pytest


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))  # noqa: S301  it was written a moment ago


def through_joblib(thing):
    stream = io.BytesIO()
    joblib.dump(thing, stream)
    stream.seek(0)
    return joblib.load(stream)


WAYS = (copy.copy, copy.deepcopy, pickled, through_joblib)
each_copy = pytest.mark.parametrize("copied", WAYS)
