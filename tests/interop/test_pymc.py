"""PyMC models as targets, and what ArviZ and BlackJAX make of the result."""

from __future__ import annotations

import os
import warnings

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from tests.copies import each_copy, pickled
from tests.interop import models

pm = models.import_pymc()
pt = pytest.importorskip("pytensor.tensor")

# The default family is mean field, and some of these models have correlated parameters.
pytestmark = pytest.mark.filterwarnings("ignore:q does not match")


@pytest.fixture(scope="module")
def fitted():
    return curvi.fit(curvi.from_pymc(models.pymc_model()))


def test_textbook_models_are_right_at_defaults_and_in_double_precision(fitted):
    models.assert_right(fitted)
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(fitted.mean))


def test_the_process_keeps_its_precision_and_its_devices(fitted, dtype):
    del fitted
    assert jnp.zeros(()).dtype == dtype
    assert "device_count" not in os.environ.get("XLA_FLAGS", "")


def test_names_transforms_and_coordinates_are_kept(fitted):
    assert set(fitted.target.position) == {
        "mean", "chance_logodds__", "rate_log__", "centre", "effect",
    }  # fmt: skip
    assert set(fitted.mean) == {"mean", "chance", "rate", "centre", "effect", "odds"}
    assert fitted.target.labels.dims["effect"] == ("group",)


@pytest.mark.float64_only
def test_the_density_is_that_of_pymc(fitted, key):
    model = models.pymc_model()
    z = fitted.target.start + jax.random.normal(key, fitted.target.start.shape)
    point = {k: np.asarray(v) for k, v in fitted.target.density.unravel(z).items()}
    np.testing.assert_allclose(
        fitted.target.log_prob(z), model.compile_logp(mode="FAST_COMPILE")(point), rtol=1e-9
    )


@each_copy
@pytest.mark.float64_only
def test_a_copy_of_a_target_is_the_same_target(fitted, copied):
    target = fitted.target
    with jax.enable_x64(False):
        other = copied(target)
    np.testing.assert_array_equal(other.start, target.start)
    np.testing.assert_array_equal(other.log_prob(other.start), target.log_prob(target.start))
    position = target.density.unravel(target.start)
    for name, value in jax.jit(target.constrain)(position).items():
        np.testing.assert_array_equal(jax.jit(other.constrain)(position)[name], value)
    np.testing.assert_array_equal(other.labels.coords["group"], target.labels.coords["group"])


@pytest.mark.float64_only
def test_data_are_those_of_the_call_even_after_pickling():
    with pm.Model() as model:
        y = pm.Data("y", np.array([1.0, 2.0]))
        pm.Normal("seen", pm.Normal("mean", 0, 1), 1, observed=y)
    target = curvi.from_pymc(model)
    before = target.log_prob(target.start)
    pm.set_data({"y": np.array([5.0, 6.0])}, model=model)
    assert pickled(target).log_prob(target.start) == before
    assert curvi.from_pymc(model).log_prob(target.start) < before


def test_arviz_holds_the_posterior_the_densities_the_data_and_the_fit(fitted):
    data = fitted.to_arviz(num_draws=300)
    assert data.posterior["effect"].dims == ("chain", "draw", "group")
    assert data.posterior["effect"].coords["group"].values.tolist() == ["a", "b", "c"]
    assert data.posterior.sizes["draw"] == 300
    np.testing.assert_array_equal(data.posterior["rate"].values[0], fitted.sample(300)["rate"])
    stats = data.sample_stats
    np.testing.assert_allclose(stats["log_ratio"], stats["lp"] - stats["log_q"])
    # The mean of log p - log q over draws of q is the bound.
    ratio = stats["log_ratio"].values
    error = (ratio.std() / 300**0.5) + fitted.elbo_se
    assert abs(ratio.mean() - fitted.elbo) < 6 * error
    np.testing.assert_array_equal(data.observed_data["y"], models.NORMAL)
    assert data.fit.attrs["outcome"] == "CONVERGED"
    assert data.fit.sizes["step"] == fitted.steps


@pytest.mark.float64_only
def test_a_plain_target_goes_to_arviz_too():
    result = curvi.fit(lambda x: -0.5 * jnp.sum(x**2), jnp.ones(3))
    data = result.to_arviz(10)
    assert data.posterior["x"].shape == (1, 10, 3)
    assert "observed_data" not in data.groups()


