"""Results and estimators come back from their files, without code and without their functions."""

from __future__ import annotations

import json
import math
from collections import namedtuple
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import curvi
from curvi.io._format import FORMAT, read_file, write_file
from curvi.io._kinds import KINDS, class_of, kind_of
from curvi.io._values import CannotStoreError, Decoder, Encoder
from tests.copies import each_copy

pytestmark = pytest.mark.float64_only

Pair = namedtuple("Pair", ["left", "right"])


def through_json(value):
    encoder = Encoder()
    text = json.dumps(encoder.value(value), allow_nan=False)
    return Decoder(encoder.arrays, "here").value(json.loads(text))


def equal(one, other):
    if isinstance(one, np.ndarray):
        same = isinstance(other, np.ndarray) and one.dtype == other.dtype
        return same and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        pairs = zip(one, other, strict=True)
        return type(one) is type(other) and all(equal(a, b) for a, b in pairs)
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and one == other


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ARRAY = st.sampled_from(["f8", "f4", "i8", "i4", "u1", "?", "M8[ns]"]).flatmap(
    lambda code: st.lists(st.integers(0, 3), max_size=3).map(
        lambda shape: np.ones(math.prod(shape), "i1").astype(code).reshape(shape)
    )
)
VALUES = st.recursive(
    PLAIN | ARRAY,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=2)
    ),
    max_leaves=10,
)


@settings(max_examples=60)
@given(VALUES)
def test_values_come_back_as_they_were(value):
    assert equal(value, through_json(value))


def test_arrays_of_a_device_keys_short_numbers_and_texts_come_back():
    value = {
        "device": jnp.arange(3.0),
        "key": jax.random.key(7),
        "short": jnp.ones(3, jnp.bfloat16),
        "texts": np.asarray(["a", "bc"]),
        "objects": np.asarray(["a", None, 3], object),
        "pair": Pair(1, np.zeros(2)),
        "outcome": curvi.Outcome.STALLED,
        "family": curvi.StudentT(5.0, covariance="full"),
        "source": np.random.RandomState(3),
    }
    found = through_json(value)
    assert isinstance(found["device"], jax.Array)
    assert jax.random.key_data(found["key"]).tolist() == jax.random.key_data(value["key"]).tolist()
    assert found["short"].dtype == jnp.bfloat16
    assert found["texts"].tolist() == ["a", "bc"]
    assert found["objects"].tolist() == ["a", None, 3]
    assert found["pair"].left == 1
    assert found["outcome"] is curvi.Outcome.STALLED
    assert found["family"] == value["family"]
    assert found["source"].randint(1000) == value["source"].randint(1000)


def test_an_array_that_occurs_twice_is_stored_once():
    array, encoder = np.zeros(3), Encoder()
    encoder.value([array, {"again": array}])
    assert len(encoder.arrays) == 1


@pytest.mark.parametrize("value", [lambda: 0, object(), np.zeros(2, complex), np.zeros(2, "f8,i4")])
def test_what_is_no_data_is_not_stored(value):
    with pytest.raises(CannotStoreError):
        Encoder().value([value])


def test_every_class_that_files_may_name_is_where_the_table_says():
    assert {kind: kind_of(class_of(kind)) for kind in KINDS} == {kind: kind for kind in KINDS}


@pytest.mark.parametrize(
    "value",
    [
        {"#": "object", "kind": "os.system", "v": {}},
        {"#": "object", "kind": ["FitResult"], "v": {}},
        {"#": "object", "kind": "MeanField", "v": {"surprise": 1}},
        {"#": "object", "kind": "LowRank", "v": {"rank": -1}},
        {"#": "object", "kind": "FitResult", "v": {}},
        {"#": "object", "kind": "VAE", "v": [1]},
        {"#": "object", "kind": "Outcome", "v": "WON"},
        {"#": "array", "v": "nowhere"},
        {"#": "array", "v": "a", "dtype": "object"},
        {"#": "texts", "v": [], "dtype": "<U2", "shape": [9]},
        {"#": "namedtuple", "v": [["import os", 1]], "name": "x"},
        {"#": "random state", "v": ["MT19937"]},
        {"#": "code", "v": "1"},
        {"#": "tuple"},
        7,
    ],
)
def test_a_document_with_a_right_digest_can_still_ask_for_nothing_but_data(tmp_path, value):
    document = {"format": FORMAT, "kind": "FitResult", "value": value}
    write_file(tmp_path / "file", document, {"a": np.zeros(2)})
    with pytest.raises(curvi.InputError, match=str(tmp_path / "file")):
        curvi.load(tmp_path / "file")


