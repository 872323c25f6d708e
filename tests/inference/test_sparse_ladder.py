"""More than a thousand coordinates with nothing chosen, against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import curvi

GROUPS, ROWS = 1200, 4


def exact(averages):
    """Means and sds of the mean and the log sd of groups, the effects summed out."""
    mean, log_sd = np.linspace(1.6, 2.4, 241), np.linspace(-0.9, 0.2, 221)
    spread = np.sqrt(np.exp(2 * log_sd) + 1 / ROWS)
    logs = np.stack(
        [
            stats.norm.logpdf(averages[:, None], mean, s).sum(axis=0) - 0.5 * mean**2 / 25
            for s in spread
        ]
    )
    logs -= 0.5 * log_sd[:, None] ** 2
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    found = []
    for axis, values in ((0, mean), (1, log_sd)):
        share = weights.sum(axis=axis)
        centre = share @ values
        found.append((centre, np.sqrt(share @ (values - centre) ** 2)))
    return found


@pytest.mark.slow
def test_a_hierarchical_model_of_many_groups_is_answered_as_quadrature_does(key):
    rng = np.random.default_rng(int(jax.random.bits(key)))
    y = rng.normal(size=(GROUPS, ROWS)) + 0.7 * rng.normal(size=(GROUPS, 1)) + 2.0
    seen = jnp.asarray(y, jnp.result_type(float))

    def log_density(p):
        effect, log_sd = p["effect"], p["log_sd"]
        total = -0.5 * jnp.sum((seen - effect[:, None]) ** 2) - GROUPS * log_sd - 0.5 * log_sd**2
        spread = jnp.sum((effect - p["mean"]) ** 2) * jnp.exp(-2 * log_sd)
        return total - 0.5 * spread - 0.5 * p["mean"] ** 2 / 25

    zero = jnp.zeros(())
    start = {"effect": jnp.zeros(GROUPS), "mean": zero, "log_sd": zero}
    result = curvi.fit(log_density, start, progress=False)
    assert isinstance(result.family, curvi.SparsePrecision)
    assert result.converged
    assert not result.misfit
    for name, (mean, sd) in zip(("mean", "log_sd"), exact(y.mean(axis=1)), strict=True):
        assert abs(float(result.mean[name]) - mean) < 0.15 * sd
        assert 0.8 < float(result.sd[name]) / sd < 1.25
