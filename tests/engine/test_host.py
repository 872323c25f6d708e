"""Small fits take their steps on the host, and end where the compiled loop ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.engine import _host as host
from curvi.inference import _search as search
from tests.solvers.problems import generator, logistic

pytestmark = pytest.mark.float64_only


def both(monkeypatch, call):
    """The call on the host, and again with nothing small enough for it."""
    first = call()
    monkeypatch.setattr(host, "_MOST_NUMBERS", 0.0)
    monkeypatch.setattr("curvi.diagnostics._host_response._MOST_NUMBERS", 0.0)
    return first, call()


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
def test_the_host_and_the_compiled_loop_agree(monkeypatch, key, dtype):
    target = logistic(generator(key), dtype)

    def call():
        result = curvi.fit(target, family=curvi.FullRank(), progress=False)
        return result, np.asarray(result.covariance(linear_response=True))

    (one, response), (other, compiled_response) = both(monkeypatch, call)
    assert one.converged
    assert other.converged
    sd = np.asarray(one.sd)
    np.testing.assert_allclose(one.mean / sd, np.asarray(other.mean) / sd, atol=1e-4)
    np.testing.assert_allclose(sd, other.sd, rtol=1e-4)
    assert one.elbo == pytest.approx(other.elbo, abs=1e-4)
    np.testing.assert_allclose(response, compiled_response, rtol=1e-3, atol=1e-6)
    assert set(one.trace) == set(other.trace)


@pytest.mark.filterwarnings("ignore::curvi.MisfitWarning")
def test_other_starts_are_tried_only_where_q_does_not_match_the_target(monkeypatch, dtype):
    made = []
    points = search.starting_points
    monkeypatch.setattr(search, "starting_points", lambda *a: made.append(None) or points(*a))
    curvi.fit(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(2, dtype), progress=False)
    assert not made
    curvi.fit(
        lambda z: -0.5 * jnp.sum((jnp.asarray([[1.0, 0.99], [0.0, 0.1]]) @ z) ** 2 * 50),
        jnp.zeros(2, dtype), progress=False, on_failure="return",
    )  # fmt: skip
    assert made


def test_a_run_that_is_interrupted_keeps_its_last_state(monkeypatch, key, dtype):
    target = logistic(generator(key), dtype)
    steps = []
    step = host.Descent.step

    def interrupted(self, tolerance):
        if len(steps) == 2:
            raise KeyboardInterrupt
        steps.append(None)
        step(self, tolerance)

    monkeypatch.setattr(host.Descent, "step", interrupted)
    result = curvi.fit(target, progress=False, max_steps=50)
    assert result.outcome is curvi.Outcome.INTERRUPTED
    assert result.steps == 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
