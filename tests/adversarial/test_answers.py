"""Answers that look right and are not: each carries a warning, or there is none at all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from tests.adversarial.outcomes import handled
from tests.solvers.problems import seed_of

HILLS = {
    "a maximum": (lambda p, batch, key: jnp.cos(p), jnp.zeros(()), -1.0),
    "a saddle": (
        lambda p, batch, key: p[0] ** 2 - p[1] ** 2 + p[1] ** 4,
        jnp.array([1.0, 0.0]),
        -0.25,
    ),
    "saddles on the way": (
        lambda p, batch, key: jnp.sum(0.25 * p**4 - 0.5 * p**2),
        jnp.zeros(3),
        -0.75,
    ),
    "a saddle between small valleys": (
        lambda p, batch, key: 1e4 * (p**4 - 1e-2 * p**2),
        jnp.zeros(()),
        -0.25,
    ),
}


@pytest.mark.parametrize("method", [curvi.TrustRegion(), curvi.LBFGS()], ids=lambda m: repr(m)[:5])
@pytest.mark.parametrize("name", HILLS)
def test_minimise_goes_down_from_a_stationary_point_that_is_no_minimum(name, method, key):
    fn, start, least = HILLS[name]
    found = handled(
        lambda: curvi.minimise(
            fn, start, method=method, fixed_key=True, seed=seed_of(key), execution="eager"
        ),
        lambda result: result.converged,
    )
    value = float(fn(found.params, None, None))
    np.testing.assert_allclose(value, least, atol=1e-5)
    assert np.all(np.diff(found.trace["step"]) == 1)


def test_minimise_stays_at_a_minimum_that_is_flat():
    found = curvi.minimise(lambda p, b, k: p[0] ** 2 + 0 * p[1], jnp.ones(2), fixed_key=True)
    assert found.converged
    np.testing.assert_allclose(found.params, [0, 1], atol=1e-6)