def test_what_a_small_document_multiplies_is_refused_or_shared(tmp_path):
    texts = {"#": "texts", "v": ["x" * 10_000, *[""] * 10_000], "shape": [10_001], "dtype": "<U1"}
    document = {"format": FORMAT, "kind": "VAE", "value": {"#": "object", "kind": "VAE", "v": {}}}
    document["value"]["v"]["mean_"] = texts
    write_file(tmp_path / "file", document, {})
    with pytest.raises(curvi.InputError, match="claims 100010000 characters"):
        curvi.load(tmp_path / "file")
    once = through_json([jnp.ones(3)] * 5)
    assert all(array is once[0] for array in once)


def target(shift=1.0):
    return curvi.Target(
        lambda z: -0.5 * jnp.sum((z["a"] - shift) ** 2) - 0.5 * z["b"] ** 2,
        {"a": jnp.zeros(2), "b": jnp.zeros(())},
        # An array of NumPy becomes one of the device when it is first used.
        constrain=lambda z: {"a": np.ones(2) * z["a"], "scale": jnp.exp(z["b"])},
    )


@pytest.fixture(scope="module")
def result():
    return curvi.fit(target(), progress=False)


@pytest.fixture
def path(tmp_path, result):
    result.save(tmp_path / "fit.safetensors")
    return tmp_path / "fit.safetensors"


def leaves(tree):
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(tree)]


def test_a_loaded_result_has_moments_draws_trace_and_verdict_without_its_log_density(path, result):
    found = curvi.load(path)
    for name in ("mean", "sd", "params", "trace"):
        assert leaves(getattr(found, name)) == leaves(getattr(result, name))
    for name in ("outcome", "elbo", "warnings", "khat", "relative_ess", "mc_error", "converged"):
        assert getattr(found, name) == getattr(result, name)
    assert found.family == result.family
    assert found.method == result.method
    draws = found.sample(1000, seed=3)
    assert draws["a"].shape == (1000, 2)
    assert abs(float(jnp.mean(jnp.log(draws["scale"])))) < 6 / 1000**0.5
    assert "converged" in found.summary()


def test_what_needs_the_log_density_says_how_to_give_it(path):
    found = curvi.load(path)
    calls = (found.linear_response, lambda: found.sample(10_000), found.importance)
    for needs in (*calls, found.to_blackjax):
        with pytest.raises(curvi.InputError, match=r"curvi\.load\(path, target="):
            needs()


def test_a_loaded_result_goes_to_arviz_without_its_log_density(path, result):
    pytest.importorskip("arviz")
    found, whole = curvi.load(path).to_arviz(50), result.to_arviz(50)
    assert found.posterior["a"].shape == whole.posterior["a"].shape == (1, 50, 2)
    assert "lp" in whole.sample_stats
    assert not hasattr(found, "sample_stats")


def test_a_target_given_at_loading_is_used(path, result):
    found = curvi.load(path, target=target())
    assert leaves(found.linear_response()) == leaves(result.linear_response())
    assert leaves(found.sample(5)) == leaves(result.sample(5))
    assert leaves(found.mean) == leaves(result.mean)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: target(1.1), "not the one that was fitted"),
        (lambda: curvi.Target(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(7)), "dimension 7"),
        (
            lambda: curvi.DataTarget(
                lambda z, rows: -0.5 * (rows - z[0]) ** 2,
                jnp.zeros(4),
                lambda z: -0.5 * jnp.sum(z**2),
                jnp.zeros(3),
            ),
            "number of rows 4",
        ),
    ],
)
def test_another_target_is_refused(path, other, message):
    with pytest.raises(curvi.InputError, match=message):
        curvi.load(path, target=other())


@each_copy
def test_a_loaded_result_can_be_copied_and_saved_again(path, copied):
    first = curvi.load(path)
    found = copied(first)
    found.save(path)
    again = curvi.load(path)
    assert leaves(again.mean) == leaves(first.mean)
    assert leaves(again.sample(3)) == leaves(first.sample(3))
    assert again.warnings == first.warnings


class _Node:
    def __init__(self, x):
        self.x = x


jax.tree_util.register_pytree_with_keys(
    _Node,
    lambda node: ([(jax.tree_util.GetAttrKey("x"), node.x)], None),
    lambda _, children: _Node(*children),
)


def test_a_method_of_functions_and_a_position_of_the_users_own_class_are_stored_as_far_as_can_be(
    tmp_path,
):
    def log_density(node):
        return -0.5 * jnp.sum((node.x - 2.0) ** 2)

    method = sgd()
    result = curvi.fit(
        log_density, _Node(jnp.zeros(2)), method=method, max_steps=300, progress=False
    )
    result.save(tmp_path / "fit")
    found = curvi.load(tmp_path / "fit")
    assert isinstance(found.method, curvi.io.NotStored)
    assert "FirstOrder" in repr(found.method)
    assert leaves(found.mean) == leaves(result.mean)
    again = curvi.load(tmp_path / "fit", target=curvi.Target(log_density, _Node(jnp.zeros(2))))
    assert isinstance(again.mean, _Node)


