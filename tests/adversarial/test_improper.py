"""Posteriors that are no distributions: the direction is named, and there is no answer."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import pytest

import curvi
from tests.adversarial.outcomes import handled, refused, warned


def pair():
    return {"a": jnp.zeros(()), "b": jnp.zeros(())}


IMPROPER = {
    "a coordinate that is not read": (lambda x: -0.5 * x["a"] ** 2 + 0 * x["b"], {}, "b"),
    "one that is not read, full rank": (
        lambda x: -0.5 * x["a"] ** 2 + 0 * x["b"],
        {"family": curvi.FullRank()},
        "b",
    ),
    "a slope": (lambda x: -0.5 * x["a"] ** 2 + x["b"], {}, "b"),
    "a density that rises": (lambda x: -0.5 * x["a"] ** 2 + x["b"] ** 2, {}, "b"),
    "a sum that alone is known": (
        lambda x: -0.5 * (x["a"] + x["b"]) ** 2,
        {"family": curvi.LowRank(1)},
        "a and b",
    ),
    "a prior that is missing": (
        lambda x: -0.5 * x["a"] ** 2 + jax.nn.log_sigmoid(x["b"]),
        {"max_steps": 300},
        "b",
    ),
}


@pytest.mark.parametrize("name", IMPROPER)
def test_the_flat_direction_of_an_improper_posterior_is_named(name):
    density, options, flat = IMPROPER[name]
    words = (f"improper along {flat}:", "proper prior")

    options = {"family": curvi.MeanField(), **options}

    def run():
        return curvi.fit(density, pair(), execution="eager", **options)

    if "max_steps" in options:  # a budget ends it before the numbers do
        warned(run, curvi.NotConvergedWarning, *words)
    else:
        refused(run, curvi.NumericalError, *words)


@pytest.mark.parametrize("name", IMPROPER)
def test_an_improper_posterior_is_never_an_answer_with_nothing_chosen(name):
    density, _, _ = IMPROPER[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = curvi.fit(density, pair(), on_failure="return", progress=False)
    assert not result.converged or result.misfit


def test_a_wide_but_proper_posterior_is_fitted_or_not_called_improper():
    def density(x):
        return -0.5 * (x["a"] / 1e6) ** 2 - 0.5 * (x["b"] / 1e6) ** 2

    handled(lambda: curvi.fit(density, pair()), lambda result: abs(result.sd["a"] / 1e6 - 1) < 1e-3)
    short = warned(
        lambda: curvi.fit(
            density, pair(), max_steps=6, execution="eager", family=curvi.MeanField()
        ),
        curvi.NotConvergedWarning,
        "budget",
    )
    assert not short.converged
    assert "improper" not in short.message
