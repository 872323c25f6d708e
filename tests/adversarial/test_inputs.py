"""Input that NumPy or JAX would misread in silence, and exceptions that are not ours."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from tests.adversarial.outcomes import handled, refused, warned


def normal(x):
    return -0.5 * jnp.sum(x**2)


def rows_of(data):
    return curvi.DataTarget(
        lambda x, rows: -0.5 * (rows.astype(x.dtype) - x) ** 2, data, normal, jnp.zeros(())
    )


def masked(values, *where):
    mask = np.zeros(np.shape(values), bool)
    if where:
        mask[where] = True
    return np.ma.MaskedArray(np.asarray(values, np.float32), mask)


TABLE = np.arange(8.0, dtype=np.float32).reshape(4, 2) / 8
FIT = {"progress": False, "execution": "eager"}
REFUSED = {
    "a masked row": (lambda: rows_of(masked([1.0, 99.0], 1)), "data is a masked array with 1"),
    "masked rows": (lambda: rows_of(masked([1, 99], [0, 1])), "with 2 masked entries"),
    "a masked start": (lambda: curvi.Target(normal, masked([1.0, 99.0], 1)), "masked array"),
    "masked columns": (
        lambda: curvi.BayesianLinearRegression().fit(masked(TABLE, 1, 1), np.arange(4.0)),
        "X is a masked array with 1 masked entry; drop those rows",
    ),
    "a masked response": (
        lambda: curvi.BayesianLinearRegression().fit(TABLE, masked(np.arange(4.0), 2)),
        "y is a masked array",
    ),
    "masked pixels": (lambda: curvi.VAE().fit(masked(TABLE, 0, 0)), "X is a masked array"),
    "rows of text": (lambda: rows_of(np.array(["a", "b"])), "data has dtype <U1; give numeric"),
    "rows of dates": (
        lambda: rows_of(np.array(["2020-01-01"], "datetime64[D]")),
        "data has dtype datetime64[D]; give numeric",
    ),
    "a constrain that returns text": (
        lambda: curvi.fit(curvi.Target(normal, jnp.zeros(1), constrain=lambda x: "a"), **FIT),
        "constrain returned a str; it must return arrays",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_misread_is_refused(name):
    run, words = REFUSED[name]
    refused(run, curvi.InputError, words)


ON_STEP = {
    "on_step of fit": (
        lambda: curvi.fit(normal, jnp.zeros(1), on_step=3, **FIT),
        "on_step is a int, which is not callable",
    ),
    "on_step of minimise": (
        lambda: curvi.minimise(lambda p, batch, key: p**2, jnp.ones(()), on_step=3, **FIT),
        "on_step is a int, which is not callable",
    ),
}


@pytest.mark.float64_only  # in the other pass the type checker of the tests refuses it first
@pytest.mark.parametrize("name", ON_STEP)
def test_an_on_step_that_cannot_be_called_is_refused(name):
    run, words = ON_STEP[name]
    refused(run, curvi.InputError, words)


def test_a_masked_array_without_masked_entries_is_an_array():
    handled(lambda: rows_of(masked([1.0, 2.0])), lambda target: target.num_rows == 2)


class OwnError(Exception):
    """An exception of a user's own."""


def fails(*_):
    raise OwnError("my own")


CALLS = {
    "log_density": lambda bad: curvi.Target(bad, jnp.zeros(1)),
    "log_likelihood": lambda bad: curvi.DataTarget(bad, TABLE, normal, jnp.zeros(1)),
    "fn": lambda bad: curvi.minimise(bad, jnp.zeros(1), **FIT),
    "constrain": lambda bad: curvi.fit(curvi.Target(normal, jnp.zeros(1), constrain=bad), **FIT),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("bad", "error"), [(fails, OwnError), (lambda *_: {}["key"], KeyError)])
def test_an_exception_of_the_users_own_keeps_its_type(name, bad, error):
    with pytest.raises(error) as caught:
        CALLS[name](bad)
    assert f"raised by {name} while JAX traced it" in caught.value.__notes__


def test_a_long_list_of_float64_leaves_is_cut():
    with jax.enable_x64(False):
        target = warned(
            lambda: rows_of_many([np.float64([i]) for i in range(1000)]),
            curvi.PrecisionWarning,
            "data[4] and 995 more are float64",
        )
    assert target.num_rows == 1


def rows_of_many(data):
    return curvi.DataTarget(
        lambda x, rows: -0.5 * (rows[0] - x) ** 2, data, normal, jnp.zeros((), jnp.float32)
    )
