"""The reference posteriors of the benchmark are the densities that their draws come from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import posteriors

pytestmark = [pytest.mark.data, pytest.mark.float64_only, pytest.mark.slow]


@pytest.mark.parametrize("name", posteriors.MODELS)
def test_the_draws_satisfy_the_identities_of_their_density(data_dir, name):
    """With s the gradient of log p at draws x: E[s] = 0 and E[x s] = -1, in every coordinate.

    On 2,000 of the draws; a statistic is allowed seven standard errors. The centred eight schools
    have gradients without a variance, so that only the way there and back is checked.
    """
    if not (data_dir / "posteriordb").is_dir():
        pytest.skip("the folder of data sets has no posteriordb")
    found = posteriors.load(data_dir, name)
    x = np.stack([found.density.unconstrain(row) for row in found.draws[::5]])
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        back = jax.vmap(found.density.constrain)(jnp.asarray(x))
        np.testing.assert_allclose(back, found.draws[::5], rtol=1e-5, atol=1e-6)
        if name == "eight_schools-eight_schools_centered":
            return
        s = np.asarray(jax.jit(jax.vmap(jax.grad(found.density.log_density)))(jnp.asarray(x)))
    x = x - x.mean(axis=0)
    for values, expected in ((s, 0.0), (x * s, -1.0)):
        error = values.std(axis=0) / len(values) ** 0.5
        assert (np.abs(values.mean(axis=0) - expected) < 7 * error).all()
