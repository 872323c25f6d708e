"""The middle of a prior, by formula, and where a fit of a NumPyro model starts."""

import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi._core.trees import usual_promotion

numpyro = pytest.importorskip("numpyro")
dist = pytest.importorskip("numpyro.distributions")

from curvi.interop._numpyro_start import middle_of  # noqa: E402
from tests.compilations import num_compiled  # noqa: E402


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (dist.HalfCauchy(2.0).expand([3]), np.full(3, 2.0)),  # it has no mean
        (dist.LogNormal(1.0, 10.0), np.e),  # its mean is astronomical
        (dist.Normal(jnp.arange(2.0), 1.0).to_event(1), np.arange(2.0)),
        (dist.Gamma(3.0, 2.0), 1.5),  # without a formula for the median
        (dist.MultivariateNormal(jnp.full(2, 5.0), jnp.eye(2)), np.full(2, 5.0)),
        (dist.Normal(3.0, 1.0).mask(False), 3.0),
        (
            dist.TransformedDistribution(
                dist.Normal(0.0, 1.0).expand([2]), dist.transforms.OrderedTransform()
            ),
            np.array([0.0, 1.0]),
        ),
    ],
)
def test_the_middle_of_a_prior_is_its_median_or_else_its_mean(distribution, expected):
    np.testing.assert_allclose(middle_of(distribution), expected, rtol=1e-5, atol=1e-6)


def test_a_prior_without_either_has_no_middle():
    with usual_promotion():  # NumPyro's own code
        assert middle_of(dist.LKJCholesky(3, 1.0)) is None


def test_a_fit_starts_in_the_middle_of_a_prior_that_is_far_from_zero():
    def model(y):
        level = numpyro.sample("level", dist.Normal(1e4, 10.0))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)

    target = curvi.from_numpyro(model, jnp.full(4, 1e4 + 3))
    np.testing.assert_allclose(target.position["level"], 1e4)


def test_a_prior_of_integers_starts_at_floats():
    with usual_promotion():
        prior = dist.MultivariateNormal(jnp.array([0, 7]), jnp.eye(2))

    def model(y):
        z = numpyro.sample("z", prior)
        numpyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)

    start = curvi.from_numpyro(model, jnp.array([1.0, 6.0])).position["z"]
    np.testing.assert_array_equal(start, [0.0, 7.0])


def test_a_prior_in_single_precision_starts_in_the_precision_of_jax():
    middle = middle_of(dist.Dirichlet(np.ones(3, np.float32)))
    assert middle.dtype == jnp.zeros(()).dtype


def test_a_prior_whose_mean_has_another_shape_has_no_middle():
    class Odd(dist.Distribution):
        support = dist.constraints.real
        mean = np.zeros(3)

    assert middle_of(Odd(batch_shape=(2,))) is None


def test_a_model_that_was_read_before_compiles_nothing_and_follows_its_data():
    def model(y, index, scale):
        effects = numpyro.sample("effects", dist.HalfNormal(scale).expand([3]))
        numpyro.sample("y", dist.Normal(effects[index], 1.0), obs=y)

    def start(*arguments):
        return np.asarray(curvi.from_numpyro(model, *arguments).position["effects"])

    y, index = 30.0 + jnp.arange(4.0), jnp.arange(4) % 3
    first = start(y, index, 5.0)
    before = num_compiled()
    np.testing.assert_array_equal(start(y, index, 5.0), first)
    assert num_compiled() == before
    assert (start(y, index, 20.0) > first).all()
    for _ in range(2):
        with pytest.warns(UserWarning, match="beyond the end of an array"):
            start(y, index + 1, 5.0)
