"""Bad input is refused with what, where and what to do; good input passes unchanged."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.trees import coordinate_names, stable_sum


@pytest.mark.parametrize(
    ("position", "sentence"),
    [
        ({}, "position is empty"),
        ({"a": np.zeros((0,), np.float32)}, "holds no numbers"),
        ({"a": np.zeros(2, int)}, r"position\['a'\] has dtype int64; a position must be floating"),
        ({"a": np.array([1.0, np.nan], np.float32)}, r"position\['a'\]\[1\] is nan"),
        ({"a": np.array(np.inf, np.float32)}, r"position\['a'\] is inf"),
        ({"a": "text"}, r"position\['a'\] has dtype <U4"),
        ({"a": True}, r"position\['a'\] has dtype bool"),
    ],
)
def test_a_bad_position_is_refused_by_name(position, sentence):
    with pytest.raises(InputError, match=sentence):
        validation.flat_position(position)


def test_a_position_goes_there_and_back(dtype):
    position = {"b": jnp.arange(6, dtype=dtype).reshape(2, 3), "a": 1.5}
    flat, unravel = validation.flat_position(position)
    back = unravel(flat)
    assert flat.dtype == dtype
    assert flat.shape == (7,)
    np.testing.assert_array_equal(back["b"], position["b"])
    assert back["a"] == 1.5


@pytest.mark.float64_only
def test_leaves_of_two_precisions_get_the_wider_one():
    flat, _ = validation.flat_position([np.zeros(2, np.float32), np.zeros(2, np.float64)])
    assert flat.dtype == jnp.float64


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "data is empty"),
        ({"x": np.zeros((0, 3), np.float32)}, "no rows"),
        ({"x": np.float32(1)}, "is a scalar"),
        (
            {"x": np.zeros((3, 2), np.float32), "y": np.zeros(4, np.float32)},
            r"disagree.*data\['x'\]: 3.*data\['y'\]: 4",
        ),
        ({"x": np.array([[0, 1], [np.nan, 2]], np.float32)}, r"data\['x'\]\[1, 0\] is nan"),
        ({"x": np.array(["a", None], object)}, "dtype object"),
    ],
)
def test_bad_data_are_refused_by_name(data, sentence):
    with pytest.raises(InputError, match=sentence):
        validation.checked_rows(data)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None])
def test_a_count_must_be_a_positive_integer(value):
    with pytest.raises(InputError, match="positive integer"):
        validation.positive_integer(value, "rank")


@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, "x", None, True])
def test_a_positive_number_must_be_one(value):
    with pytest.raises(InputError, match="positive"):
        validation.positive_number(value, "df")


def test_float64_input_without_x64_is_said():
    with (
        jax.enable_x64(False),
        pytest.warns(validation.PrecisionWarning, match="position is float64"),
    ):
        flat, _ = validation.flat_position(np.zeros(2, np.float64))
    assert flat.dtype == jnp.float32


def test_float64_input_with_x64_keeps_its_precision_silently():
    with jax.enable_x64(True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        flat, _ = validation.flat_position(np.full(2, 1 / 3, np.float64))
    assert caught == []
    np.testing.assert_array_equal(flat, np.full(2, 1 / 3))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 5000])
def test_the_blocked_sum_is_a_sum(size, dtype):
    values = np.arange(size).astype(dtype)
    assert float(stable_sum(jnp.asarray(values))) == size * (size - 1) / 2


def test_the_blocked_sum_keeps_its_digits_in_float32():
    values = np.full(3_000_000, 0.1, np.float32)
    exact = float(values.astype(np.float64).sum())
    assert abs(float(stable_sum(jnp.asarray(values))) - exact) < 1e-6 * exact


def test_coordinates_have_names():
    tree = {"w": np.zeros((2, 2)), "b": 0.0}
    assert coordinate_names(tree) == ["b", "w[0,0]", "w[0,1]", "w[1,0]", "w[1,1]"]
    assert coordinate_names(np.zeros(2)) == ["x[0]", "x[1]"]
