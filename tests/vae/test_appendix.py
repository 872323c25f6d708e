"""The library's derivatives are those of the paper's appendix, written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi.linalg import hessian
from curvi.vae import Bernoulli, Gaussian, MLPObjective, VAEParams
from tests.vae import appendix

pytestmark = pytest.mark.float64_only
PIXELS, HIDDEN, LATENT, ROWS, DECAY, VARIANCE = 5, 4, 3, 6, 0.01, 0.3
SIZES = {1: (HIDDEN, PIXELS), 2: (LATENT, HIDDEN), 3: (LATENT, HIDDEN), 4: (HIDDEN, LATENT),
         5: (PIXELS, HIDDEN)}  # fmt: skip


def weights(generator):
    W = {i: generator.standard_normal(shape) for i, shape in SIZES.items()}
    return W, {i: generator.standard_normal((shape[0], 1)) for i, shape in SIZES.items()}


def pack(W, b):
    layer = {i: jnp.asarray(np.concatenate([W[i].T, b[i].T])) for i in W}
    heads = jnp.concatenate([layer[2], layer[3]], axis=1)
    return VAEParams((layer[1],), heads, (layer[4], layer[5]), jnp.zeros((1, 0)))


@pytest.fixture(params=[True, False], ids=["binary", "continuous"])
def case(request, key):
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    binary = request.param
    objective = MLPObjective(
        likelihood=Bernoulli() if binary else Gaussian(VARIANCE), decoder_l2=DECAY * ROWS
    )
    W, b = weights(generator)
    V, c = weights(generator)
    X = generator.random((PIXELS, ROWS)) if binary else generator.standard_normal((PIXELS, ROWS))
    noise = np.asarray(objective.noise(key, jnp.zeros((ROWS, LATENT))))[0].T
    return objective, W, b, V, c, X, noise, key, binary


def by_hand(case, factor=0.5):
    """Value, gradient and product of F = -(bound - penalty) / rows."""
    _, W, b, V, c, X, noise, _, binary = case
    decay = DECAY * ROWS * ROWS  # the library's penalty is per row
    a = appendix.forward(W, b, X, noise, binary)
    d = appendix.deltas(W, a, VARIANCE, binary)
    r = appendix.r_forward(W, V, c, a, noise, binary, factor=factor)
    squares = sum((W[i] ** 2).sum() for i in (4, 5))
    value = appendix.bound(a, VARIANCE, binary) - 0.5 * decay * squares
    gradient = appendix.gradient(W, a, d, decay)
    product = appendix.r_backward(W, V, a, r, d, decay, VARIANCE, binary)
    scaled = [tuple({i: -x / ROWS for i, x in part.items()} for part in pair)
              for pair in (gradient, product)]  # fmt: skip
    return -value / ROWS, pack(*scaled[0]), pack(*scaled[1])


def by_library(case):
    objective, W, b, V, c, X, _, key, _ = case

    @jax.jit  # far faster than operation by operation
    def both(params, vector):
        value, gradient, operator = hessian(lambda p: objective(p, jnp.asarray(X.T), key), params)
        return value, gradient, operator(vector)

    return both(pack(W, b), pack(V, c))


def worst(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return max(float(np.max(np.abs(a - b)) / (1 + np.max(np.abs(b)))) for a, b in pairs if a.size)


def test_value_gradient_and_hessian_product_are_those_of_the_appendix(case):
    for ours, theirs in zip(by_library(case), by_hand(case), strict=True):
        assert worst(ours, theirs) < 1e-6


def test_the_printed_derivative_of_sigma_without_its_half_gives_another_product(case):
    assert worst(by_library(case)[2], by_hand(case, factor=1.0)[2]) > 1e-3
