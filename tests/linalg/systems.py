"""Random linear systems with a known spectrum, and the few numbers that tests compare."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from curvi.linalg import CGResult, DiagonalMetric, conjugate_gradient

seeds = st.integers(min_value=0, max_value=2**32 - 1)
dimensions = st.sampled_from([1, 2, 5, 12])


class System(NamedTuple):
    matrix: np.ndarray
    rhs: np.ndarray
    eigenvalues: np.ndarray
    vectors: np.ndarray


def make_system(generator: np.random.Generator, eigenvalues: np.ndarray) -> System:
    """Symmetric matrix with these eigenvalues; the right-hand side has a share of each of them."""
    size = len(eigenvalues)
    vectors = np.linalg.qr(generator.normal(size=(size, size)))[0]
    matrix = (vectors * eigenvalues) @ vectors.T
    shares = generator.uniform(0.1, 1.0, size) * generator.choice([-1.0, 1.0], size)
    return System((matrix + matrix.T) / 2, vectors @ shares, np.sort(eigenvalues), vectors)


def positive_system(seed: int, size: int, condition: float) -> System:
    generator = np.random.default_rng(seed)
    eigenvalues = condition ** generator.uniform(0.0, 1.0, size)
    if size > 1:
        eigenvalues[0], eigenvalues[-1] = 1.0, condition
    scale = 10.0 ** generator.uniform(-3, 3)
    return make_system(generator, scale * eigenvalues)


def indefinite_system(seed: int, size: int) -> System:
    """At least one eigenvalue is negative, all magnitudes lie between 0.05 and 1."""
    generator = np.random.default_rng(seed)
    eigenvalues = generator.uniform(0.05, 1.0, size) * generator.choice([-1.0, 1.0], size)
    eigenvalues[0] = -abs(eigenvalues[0])
    return make_system(generator, eigenvalues)


def positive_diagonal(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed + 1).uniform(0.2, 5.0, size)


def model(system: System, x: jax.Array | np.ndarray) -> float:
    x = np.asarray(x, float)
    return float(0.5 * x @ system.matrix @ x - system.rhs @ x)


@functools.cache
def _compiled(**options: object):
    def run(matrix, rhs, diagonal, initial, radius):
        preconditioner = None if diagonal is None else DiagonalMetric(diagonal)
        return conjugate_gradient(
            lambda v: matrix @ v,
            rhs,
            preconditioner=preconditioner,
            initial=initial,
            radius=radius,
            **options,
        )

    return jax.jit(run)


def solve(
    system: System,
    dtype: jnp.dtype,
    *,
    diagonal: np.ndarray | None = None,
    initial: np.ndarray | None = None,
    radius: float | None = None,
    **options: object,
) -> CGResult:
    """Compiled once per shape and set of options, so that hundreds of cases are cheap."""
    arguments = (system.matrix, system.rhs, diagonal, initial, radius)
    return _compiled(**options)(
        *(None if item is None else jnp.asarray(item, dtype) for item in arguments)
    )