@pytest.mark.float64_only
def test_nuts_runs_from_the_fit_and_agrees_with_the_posterior(fitted, key):
    start = fitted.to_blackjax(num_chains=2)
    dimension = fitted.target.dimension
    assert start.inverse_mass_matrix.shape == (dimension, dimension)  # that of full rank
    one = jax.tree.map(lambda leaf: leaf[0], start.positions)
    flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(one)])
    np.testing.assert_allclose(start.logdensity_fn(one), fitted.target.log_prob(flat))
    nuts = blackjax.nuts(
        start.logdensity_fn,
        step_size=0.7 * start.step_size,
        inverse_mass_matrix=start.inverse_mass_matrix,
    )

    def step(state, key):
        state, info = nuts.step(key, state)
        return state, (state.position, info.is_divergent)

    with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"):
        warnings.simplefilter("ignore")
        keys = jax.random.split(key, 1000)
        _, (chain, divergent) = jax.jit(lambda s: jax.lax.scan(step, s, keys))(nuts.init(one))
    assert divergent.mean() < 0.01
    rate = np.exp(np.asarray(chain["rate_log__"]))
    mean, sd = models.exact()["rate"]
    # 1,000 steps in a whitened space are worth 200 independent draws at the very least.
    assert abs(rate.mean() - mean) < 6 * sd / 200**0.5


def discrete():
    pm.Normal("x", 0, 1)
    pm.Bernoulli("k", 0.5)


def observed_only():
    pm.Normal("x", 0, 1, observed=1.0)


def minibatch():
    x = pm.Normal("x", 0, 1)
    pm.Normal("y", x, 1, observed=pm.Minibatch(np.zeros(20), batch_size=5), total_size=20)


def impossible():
    x = pm.Normal("x", 0, 1)
    pm.Potential("never", pm.math.switch(x > 1e9, 0.0, -np.inf))


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (discrete, "'k' are discrete"),
        (observed_only, "no free variable"),
        (minibatch, "whole arrays in place of minibatches"),
        (impossible, "log density is -inf"),
    ],
)
def test_a_model_that_cannot_be_fitted_is_refused_with_a_sentence(build, words):
    with pm.Model() as model:
        build()
    with pytest.raises(curvi.InputError, match=words):
        curvi.from_pymc(model)


@pytest.mark.float64_only
def test_something_else_than_a_model_is_refused():
    with pytest.raises(curvi.InputError, match=r"give a pymc.Model"):
        curvi.from_pymc(lambda: None)


def _grouped(centred):
    """Effects with a latent scale and with a latent covariance, written in either form."""
    seen = np.linspace(-1.0, 2.0, 6).reshape(3, 2)
    with pm.Model() as model:
        spread = pm.HalfNormal("spread", 1.0)
        level = pm.Normal("level", 0.0, 2.0)
        root = pt.stack([pt.stack([spread, 0.0]), pt.stack([0.3 * level, 1.0])])
        if centred:
            effect = pm.StudentT("effect", nu=4.0, mu=level, sigma=spread, shape=3)
            both = pm.MvNormal("both", effect[:2], chol=root, shape=(3, 2))
        else:
            noise = pm.StudentT("effect_standardised", nu=4.0, mu=0.0, sigma=1.0, shape=3)
            effect = pm.Deterministic("effect", level + spread * noise)
            pair = pm.Normal("both_standardised", shape=(3, 2))
            both = pm.Deterministic("both", effect[:2] + pair @ root.T)
        pm.Normal("seen", both + effect[:, None], 1.0, observed=seen)
    return curvi.from_pymc(model)


@pytest.mark.float64_only
def test_a_latent_scale_is_inferred_as_noise_and_the_variable_is_what_the_answer_holds(key):
    centred, other = _grouped(True), _grouped(False)
    shapes = {name: leaf.shape for name, leaf in centred.position.items()}
    assert shapes == {name: leaf.shape for name, leaf in other.position.items()}
    noise = jax.random.normal(key, centred.start.shape)
    position = centred.density.unravel(noise)
    flat = jnp.concatenate([jnp.ravel(position[name]) for name in sorted(other.position)])
    np.testing.assert_allclose(centred.log_prob(noise), other.log_prob(flat), rtol=1e-9)
    theirs, ours = other.constrain(position), pickled(centred).constrain(position)
    assert set(ours) == {"spread", "level", "effect", "both"}
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-9)


@pytest.mark.float64_only
def test_a_variable_with_the_name_that_noise_would_have_is_kept(key):
    with pm.Model() as model:
        spread = pm.HalfNormal("spread", 1.0)
        pm.Normal("effect", 0.0, spread)
        pm.Normal("effect_standardised", 3.0, 0.5)
    target = curvi.from_pymc(model)
    flat = jax.random.normal(key, target.start.shape)
    position = target.density.unravel(flat)
    assert len(position) == 3
    expected = model.compile_logp()({name: np.asarray(v) for name, v in position.items()})
    np.testing.assert_allclose(target.log_prob(flat), expected, rtol=1e-9)
