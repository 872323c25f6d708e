"""NumPyro models as targets, and the drop-in for its SVI."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive, autoguide
from numpyro.infer.util import log_density, potential_energy

import curvi
from curvi._core.trees import usual_promotion
from tests.copies import each_copy, pickled
from tests.interop import models

ROWS = np.linspace(-1.0, 2.0, 12)

# The default family is mean field, and some of these models have correlated parameters.
pytestmark = pytest.mark.filterwarnings("ignore:q does not match")


@pytest.fixture(scope="module")
def fitted(dtype):
    target = curvi.from_numpyro(models.numpyro_model, *models.numpyro_arguments(dtype))
    return curvi.fit(target)


def test_textbook_models_are_right_at_defaults(fitted):
    models.assert_right(fitted)


def test_a_result_that_was_read_can_still_be_pickled(fitted):
    assert fitted.summary()
    twin = pickled(fitted)
    assert twin.khat == fitted.khat
    np.testing.assert_array_equal(twin.mean["effect"], fitted.mean["effect"])


def test_results_are_by_site_name_in_their_support_with_deterministic_sites(fitted, dtype):
    draws = fitted.sample(50)
    assert set(draws) == {"mean", "chance", "rate", "centre", "effect", "odds"}
    assert draws["effect"].shape == (50, 3)
    assert ((draws["chance"] > 0) & (draws["chance"] < 1)).all()
    assert (draws["rate"] > 0).all()
    np.testing.assert_allclose(
        draws["odds"], draws["chance"] / (1 - draws["chance"]), rtol=100 * jnp.finfo(dtype).eps
    )
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(draws))


def test_a_plate_names_the_axis_of_its_sites_for_arviz(fitted):
    data = fitted.to_arviz(20)
    assert data.posterior["effect"].dims == ("chain", "draw", "group")
    np.testing.assert_allclose(data.observed_data["groups"], models.GROUPS, rtol=1e-6)


def rows_model(y, size=None):
    scale = numpyro.sample("scale", dist.HalfNormal(2))
    mean = numpyro.sample("mean", dist.Normal(0, 3))
    numpyro.factor("outside", -0.1 * mean**2)
    with numpyro.plate("rows", len(y), subsample_size=size) as index:
        fitted = numpyro.deterministic("fitted", mean + 0 * y[index])
        with numpyro.handlers.scale(scale=0.5):
            numpyro.sample("y", dist.Normal(fitted, scale), obs=y[index])


def test_a_subsampled_plate_becomes_rows_of_data(key, dtype):
    y = jnp.asarray(ROWS, dtype)
    whole = curvi.from_numpyro(rows_model, y)
    rows = curvi.from_numpyro(rows_model, y, size=4)
    assert isinstance(rows, curvi.DataTarget)
    assert rows.num_rows == len(y)

    @jax.jit  # one compilation instead of one for every operation
    def evaluate(z):
        position = whole.density.unravel(z)
        per_row = rows.log_likelihood(position, jnp.array([3, 3, 0]))
        fitted = rows.constrain(position)["fitted"]
        return rows.log_prob(z), whole.log_prob(z), per_row, fitted

    found = evaluate(whole.start + jax.random.normal(key, whole.start.shape, dtype))
    np.testing.assert_allclose(found[0], found[1], rtol=1e4 * jnp.finfo(dtype).eps)
    np.testing.assert_array_equal(found[2][0], found[2][1])
    assert found[3].shape == (len(y),)


@each_copy
@pytest.mark.parametrize("size", [None, 4], ids=["all rows", "subsampled"])
@pytest.mark.float64_only
def test_a_copy_of_a_target_is_the_same_target(copied, size):
    target = numpyro_target(size)
    other = copied(target)
    assert type(other) is type(target)
    np.testing.assert_array_equal(other.start, target.start)
    np.testing.assert_array_equal(other.log_prob(other.start), target.log_prob(target.start))
    position = target.density.unravel(target.start)
    for name, value in jax.jit(target.constrain)(position).items():
        np.testing.assert_array_equal(jax.jit(other.constrain)(position)[name], value)
    np.testing.assert_array_equal(other.labels.observed["y"], target.labels.observed["y"])


@lru_cache
def numpyro_target(size):
    return curvi.from_numpyro(rows_model, jnp.asarray(ROWS), size=size)


@pytest.mark.slow
@pytest.mark.float64_only
def test_supports_of_every_kind_agree_with_numpyro(key):
    def model():
        numpyro.sample("simplex", dist.Dirichlet(jnp.ones(3)))
        numpyro.sample("corner", dist.LKJCholesky(3, 2.0))
        numpyro.sample("improper", dist.ImproperUniform(dist.constraints.positive, (), (2,)))
        low = numpyro.sample("low", dist.Uniform(0, 1))
        numpyro.sample("above", dist.Uniform(low, 2))
        numpyro.factor("proper", -1.0)
        vector = dist.ImproperUniform(dist.constraints.ordered_vector, (), (3,))
        numpyro.sample("ordered", vector)

    target = curvi.from_numpyro(model)

    @jax.jit  # one compilation instead of one for every operation
    def both(z):
        position = target.density.unravel(z)
        with usual_promotion():
            potential = potential_energy(numpyro.handlers.seed(model, key), (), {}, position)
            values = target.constrain(position)
            joint, _ = log_density(numpyro.handlers.seed(model, key), (), {}, values)
        return potential, values, joint, target.log_prob(z)

    potential, values, joint, found = both(0.5 * jax.random.normal(key, target.start.shape))
    np.testing.assert_allclose(found, -potential, rtol=1e-12)
    assert np.isfinite(joint)  # every value is inside the support of its site
    assert values["low"] < values["above"] < 2
    assert (np.diff(values["ordered"]) > 0).all()
    np.testing.assert_allclose(values["simplex"].sum(), 1.0)


def test_the_start_is_finite_where_the_centre_of_the_support_is_not():
    def model():
        x = numpyro.sample("x", dist.Normal(50.0, 1.0))
        numpyro.factor("inside", jnp.where(x > 10, 0.0, -jnp.inf))

    assert abs(curvi.from_numpyro(model).position["x"] - 50) < 5


def discrete():
    numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("k", dist.Bernoulli(0.5))


def with_param():
    numpyro.sample("x", dist.Normal(numpyro.param("shift", jnp.zeros(())), 1))


def outside():
    """At the start, zero, the factor is zero for every row."""
    x = numpyro.sample("x", dist.Normal(0, 1))
    y = jnp.arange(10.0)
    with numpyro.plate("rows", 10, subsample_size=2) as index:
        numpyro.sample("y", dist.Normal(x, 1), obs=y[index])
    numpyro.factor("sum", -x * jnp.sum(y[index]))


def observed_only():
    numpyro.sample("x", dist.Normal(0, 1), obs=jnp.zeros(()))


def delta():
    numpyro.sample("x", dist.Delta(jnp.zeros(())))


def broken():
    raise KeyError("age")


def impossible():
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.factor("never", jnp.where(x > 1e9, 0.0, -jnp.inf))


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (discrete, "'k' is discrete"),
        (with_param, "'shift' is a numpyro.param"),
        (outside, "a site outside plate 'rows' depends on its rows; move it inside"),
        (observed_only, "no latent site"),
        (delta, "is a Delta"),
        (broken, "KeyError: 'age'"),
        (impossible, "log density is -inf"),
        (3, "give a NumPyro model"),
    ],
)
def test_a_model_that_cannot_be_fitted_is_refused_with_a_sentence(model, words):
    with pytest.raises(curvi.InputError, match=words):
        curvi.from_numpyro(model)


def _grouped(y, size):
    """Local latent sites in a plate; with ``size``, a subsampled one."""
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("rows", len(y), subsample_size=size) as index:
        effect = numpyro.sample("effect", dist.Normal(mu, 0.7))
        numpyro.sample("y", dist.Normal(effect, 0.5), obs=y[index])


def _two_plates(y, size):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    for name in ("a", "b"):
        with numpyro.plate(name, len(y), subsample_size=size) as index:
            numpyro.sample(f"y{name}", dist.Normal(mu, 1), obs=y[index])


@pytest.mark.float64_only
@pytest.mark.parametrize(
    ("model", "words"),
    [(_grouped, "'effect' is inside plate 'rows'"), (_two_plates, "subsamples 2 plates")],
)
def test_all_rows_are_used_where_minibatches_make_no_table(model, words, key):
    """It is the density of the model without subsampling, and a warning tells."""
    y = jnp.asarray([0.3, -0.2, 0.9, 1.4, 2.0])
    with pytest.warns(UserWarning, match=words):
        target = curvi.from_numpyro(model, y, 2)
    whole = curvi.from_numpyro(model, y, None)
    z = jax.random.normal(key, whole.start.shape)
    np.testing.assert_allclose(target.log_prob(z), whole.log_prob(z), rtol=1e-12)
    found, expected = (one.constrain(one.density.unravel(z)) for one in (target, whole))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12)


def line(y):
    slope = numpyro.sample("slope", dist.Normal(0, 3))
    level = numpyro.sample("level", dist.Normal(0, 3))
    numpyro.sample("y", dist.Normal(level + slope * jnp.arange(3.0), 1), obs=y)


def line_answer(y):
    X = np.stack([np.ones(3), np.arange(3.0)], axis=1)
    precision = X.T @ X + np.eye(2) / 9
    return np.linalg.solve(precision, X.T @ y), precision


@pytest.mark.float64_only
@pytest.mark.parametrize(
    "kind", ["AutoNormal", pytest.param("AutoMultivariateNormal", marks=pytest.mark.slow)]
)
def test_svi_run_gives_parameters_that_predictive_and_the_guide_understand(key, kind):
    y = np.array([0.5, 1.0, 2.5])
    mean, precision = line_answer(y)
    covariance = np.linalg.inv(precision)
    if kind == "AutoNormal":
        covariance = np.diag(1 / np.diag(precision))
    guide = getattr(autoguide, kind)(line)
    run = curvi.SVI(line, guide).run(key, 100, y, progress_bar=False)
    assert run.state.converged
    assert run.losses.shape == (run.state.steps,)
    with usual_promotion():
        median = guide.median(run.params)
        draws = Predictive(guide, params=run.params, num_samples=4000)(key, y)
    np.testing.assert_allclose([median["level"], median["slope"]], mean, atol=1e-5)
    both = np.stack([draws["level"], draws["slope"]])
    # 4,000 draws: a mean is known to sd/63, an entry of the covariance to about 2.2 % of the
    # product of the sds; six of those.
    sd = np.diag(covariance) ** 0.5
    assert (np.abs(both.mean(axis=1) - mean) < 6 * sd / 63).all()
    assert (np.abs(np.cov(both) - covariance) < 6 * 0.023 * np.outer(sd, sd)).all()


@pytest.mark.slow  # the guide over all sites at once is in the test above
@pytest.mark.float64_only
def test_low_rank_and_diagonal_guides_get_the_scales_of_the_family(key):
    """Parameters by name give the guide the covariance of the fitted family."""
    y = np.array([0.5, 1.0, 2.5])
    guide = autoguide.AutoLowRankMultivariateNormal(line, rank=1)
    svi = curvi.SVI(line, guide)
    run = svi.run(key, 100, y, progress_bar=False)
    with usual_promotion():
        posterior = guide.get_posterior(run.params)
    # The guide flattens sites as the model has them, curvi by name: level before slope.
    swapped = np.asarray(run.state.covariance())[::-1, ::-1]
    np.testing.assert_allclose(posterior.covariance_matrix, swapped, rtol=1e-10)


@pytest.mark.float64_only
def test_svi_refuses_what_it_would_not_honour(key):
    guide = autoguide.AutoNormal(line)
    with pytest.raises(curvi.InputError, match="guide is AutoDelta"):
        curvi.SVI(line, autoguide.AutoDelta(line))
    with pytest.raises(curvi.InputError, match="loss is RenyiELBO"):
        curvi.SVI(line, guide, None, numpyro.infer.RenyiELBO())
    with pytest.warns(UserWarning, match="does not use the optimiser"):
        curvi.SVI(line, guide, numpyro.optim.Adam(1e-3))
    with pytest.raises(curvi.InputError, match="init_params"):
        curvi.SVI(line, guide).run(key, 10, np.zeros(3), init_params={})


def local_level(y):
    from numpyro.contrib.control_flow import scan

    sd = numpyro.sample("sd", dist.HalfNormal(1.0))

    def step(level, seen):
        level = numpyro.sample("level", dist.Normal(level, sd))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=seen)
        return level, level

    scan(step, 0.0, y)


def powered(y):
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.handlers.scale(scale=0.25), numpyro.plate("rows", len(y)):
        level = numpyro.sample("level", dist.Normal(0.0, sd))
    numpyro.sample("y", dist.Normal(level, 0.5), obs=y)


@pytest.mark.parametrize("model", [local_level, powered])
def test_a_site_that_has_no_standard_form_keeps_its_density(model):
    """Inside ``scan`` noise would not reach the next step; a power of a density has a power of its
    scale, which noise has not."""
    y = jnp.asarray([0.3, -0.2, 0.9, 1.4])
    target = curvi.from_numpyro(model, y)
    assert sorted(target.position) == ["level", "sd"]
    place = {"level": jnp.asarray([0.1, 0.4, -0.6, 1.0]), "sd": jnp.asarray(0.3)}
    with usual_promotion():
        expected = -potential_energy(
            numpyro.handlers.seed(model, jax.random.key(0)), (y,), {}, place
        )
        np.testing.assert_allclose(target.log_density(place), expected, rtol=1e-5)


def test_a_standard_form_is_the_same_posterior():
    """log p of the noise is that of the site and the logarithm of its derivative."""

    def model(y):
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        corner = jnp.asarray([[1.0, 0.0], [0.3, 0.8]])
        with numpyro.plate("rows", 3):
            pair = numpyro.sample("pair", dist.MultivariateNormal(0.0, scale_tril=sd * corner))
            heavy = numpyro.sample("heavy", dist.StudentT(4.0, 1.0, sd))
            numpyro.sample("y", dist.Normal(pair[:, 0] * pair[:, 1] + heavy, 0.5), obs=y)

    y = jnp.asarray([0.3, -0.2, 0.9])
    target = curvi.from_numpyro(model, y)
    assert sorted(target.position) == ["heavy_standardised", "pair_standardised", "sd"]
    noise = np.random.default_rng(0).normal(size=(3, 3))
    place = {
        "heavy_standardised": jnp.asarray(noise[:, 0]),
        "pair_standardised": jnp.asarray(noise[:, 1:]),
        "sd": jnp.asarray(0.3),
    }
    found = target.constrain(place)
    with usual_promotion():
        sites = {"sd": place["sd"], "heavy": found["heavy"], "pair": found["pair"]}
        seeded = numpyro.handlers.seed(model, jax.random.key(0))
        own = -potential_energy(seeded, (y,), {}, sites)
    derivative = 9 * 0.3 + 3 * np.log(0.8)
    np.testing.assert_allclose(target.log_density(place), own + derivative, rtol=1e-5)


def test_a_site_with_the_name_that_noise_would_have_is_kept():
    def model():
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        numpyro.sample("effect", dist.Normal(0.0, sd))
        numpyro.sample("effect_standardised", dist.Normal(3.0, 0.5))

    target = curvi.from_numpyro(model)
    assert sorted(target.position) == ["effect", "effect_standardised", "sd"]
    place = {name: jnp.asarray(0.3) for name in target.position}
    with usual_promotion():
        seeded = numpyro.handlers.seed(model, jax.random.key(0))
        expected = -potential_energy(seeded, (), {}, place)
    np.testing.assert_allclose(target.log_density(place), expected, rtol=1e-5)