def sgd():
    return curvi.FirstOrder(optax.sgd(0.05))


def _fitted(name):
    generator = np.random.default_rng(0)
    X = generator.uniform(size=(60, 4))
    y = (X @ np.asarray([2.0, -1.0, 0.0, 0.5]) * 3).astype(int)
    labels = np.where(X[:, 0] > 0.5, "yes", "no")
    small = {"latent": 2, "hidden": (4,), "max_epochs": 1, "random_state": 0}
    made = {
        "logistic": lambda: curvi.BayesianLogisticRegression(prior="ard").fit(X, labels),
        "poisson": lambda: curvi.BayesianPoissonRegression(random_state=3).fit(X, np.abs(y)),
        "linear": lambda: curvi.BayesianLinearRegression().fit(X.astype(np.float32), y),
        "vae": lambda: curvi.VAE(**small, method=sgd()).fit(X),
        "semi": lambda: curvi.SemiSupervisedVAE(**small, method=sgd()).fit(X, labels),
    }
    return X, made[name]()


@pytest.mark.parametrize("name", ["logistic", "poisson", "linear", "vae", "semi"])
def test_a_fitted_estimator_comes_back_with_its_predictions(tmp_path, name):
    X, model = _fitted(name)
    model.save(tmp_path / "model")
    found = curvi.load(tmp_path / "model")
    use = "transform" if name == "vae" else "predict"
    assert np.array_equal(getattr(found, use)(X), getattr(model, use)(X))
    assert found.get_params().keys() == model.get_params().keys()
    assert {k for k in vars(found) if k.endswith("_")} == {
        k for k in vars(model) if k.endswith("_")
    }
    with pytest.raises(curvi.InputError, match="leave target= out"):
        curvi.load(tmp_path / "model", target=lambda z: z)


def test_an_estimator_that_was_not_fitted_and_a_minimum_can_be_saved(tmp_path):
    curvi.VAE(latent=3).save(tmp_path / "model")
    assert curvi.load(tmp_path / "model").latent == 3
    found = curvi.minimise(
        lambda p, _, __: jnp.sum((p - 3) ** 2), jnp.zeros(2), fixed_key=True, progress=False
    )
    found.save(tmp_path / "minimum")
    assert leaves(curvi.load(tmp_path / "minimum").params) == leaves(found.params)


def test_a_missing_file_is_an_ordinary_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        curvi.load(tmp_path / "nothing")


def test_a_file_holds_no_name_of_a_function_or_module_of_the_user(path):
    text = json.dumps(read_file(Path(path)).document)
    assert "lambda" not in text
    assert __name__ not in text


def test_a_state_space_model_comes_back_with_its_smoothed_states(tmp_path):
    y = np.cumsum(np.random.default_rng(0).normal(size=30))
    model = curvi.sequences.StateSpace().fit(y)
    model.save(tmp_path / "model")
    found = curvi.load(tmp_path / "model")
    assert leaves(found.smooth()) == leaves(model.smooth())
    assert found.hyperparameters_ == model.hyperparameters_


@pytest.mark.slow
def test_a_deep_markov_model_comes_back_with_its_weights(tmp_path):
    rows = [(np.random.default_rng(i).random((6, 3)) < 0.5).astype(np.float32) for i in range(12)]
    model = curvi.DeepMarkovModel(latent=2, hidden=4, max_epochs=1, random_state=0)
    with jax.numpy_dtype_promotion("standard"):  # optax.adam multiplies floats by integers
        model.fit(rows).save(tmp_path / "model")
    found = curvi.load(tmp_path / "model")
    assert leaves(found.params_) == leaves(model.params_)
    assert leaves(found.smooth(rows)) == leaves(model.smooth(rows))


def test_options_that_are_numbers_of_numpy_come_back_as_such(tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = curvi.BayesianLinearRegression(prior_scale=np.float64(2), standardize=np.True_)
    model.fit(X, X[:, 0]).save(tmp_path / "model")
    again = curvi.load(tmp_path / "model")
    np.testing.assert_array_equal(clone(again).fit(X, X[:, 0]).coef_, model.coef_)


def test_an_estimator_whose_fit_was_refused_is_saved_as_its_options(tmp_path):
    model = curvi.BayesianPoissonRegression(prior_scale=3.0)
    with pytest.raises(curvi.InputError):
        model.fit(np.eye(3), [-1, 0, 1])
    model.save(tmp_path / "model")
    assert curvi.load(tmp_path / "model").get_params() == model.get_params()
