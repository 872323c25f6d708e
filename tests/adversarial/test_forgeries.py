"""Forged files with a right digest are refused with their name and place, or can be used."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

import curvi
from curvi.io._claims import described
from curvi.io._format import read_file, write_file
from curvi.io._kinds import class_of
from tests.adversarial.forgeries import QUICK, THOROUGH, X, attack, saved
from tests.adversarial.outcomes import refused

pytestmark = pytest.mark.float64_only


@functools.cache
def made(name):
    return (QUICK | THOROUGH)[name]()


def contents(names, folder):
    return saved({name: functools.partial(made, name) for name in names}, folder)


@pytest.fixture
def seed(key):
    return int(jax.random.key_data(key)[-1])


def test_a_forged_file_is_refused_by_name_or_works(tmp_path, seed):
    outcomes, faults = attack(contents(QUICK, tmp_path), 140, seed, tmp_path)
    assert not faults, "\n".join(faults)
    assert outcomes["refused"] > 40
    assert outcomes["worked"] > 20


@pytest.mark.slow
def test_forged_files_of_every_kind_are_refused_by_name_or_work(tmp_path, seed):
    _, faults = attack(contents(QUICK | THOROUGH, tmp_path), 2000, seed, tmp_path)
    assert not faults, "\n".join(faults)


def stored_objects(value):
    """The stored objects inside a document with their names, outermost first."""
    if isinstance(value, dict) and value.get("#") == "object" and isinstance(value["v"], dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            yield from stored_objects(part)


def check_that_all_is_described(name, path):
    """An attribute without annotation or claim would be left out, or refused when it comes back."""
    made(name).save(path)
    again = {"_replicates", "_space", "_orders", "_log_ratio"}  # computed when they are asked for
    assert vars(made(name)).keys() <= vars(curvi.load(path)).keys() | again
    for value in stored_objects(read_file(path).document["value"]):
        assert value["v"].keys() <= described(class_of(value["kind"])).keys(), (name, value["kind"])


@pytest.mark.parametrize("name", QUICK)
def test_every_stored_attribute_is_described(tmp_path, name):
    check_that_all_is_described(name, tmp_path / "f")


@pytest.mark.slow
@pytest.mark.parametrize("name", THOROUGH)
def test_every_stored_attribute_of_every_kind_is_described(tmp_path, name):
    check_that_all_is_described(name, tmp_path / "f")


NEEDED = {
    "result": ("FitResult", "target"),
    "minimum": ("OptimiseResult", "params"),
    "logistic": ("Posterior", "mean"),
    "mixed": ("Layout", "factors"),
    "series": ("Lattice", "kept"),
    "encoder": ("VAEParams", "heads"),
}


@pytest.mark.parametrize("name", NEEDED)
def test_an_unknown_name_is_refused_and_so_is_the_lack_of_one(tmp_path, name):
    content = contents([name], tmp_path)[name]
    for value in stored_objects(content.document["value"]):
        value["v"]["surprise"] = 1
        write_file(tmp_path / "f", *content)
        refused(lambda: curvi.load(tmp_path / "f"), curvi.InputError, "surprise", str(tmp_path))
        del value["v"]["surprise"]
    kind, part = NEEDED[name]
    for value in stored_objects(content.document["value"]):
        if value["kind"] == kind:
            del value["v"][part]
    write_file(tmp_path / "f", *content)
    refused(lambda: curvi.load(tmp_path / "f"), curvi.InputError, f"its {part} is missing")


def test_only_code_is_left_out_of_a_file(tmp_path):
    content = contents(["encoder"], tmp_path)["encoder"]
    state = content.document["value"]["v"]
    assert state["method"]["#"] == "not stored"
    state["image_shape_"] = state["method"]
    write_file(tmp_path / "f", *content)
    refused(lambda: curvi.load(tmp_path / "f"), curvi.InputError, "image_shape_", str(tmp_path))


def test_what_somebody_else_has_set_on_an_estimator_is_left_out(tmp_path):
    model = curvi.VAE(verbose=True)
    model.note = "mine"
    model.save(tmp_path / "f")
    found = curvi.load(tmp_path / "f")
    assert not hasattr(found, "note")
    assert found.verbose is True


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


def test_a_series_whose_shown_values_are_missing_is_refused(tmp_path):
    document, arrays = contents(["series"], tmp_path)["series"]
    stored = document["value"]["v"]["_series"]["v"]
    gone = np.full_like(arrays[stored["shown"]["v"]], np.nan)
    stored["shown"] = {**stored["shown"], "v": "gone"}
    write_file(tmp_path / "f", document, arrays | {"gone": gone})
    refused(lambda: curvi.load(tmp_path / "f"), curvi.InputError, "shown", str(tmp_path))
