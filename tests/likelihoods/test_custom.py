"""A likelihood given as a log density does what the built-in one does."""

from __future__ import annotations

import copy

import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import curvi
from curvi.likelihoods import Poisson
from tests.mixed.tables import generator

pytestmark = pytest.mark.float64_only


def counted(t, y):
    return y * t - jnp.exp(t) - jsp.gammaln(y + 1.0)


OWN = curvi.Likelihood(
    counted, mean=np.exp, sample=lambda t, rng: rng.poisson(np.exp(t)), name="own"
)


def test_slopes_and_expectations_are_those_of_the_built_in_poisson(key):
    rng = generator(key)
    t, v = rng.standard_normal((3, 50)), np.exp(rng.uniform(-5, 1.5, (3, 50)))
    y = rng.poisson(3, 50).astype(float)
    for own, built_in in (
        (OWN.terms(t, y), Poisson().terms(t, y)),
        (OWN.expected(t, v, y), Poisson().expected(t, v, y)),
        (OWN.moments(t, v), Poisson().moments(t, v)),
    ):
        # quadrature against closed forms: what the rules promise
        np.testing.assert_allclose(np.array(own), np.array(built_in), rtol=1e-8, atol=1e-9)
    assert OWN.predictor_start(y) == pytest.approx(np.log(y.mean()), abs=1e-6)


def test_a_mixed_model_takes_it(key):
    rng = generator(key)
    g = rng.integers(0, 12, 150)
    x = rng.standard_normal(150)
    y = rng.poisson(np.exp(0.5 + 0.3 * x + 0.5 * rng.standard_normal(12)[g]))
    frame = pd.DataFrame({"y": y, "x": x, "g": g.astype(str)})
    own, built_in = (
        curvi.MixedModel("y ~ x + (1 | g)", likelihood=kind).fit(frame) for kind in (OWN, "poisson")
    )
    # their priors differ by where the intercept is expected, a tenth of a count apart
    np.testing.assert_allclose(own.coef_, built_in.coef_, atol=0.1 * built_in.coef_sd_.min())
    np.testing.assert_allclose(own.predict(frame), built_in.predict(frame), rtol=0.02)
    drawn = own.predict(frame, interval=0.9, kind="response")
    assert np.mean((drawn.lower <= y) & (y <= drawn.upper)) > 0.7
    assert "own" in repr(own)


def test_a_series_takes_it(key):
    rng = generator(key)
    y = rng.poisson(np.exp(1 + np.cumsum(0.1 * rng.standard_normal(60)))).astype(float)
    y[7] = np.nan
    own, built_in = (curvi.StateSpace(likelihood=kind).fit(y) for kind in (OWN, "poisson"))
    difference = (own.smooth().mean - built_in.smooth().mean) / built_in.smooth().sd
    assert np.abs(difference).max() < 0.05
    rate = built_in.smooth(response=True).mean
    np.testing.assert_allclose(own.smooth(response=True).mean, rate, rtol=0.02)
    assert np.isfinite(own.forecast(3).mean).all()


def test_what_is_not_given_is_missed_with_a_name_and_only_where_it_is_needed():
    bare = curvi.Likelihood(counted, name="bare")
    with pytest.raises(curvi.InputError, match="'bare' has no mean; give it mean="):
        bare.mean(np.zeros(3))
    with pytest.raises(curvi.InputError, match="'bare' has no draws; give it sample="):
        bare.sample(np.zeros(3), 1.0, np.zeros(0), np.random.default_rng(0))
    with pytest.raises(curvi.InputError, match="log_density is 'poisson'; give a function"):
        curvi.Likelihood("poisson")


def test_copies_of_a_model_keep_it_and_a_file_leaves_it_out(tmp_path):
    model = curvi.MixedModel("y ~ 1 + (1 | g)", likelihood=OWN)
    assert clone(model).likelihood is OWN
    assert copy.deepcopy(model).likelihood is OWN
    y = np.array([0.0, 1, 3, 2, 1, 0, 2, 4])
    fitted = curvi.StateSpace(likelihood=OWN).fit(y)
    fitted.save(tmp_path / "series")
    with pytest.raises(curvi.InputError, match="likelihood"):
        curvi.load(tmp_path / "series")


def test_the_identity_of_a_likelihood_is_that_of_its_program():
    other = curvi.Likelihood(lambda t, y: counted(t, y) - 0.5 * t**2, name="own")
    same = curvi.Likelihood(counted, name="own")
    assert same.identity == OWN.identity != other.identity
