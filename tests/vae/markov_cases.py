"""Small sequences and weights that the tests of deep Markov models share."""

import jax
import jax.numpy as jnp
import numpy as np

from curvi.vae._markov import initial_weights

WIDTH, LATENT, HIDDEN = 3, 2, 4


def generator(key):
    return np.random.default_rng(int(jax.random.bits(key)))


def weights(rng, likelihood="bernoulli"):
    start = initial_weights(rng, WIDTH, LATENT, HIDDEN, np.zeros(WIDTH))
    return jax.tree.map(jnp.asarray, start)


def tunes(rng, count=12):
    turn = np.eye(WIDTH)
    return [
        np.tile(turn[rng.permutation(WIDTH)], (int(rng.integers(2, 6)), 1)) for _ in range(count)
    ]
