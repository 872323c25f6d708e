"""Lipschitz constants against the steepest slope that is seen."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curvi._core.errors import InputError
from curvi.paper import concentration

pytestmark = pytest.mark.float64_only
SEEDS = st.integers(0, 2**31 - 1)
ACTIVATIONS = {
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
    "relu": jax.nn.relu,
    "identity": lambda t: t,
}
ROUNDING = 1 + 1e-9


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_lemma_4_bounds_every_unit_and_is_attained(activation, key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    weights, factor = rng.normal(size=(5, 3)), rng.normal(size=(3, 3))
    constants = concentration.unit_lipschitz(weights, factor, activation=activation)
    # The steepest point of g lies where its input is 0, or far to the right.
    steepest = 0.0 if activation in ("sigmoid", "tanh") else 40.0
    slope = float(jax.grad(ACTIVATIONS[activation])(steepest))
    np.testing.assert_allclose(constants, slope * np.linalg.norm(weights @ factor, axis=1))
    noise = rng.standard_normal((1000, 3)) @ factor.T @ weights.T
    slopes = jax.vmap(jax.vmap(jax.grad(ACTIVATIONS[activation])))(jnp.asarray(noise))
    seen = np.max(np.asarray(slopes), axis=0) * np.linalg.norm(weights @ factor, axis=1)
    assert np.all(seen <= constants * ROUNDING)


@settings(max_examples=25)
@given(SEEDS)
def test_no_network_is_steeper_than_its_bound(seed):
    rng = np.random.default_rng(seed)
    layers = [rng.normal(size=shape) for shape in ((4, 3), (4, 4), (2, 4))]
    sds = np.exp(rng.normal(size=3))
    bound = concentration.network_lipschitz(layers, sds, activation="tanh", output="sigmoid")
    points = rng.standard_normal((200, 2, 3))
    left, right = (network(layers, points[:, k] * sds) for k in (0, 1))
    rise = np.linalg.norm(left - right, axis=1)
    assert np.all(rise <= bound * np.linalg.norm(points[:, 0] - points[:, 1], axis=1) * ROUNDING)


def network(layers, state):
    for weights in layers[:-1]:
        state = np.tanh(state @ weights.T)
    return 1 / (1 + np.exp(-state @ layers[-1].T))


@jax.jit
def reconstruction_gradients(noise, first, second, image, sd):
    def term(noise):
        logits = second @ jnp.tanh(first @ (sd * noise))
        return jnp.sum(image * logits - jnp.logaddexp(0.0, logits))

    return jax.vmap(jax.grad(term))(noise)


@settings(max_examples=25)
@given(SEEDS)
def test_no_reconstruction_is_steeper_than_its_bound(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(5, 2)), rng.normal(size=(7, 5))
    images, sds = rng.uniform(size=(3, 7)), np.exp(rng.normal(size=(3, 2)))
    constants = concentration.reconstruction_lipschitz([first, second], images, sds=sds)

    for image, sd, constant in zip(images, sds, constants, strict=True):
        noise = rng.standard_normal((100, 2))
        gradients = np.asarray(reconstruction_gradients(noise, first, second, image, sd))
        assert np.max(np.linalg.norm(gradients, axis=1)) <= constant * ROUNDING
    one = concentration.reconstruction_lipschitz([first, second], images, scale=sds[0])
    assert np.all(one[:1] <= constants[:1] * ROUNDING)  # |W R| <= |W| max R


def test_a_gaussian_likelihood_has_no_bound():
    layers, images = [np.ones((4, 2))], np.full((3, 4), 7.0)
    found = concentration.reconstruction_lipschitz(
        layers, images, scale=np.ones(2), likelihood="gaussian"
    )
    assert np.all(np.isinf(found))
    assert concentration.network_lipschitz([np.ones((1, 2))], np.ones(2), output="exp") == math.inf
    assert concentration.network_lipschitz([np.zeros((1, 2))], np.ones(2), output="exp") == 0.0
    assert concentration.unit_lipschitz(np.zeros((1, 2)), np.ones(2), activation="exp") == 0.0


def test_one_square_factor_for_all_rows_is_not_taken_for_rows_of_sds():
    factor = np.array([[1.0, 0.0], [1.0, 1.0]])
    two = concentration.reconstruction_lipschitz([np.eye(2)], np.ones((2, 2)), scale=factor)
    np.testing.assert_allclose(two, math.sqrt(2) * np.linalg.norm(factor, 2))


@jax.jit
def logistic_gradients(noise, rows, weight):
    def log_likelihood(noise):
        return jnp.sum(weight * jax.nn.log_sigmoid(rows @ noise))

    return jax.vmap(jax.grad(log_likelihood))(noise)


@settings(max_examples=25)
@given(SEEDS)
def test_logistic_rows_have_exact_constants_and_their_sum_a_bound(seed):
    rng = np.random.default_rng(seed)
    X, factor, weight = rng.normal(size=(6, 3)), rng.normal(size=(3, 3)), rng.uniform(size=6)
    rows = concentration.logistic_row_lipschitz(X, factor)
    # Far on the wrong side a row has the slope one.
    for x, constant in zip(X, rows, strict=True):
        far = -1e3 * factor.T @ x / (x @ factor @ factor.T @ x)
        gradient = logistic_gradients(far[None], (x @ factor)[None], np.ones(1))
        np.testing.assert_allclose(np.linalg.norm(gradient), constant, rtol=1e-6)
    total = concentration.logistic_lipschitz(X, factor, weight)
    signed = rng.choice([-1.0, 1.0], size=(6, 1)) * (X @ factor)
    gradients = logistic_gradients(rng.standard_normal((200, 3)) * 5, signed, weight)
    assert np.max(np.linalg.norm(gradients, axis=1)) <= total * ROUNDING
    assert total <= weight @ rows * ROUNDING


@pytest.mark.parametrize("activation", ["elu", "silu", "gelu"])
def test_slopes_of_other_activations_are_bounds_and_no_wider_than_a_hundredth(activation):
    places = jnp.linspace(-8.0, 8.0, 20_001)
    steepest = float(jnp.max(jax.vmap(jax.grad(getattr(jax.nn, activation)))(places)))
    assert steepest <= concentration.ACTIVATION_SLOPES[activation] * ROUNDING < steepest + 0.01


def test_an_estimate_is_a_lower_bound_and_says_so(key):
    noise = jax.random.normal(key, (64, 3))
    found = concentration.estimate_lipschitz(lambda e: jnp.sum(jnp.tanh(2 * e)), noise)
    assert 0 < found.value <= 2 * math.sqrt(3) * ROUNDING
    assert "not an upper bound" in str(found)


def test_the_report_sets_the_measured_variance_beside_the_bound(key):
    noise = jax.random.normal(key, (4000, 2))
    report = concentration.measure_variance(
        lambda e: jnp.tanh(e[0]), noise, lipschitz=1.0, gradient=lambda e: e
    )
    assert 0.2 < report.value < report.sharp < report.paper
    assert abs(report.gradient - 2.0) < 0.5  # 10 standard errors
    assert "at most" in str(report)
    assert "no upper bound" in str(concentration.measure_variance(lambda e: e[0] ** 2, noise))
    with pytest.raises(InputError, match="at least two"):
        concentration.measure_variance(lambda e: e[0], noise[:1])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: concentration.unit_lipschitz([1.0], [1.0]), "matrix"),
        (lambda: concentration.unit_lipschitz([[math.nan]], [1.0]), "finite"),
        (lambda: concentration.unit_lipschitz([[1.0, 2.0]], [1.0]), "inputs"),
        (lambda: concentration.unit_lipschitz([[1.0]], [math.inf]), "finite"),
        (lambda: concentration.unit_lipschitz([[1.0]], [1.0], activation="swish"), "activation"),
        (lambda: concentration.network_lipschitz([], [1.0]), "empty"),
        (
            lambda: concentration.reconstruction_lipschitz([[[1.0]]], [[2.0]], scale=[1.0]),
            r"\[0, 1\]",
        ),
        (lambda: concentration.reconstruction_lipschitz([[[1.0]]], [[0.5]]), "either scale"),
        (
            lambda: concentration.reconstruction_lipschitz([[[1.0]]], [[0.5]], sds=[[1.0], [1.0]]),
            "shape",
        ),
        (lambda: concentration.logistic_lipschitz([[1.0]], [1.0], [-1.0]), "negative"),
    ],
)
def test_what_has_no_constant_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
