"""Random functions whose Lipschitz constants are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from curvi.paper import concentration

Function = Callable[[np.ndarray], np.ndarray]
ACTIVATIONS = {
    "sigmoid": lambda t: 1 / (1 + np.exp(-t)),
    "tanh": np.tanh,
    "softplus": lambda t: np.logaddexp(0, t),
    "relu": lambda t: np.maximum(t, 0),
    "identity": lambda t: t,
}


def random_function(rng: np.random.Generator) -> tuple[Function, float, int]:
    """A function of rows, a constant that bounds its slope, and its dimension."""
    dimension = int(rng.integers(1, 20))
    kind = int(rng.integers(5))
    slope = rng.normal(size=dimension) * np.exp(rng.normal())
    length = float(np.linalg.norm(slope))
    if kind == 0:
        return (lambda e: e @ slope), length, dimension
    if kind == 1:
        return (lambda e: np.abs(e @ slope - 0.3)), length, dimension
    if kind == 2:
        return (lambda e: np.linalg.norm(e, axis=1)), 1.0, dimension
    if kind == 3:
        return (
            (lambda e: np.logaddexp.reduce(e * slope, axis=1)),
            float(np.max(np.abs(slope))),
            dimension,
        )
    return *random_network(rng, dimension), dimension


def random_network(rng: np.random.Generator, dimension: int) -> tuple[Function, float]:
    """One output of a network of random depth, and the bound that the library gives."""
    activation = str(rng.choice(list(ACTIVATIONS)))
    widths = [dimension, *rng.integers(1, 12, size=rng.integers(1, 4)), 1]
    layers = [rng.normal(size=(out, inside)) for inside, out in itertools.pairwise(widths)]
    sds = np.exp(rng.normal(size=dimension))

    def network(noise: np.ndarray) -> np.ndarray:
        state = noise * sds
        for weights in layers[:-1]:
            state = ACTIVATIONS[activation](state @ weights.T)
        return (state @ layers[-1].T)[:, 0]

    return network, concentration.network_lipschitz(layers, sds, activation=activation)
