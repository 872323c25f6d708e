"""Forged files with a right digest are refused with their name and place, or can be used."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import curvi
from curvi.io._format import read_file, write_file
from tests.adversarial.forgeries import QUICK, THOROUGH, X, attack, saved
from tests.adversarial.outcomes import refused

pytestmark = pytest.mark.float64_only


@pytest.fixture
def seed(key):
    return int(jax.random.key_data(key)[-1])


def test_a_forged_file_is_refused_by_name_or_works(tmp_path, seed):
    outcomes, faults = attack(saved(QUICK, tmp_path), 140, seed, tmp_path)
    assert not faults, "\n".join(faults)
    assert outcomes["refused"] > 40
    assert outcomes["worked"] > 20


@pytest.mark.slow
def test_forged_files_of_every_kind_are_refused_by_name_or_work(tmp_path, seed):
    _, faults = attack(saved(QUICK | THOROUGH, tmp_path), 2000, seed, tmp_path)
    assert not faults, "\n".join(faults)


def test_a_file_cannot_put_data_in_the_place_of_a_method(tmp_path):
    curvi.BayesianLinearRegression().fit(X, X[:, 0]).save(tmp_path / "f")
    document, arrays = read_file(tmp_path / "f")
    document["value"]["v"]["predict"] = 1
    write_file(tmp_path / "f", document, arrays)
    refused(lambda: curvi.load(tmp_path / "f"), curvi.InputError, str(tmp_path / "f"), "predict")


def test_a_negative_sd_is_refused_by_name(tmp_path):
    curvi.BayesianLinearRegression().fit(X, X[:, 0]).save(tmp_path / "f")
    document, arrays = read_file(tmp_path / "f")
    name = document["value"]["v"]["coef_sd_"]["v"]
    write_file(tmp_path / "f", document, arrays | {name: -np.abs(arrays[name])})
    refused(lambda: curvi.load(tmp_path / "f"), curvi.InputError, "coef_sd_", "negative")
