"""Targets are validated once and evaluate what the user wrote."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.errors import InputError
from tests.copies import each_copy, pickled


def quadratic(position):
    return -0.5 * jnp.sum(position["x"] ** 2)


def rows_likelihood(position, rows):
    return -0.5 * (rows["y"] - rows["x"] @ position["x"]) ** 2


@pytest.fixture
def position(dtype):
    return {"x": jnp.arange(1, 4, dtype=dtype)}


@pytest.fixture
def data(dtype):
    return {"x": jnp.ones((5, 3), dtype), "y": jnp.arange(5, dtype=dtype)}


def test_the_value_of_the_position_is_the_start(position, dtype):
    target = curvi.Target(quadratic, position)
    np.testing.assert_array_equal(target.start, [1, 2, 3])
    assert target.dimension == 3
    assert target.dtype == dtype
    assert float(target.log_prob(target.start)) == -7.0


@pytest.mark.parametrize(
    ("log_density", "sentence"),
    [
        (lambda p: p["x"], r"returned shape \(3,\); it must return one scalar"),
        (lambda p: jnp.sum(p["x"])[None], r"returned shape \(1,\)"),
        (lambda p: jnp.sum(p["x"]) > 0, "returned dtype bool"),
        (lambda p: None, "returned a NoneType"),
        (lambda p: {"a": jnp.sum(p["x"])}, "returned a dict"),
        (lambda p: np.asarray(p["x"]), "could not be traced"),
        (lambda p: p["x"].nothing, "could not be traced.*AttributeError"),
        (lambda p: jnp.sum(p["x"]) if p["x"][0] > 0 else 0.0, "could not be traced"),
    ],
)
def test_a_log_density_that_returns_no_scalar_is_refused(log_density, sentence, position):
    with pytest.raises(InputError, match=sentence):
        curvi.Target(log_density, position)


@pytest.mark.float64_only
def test_a_log_density_that_cannot_be_called_is_refused(position):
    with pytest.raises(InputError, match="not callable"):
        curvi.Target("no function", position)


def test_a_non_finite_start_is_refused(position):
    target = curvi.Target(lambda p: jnp.sum(jnp.log(-p["x"])), position)
    with pytest.raises(InputError, match="log_density is nan at the starting position"):
        target.check_start()
    curvi.Target(quadratic, position).check_start()


def test_data_targets_add_rows_and_prior(position, data):
    target = curvi.DataTarget(rows_likelihood, data, quadratic, position)
    residual = np.arange(5) - 6.0
    assert target.num_rows == 5
    np.testing.assert_allclose(
        float(target.log_prob(target.start)), -0.5 * np.sum(residual**2) - 7.0, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("log_likelihood", "sentence"),
    [
        (lambda p, rows: jnp.sum(rows_likelihood(p, rows)), "one value per row"),
        (lambda p, rows: rows_likelihood(p, rows)[:, None], "one value per row"),
        (lambda p, rows: jnp.zeros(5), r"on 1 row\(s\) returned shape \(5,\)"),
        (lambda p, rows: np.log(rows["y"]), "log_likelihood could not be traced"),
    ],
)
def test_a_likelihood_that_is_not_per_row_is_refused(log_likelihood, sentence, position, data):
    with pytest.raises(InputError, match=sentence):
        curvi.DataTarget(log_likelihood, data, quadratic, position)


def test_a_vector_prior_is_refused(position, data):
    with pytest.raises(InputError, match="log_prior returned shape"):
        curvi.DataTarget(rows_likelihood, data, lambda p: p["x"], position)


def test_a_row_with_a_non_finite_likelihood_is_named(position, data):
    def likelihood(p, rows):
        return jnp.log(rows["y"] - 1.5) + 0 * jnp.sum(p["x"])

    target = curvi.DataTarget(likelihood, data, quadratic, position)
    with pytest.raises(InputError, match=r"log_likelihood of row \[0\] is nan"):
        target.check_start()


def softplus(position):
    return jax.tree.map(jax.nn.softplus, position)


@each_copy
@pytest.mark.parametrize("kind", ["Target", "DataTarget"])
def test_a_copy_is_the_same_target(kind, copied, position, data):
    functions = (quadratic,) if kind == "Target" else (rows_likelihood, data, quadratic)
    labels = curvi.targets.Labels({"x": ("axis",)})
    target = getattr(curvi, kind)(*functions, position, softplus, labels)
    other = copied(target)
    assert type(other) is type(target)
    # So that compiled code is shared.
    assert jax.tree.structure(other.density) == jax.tree.structure(target.density)
    assert other.constrain is softplus
    assert other.labels.dims == labels.dims
    assert other.num_rows == target.num_rows
    np.testing.assert_array_equal(other.start, target.start)
    assert float(other.log_prob(other.start)) == float(target.log_prob(target.start))


@pytest.mark.parametrize("wide", [True, False])
def test_a_copy_keeps_the_precision_of_the_original_wherever_it_is_loaded(wide):
    kind = np.float64 if wide else np.float32
    with jax.enable_x64(wide):
        target = curvi.Target(quadratic, {"x": jnp.full(3, 1 / 3, kind)})
    for outside in (True, False):
        with jax.enable_x64(outside):
            other = pickled(target)
            assert other.dtype == kind
            np.testing.assert_array_equal(np.asarray(other.start), np.full(3, 1 / 3, kind))


def test_a_target_can_be_started_elsewhere(position, data, dtype):
    target = curvi.DataTarget(rows_likelihood, data, quadratic, position)
    moved = target.with_position({"x": jnp.zeros(3, dtype)})
    np.testing.assert_array_equal(moved.start, 0)
    np.testing.assert_array_equal(target.start, position["x"])
    assert jax.tree.structure(moved.density) == jax.tree.structure(target.density)


def test_a_plain_target_has_no_rows(position):
    target = curvi.Target(quadratic, position)
    assert target.num_rows == 0
    assert target.rows is None
    with pytest.raises(InputError, match="a Target has no rows"):
        target.density.log_likelihood_rows(target.start, jnp.zeros(3))


def test_public_names_are_found_and_unknown_ones_are_not():
    assert sorted(curvi.__all__) == dir(curvi)
    missing = [name for name in curvi.__all__ if not hasattr(curvi, name)]
    assert missing == []
    with pytest.raises(AttributeError, match="no attribute 'Targets'"):
        _ = curvi.Targets
    assert re.fullmatch(r"\d+\.\d+\.\d+", curvi.__version__)
