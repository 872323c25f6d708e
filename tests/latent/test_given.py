"""Precisions that users bring: matrices, functions, singular ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

import curvi
from curvi.latent import Assembly, Fixed, FromPrecision, RandomWalk
from curvi.likelihoods import likelihood_of
from tests.latent.models import generator, site_model

pytestmark = pytest.mark.float64_only

STEP = np.diff(np.eye(6), axis=0)
WALK = STEP.T @ STEP


def bounds(component, y, theta):
    likelihood = likelihood_of("gaussian")
    fixed = Fixed(np.ones((len(y), 1)), "level", prior_scale=3.0)
    model = site_model(Assembly([fixed, component], likelihood.extras, [1.0]), likelihood, y)
    return model.fit(theta).bound


def test_a_singular_precision_under_its_constraint_is_the_random_walk(key):
    rng = generator(key)
    y, theta = rng.normal(size=6), 0.5 * rng.normal(size=(3, 2))
    sum_to_zero = np.ones((1, 6))
    given = [
        FromPrecision(np.eye(6), WALK, "walk", constraints=sum_to_zero),
        FromPrecision(np.eye(6), lambda sd: sparse.csr_array(WALK / sd**2), scales={"sd": 1.0},
                      constraints=sum_to_zero),
    ]  # fmt: skip
    expected = bounds(RandomWalk(range(6)), y, theta)
    for component in given:
        np.testing.assert_allclose(bounds(component, y, theta), expected, atol=1e-10)


@pytest.mark.parametrize("rows", [1, 2])
def test_constraints_of_a_proper_precision_leave_the_dense_conditional(rows, key):
    rng = generator(key)
    root, C = rng.normal(size=(6, 6)), rng.normal(size=(rows, 6))
    Q = root @ root.T + np.eye(6)
    y, theta = rng.normal(size=6), np.asarray([[0.3, -0.2]])
    covariance = np.exp(0.6) * np.linalg.inv(Q)
    across = covariance @ C.T
    covariance = covariance - across @ np.linalg.solve(C @ across, across.T)
    total = covariance + 9.0 + np.exp(-0.4) * np.eye(6)
    expected = -0.5 * (y @ np.linalg.solve(total, y) + np.linalg.slogdet(2 * np.pi * total)[1])
    for component in (
        FromPrecision(np.eye(6), Q, constraints=C),
        FromPrecision(np.eye(6), lambda s: Q / s**2, scales={"s": 1.0}, constraints=C),
    ):
        assert bounds(component, y, theta)[0] == pytest.approx(expected, abs=1e-8)


def test_bound_and_gradient_of_a_function_are_those_of_autodiff(key):
    """A field with an sd and a range: the log marginal likelihood of dense algebra."""
    rng = generator(key)
    A, y = rng.normal(size=(9, 6)), rng.normal(size=9)

    def precision(sd, reach):
        inner = np.eye(6) / reach**2 + WALK
        return inner @ inner / sd**2

    component = FromPrecision(A, precision, scales={"sd": 1.0, "reach": 3.0}, mean=0.4)
    likelihood = likelihood_of("gaussian")
    model = site_model(Assembly([component], likelihood.extras, [1.0]), likelihood, y, 0.2)
    theta = np.asarray([[0.2, 0.7, -0.3]])

    def log_marginal(theta):
        sd, reach, noise = jnp.exp(theta)
        inner = jnp.eye(6) / reach**2 + WALK
        total = sd**2 * A @ jnp.linalg.inv(inner @ inner) @ A.T + noise**2 * jnp.eye(9)
        left = y - 0.2 - 0.4 * A.sum(axis=1)
        log_det = jnp.linalg.slogdet(2 * jnp.pi * total)[1]
        return -0.5 * (left @ jnp.linalg.solve(total, left) + log_det)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        value, slopes = jax.value_and_grad(log_marginal)(theta[0])
    fitted = model.fit(theta)
    assert fitted.bound[0] == pytest.approx(float(value), abs=1e-8)
    np.testing.assert_allclose(model.gradient(theta, fitted)[0], slopes, atol=1e-6)
    up, down = (component.log_prior(theta[:, :2] + s) for s in ([1e-5, 0], [-1e-5, 0]))
    slope = (up - down) / 2e-5  # of a half-normal sd, in its logarithm
    assert slope[0] == pytest.approx(1 - np.exp(0.4), abs=1e-6)


def test_what_is_given_comes_back():
    places = np.arange(12.0).reshape(6, 2)
    names = list("abcdef")
    given = FromPrecision(np.eye(6)[:3], np.eye(6), "g", scales={"sd of g": 2.0}, labels=names,
                          start={"sd of g": 0.5}, mean=1.5, coordinates=places)  # fmt: skip
    assert given.names == ("sd of g",)
    assert given.labels() == names
    assert given.start()[0] == pytest.approx(np.log(0.5))
    np.testing.assert_array_equal(given.mean, np.full(6, 1.5))
    np.testing.assert_array_equal(given.coordinates, places)
    np.testing.assert_array_equal(given.columns_for(np.eye(6)[4]).toarray(), np.eye(6)[4:5])
    assert repr(given) == "FromPrecision('g', 6 effects)"
    wide = given.with_rows(given.columns_for(np.eye(6)))
    assert (wide.A.shape, given.A.shape) == ((9, 6), (3, 6))


def eye(**options):
    return FromPrecision(np.eye(6), np.eye(6), **options)


REFUSED = {
    "singular": (lambda: FromPrecision(np.eye(6), WALK), "give constraints that span"),
    "indefinite": (lambda: FromPrecision(np.eye(6), -np.eye(6)), "not positive definite"),
    "symmetric": (lambda: FromPrecision(np.eye(6), np.tri(6)), "not symmetric"),
    "shape": (lambda: FromPrecision(np.eye(6), np.eye(5)), "A has 6 columns"),
    "no scales": (lambda: FromPrecision(np.eye(6), lambda s: np.eye(6)), "give scales"),
    "two sds": (lambda: eye(scales={"a": 1.0, "b": 1.0}), "only hyperparameter"),
    "scale": (lambda: eye(scales={"a": -1.0}), r"scales\['a'\]"),
    "start": (lambda: eye(start={"effects": 0.0}), r"start\['effects'\]"),
    "constraints": (lambda: eye(constraints=np.ones((1, 5))), "need 6 columns"),
    "labels": (lambda: eye(labels=["a"]), "6 effects and 1 labels"),
    "infinite": (
        lambda: FromPrecision(np.eye(6), lambda s: np.full((6, 6), np.inf), scales={"s": 1.0}),
        "not finite at s = 0.3"),
    "new rows": (lambda: eye().columns_for(np.ones(5)), "6 effects and new rows 5"),
    "other zeros": (
        lambda: FromPrecision(
            np.eye(6), lambda s: np.eye(6) + (s > 1) * WALK, scales={"s": 1.0}
        ).precision(np.ones((1, 1))), "no entry"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_precision_is_refused(call, sentence):
    with pytest.raises(curvi.InputError, match=sentence):
        call()


def test_two_levels_without_a_prior_that_cancel_each_other_are_refused():
    rows, y = np.arange(24), np.arange(24) % 5.0
    walk = FromPrecision(np.eye(6)[rows % 6], WALK, "walk", constraints=np.ones((1, 6)))
    with pytest.raises(curvi.InputError, match="levels of 'walk' and 'time'"):
        curvi.LatentGaussian([walk, RandomWalk(rows // 6, "time")], likelihood="poisson").fit(y)
    held = RandomWalk(rows // 6, "time", first_sd=1.0)
    assert curvi.LatentGaussian([walk, held], likelihood="poisson").fit(y).converged_
